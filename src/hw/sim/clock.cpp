#include "hw/sim/clock.h"

namespace tandem::hw::sim {

namespace {
__attribute__((target_clones("avx2", "default"))) void maximum(Time* own, const Time* other,
                                                               std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) own[i] = own[i] > other[i] ? own[i] : other[i];
}
}  // namespace

void Clock::join(const Clock& other) { maximum(times_.data(), other.times_.data(), times_.size()); }

}  // namespace tandem::hw::sim
