#include "hw/sim/clock.h"

#include <algorithm>
#include <functional>

namespace tandem::hw::sim {

namespace {
__attribute__((target_clones("avx2", "default"))) void maximum(Time* own, const Time* other,
                                                               std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) own[i] = own[i] > other[i] ? own[i] : other[i];
}
}  // namespace

void Clock::reset(std::size_t agents) {
  times_.assign(agents, 0);
  others_.reset();
}

void Clock::join(const Clock& other) {
  maximum(times_.data(), other.times_.data(), times_.size());
  join(other.others_);
}

void Clock::join(int block, const Clock& other) {
  join(other.others_);
  join(std::make_shared<const Others>(
      Others{{block, std::make_shared<const std::vector<Time>>(other.times_)}}));
}

bool Clock::knows(int block, Epoch event) const {
  if (others_ == nullptr) return false;
  const auto found = others_->find(block);
  return found != others_->end() && (*found->second)[event.agent] >= event.time;
}

bool Clock::covers(const Others& own, const Others& other) {
  return std::all_of(other.begin(), other.end(), [&](const auto& entry) {
    const auto found = own.find(entry.first);
    if (found == own.end()) return false;
    const std::vector<Time>&known = *found->second, &asked = *entry.second;
    return &known == &asked || std::equal(asked.begin(), asked.end(), known.begin(), std::less_equal<Time>());
  });
}

// Mostly one of the two knows all: nothing is copied then, and the next comparison is one of pointers.
void Clock::join(const std::shared_ptr<const Others>& other) {
  if (other == nullptr || other == others_ || (others_ != nullptr && covers(*others_, *other))) return;
  if (others_ == nullptr || covers(*other, *others_)) {
    others_ = other;
    return;
  }
  Others joined = *others_;
  for (const auto& [block, times] : *other) {
    Times& own = joined[block];
    if (own == nullptr || own == times) {
      own = times;
      continue;
    }
    std::vector<Time> both = *own;
    maximum(both.data(), times->data(), both.size());
    own = std::make_shared<const std::vector<Time>>(std::move(both));
  }
  others_ = std::make_shared<const Others>(std::move(joined));
}

}  // namespace tandem::hw::sim
