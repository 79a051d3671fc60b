#include "api/extent.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace tandem::api {
namespace {

using core::Region;

/// All dimensions but the contiguous last one.
constexpr int outer = Region::dimensions - 1;

/// Addresses [begin, end) of a region whose extent is known to fit.
struct Range {
  std::uintptr_t begin, end;
};

Range range_of(const Region& region) {
  Extent extent{};
  extent_of(region, &extent);
  const auto data = reinterpret_cast<std::uintptr_t>(region.data);
  return {data + static_cast<std::uintptr_t>(extent.low), data + static_cast<std::uintptr_t>(extent.high)};
}

/// Sums of products of lengths and strides, of which each fits 63 bits.
__extension__ using Wide = __int128;

/// Sums of factor * x, with a whole x from 0 to `most` for each factor: can one of them be in [low, high]?
class Sums {
 public:
  Sums(Wide low, Wide high) : low_(low), high_(high) {}

  void add(Wide factor, Wide most) {
    if (factor == 0 || most == 0) return;
    if (factor < 0) {  // counted from the other end
      shift(factor * most);
      factor = -factor;
    }
    terms_.push_back({factor, most, 0, 0});
  }
  /// The same for a term that is the same in all sums.
  void shift(Wide constant) { low_ -= constant, high_ -= constant; }

  /// False where that is not found out within some steps, too: sizes of many thousands with odd strides.
  bool meet() {
    std::sort(terms_.begin(), terms_.end(), [](const Term& a, const Term& b) { return a.factor < b.factor; });
    merge_equal_factors();
    Wide divisor = 0, reach = 0;
    for (Term& term : terms_) {
      term.divisor = divisor = gcd(term.factor, divisor);
      term.reach = reach += term.factor * term.most;
    }
    return meet_with(terms_.size(), low_, high_);
  }

 private:
  struct Term {
    Wide factor, most;
    Wide divisor, reach;  ///< of this term and those before it: their common divisor, their largest sum
  };
  static constexpr int patience = 10'000;

  static Wide gcd(Wide a, Wide b) {
    while (b != 0) a = std::exchange(b, a % b);
    return a;
  }
  void merge_equal_factors() {
    std::vector<Term> merged;
    for (const Term& term : terms_)
      if (merged.empty() || merged.back().factor != term.factor)
        merged.push_back(term);
      else
        merged.back().most += term.most;
    terms_ = std::move(merged);
  }

  /// Whether the first `count` terms have a sum in [low, high].
  bool meet_with(std::size_t count, Wide low, Wide high) {
    if (low <= 0 && high >= 0) return true;
    if (count == 0 || ++steps_ > patience) return false;
    const auto& [factor, most, divisor, reach] = terms_[count - 1];
    if (high < 0 || low > reach || high / divisor * divisor < low) return false;  // or between two multiples
    const Wide others = reach - factor * most;
    Wide x = low > others ? (low - others + factor - 1) / factor : 0;
    for (const Wide last = std::min(most, high / factor); x <= last && steps_ <= patience; ++x)
      if (meet_with(count - 1, low - factor * x, high - factor * x)) return true;
    return false;
  }

  Wide low_, high_;
  std::vector<Term> terms_;
  int steps_ = 0;
};

/// Whether each stride steps over all that the smaller ones reach: the usual tensor, and none that overlaps
/// itself.
bool is_nested(const Region& region) {
  const auto stride = [&](int i) { return region.shape[i] == 1 ? 0 : region.stride[i]; };
  int order[outer];  // from the smallest stride on, which is from the last dimension on for most
  for (int n = 0; n < outer; ++n) {
    int place = n;
    for (const int i = outer - 1 - n; place > 0 && stride(order[place - 1]) > stride(i); --place)
      order[place] = order[place - 1];
    order[place] = outer - 1 - n;
  }
  std::int64_t reach = region.shape[outer];
  for (const int i : order) {
    if (region.shape[i] == 1) continue;
    if (region.stride[i] < reach) return false;
    reach += (region.shape[i] - 1) * region.stride[i];
  }
  return true;
}

}  // namespace

bool is_empty(const Region& region) { return std::ranges::find(region.shape, 0) != std::end(region.shape); }

bool extent_of(const Region& region, Extent* extent) {
  *extent = {0, 0};
  if (is_empty(region)) return true;
  const std::int64_t bytes = region.element_bytes;
  std::int64_t count = bytes;
  Extent offsets{0, bytes};
  for (int i = 0; i < Region::dimensions; ++i) {
    if (__builtin_mul_overflow(count, region.shape[i], &count)) return false;
    std::int64_t reach = 0;
    if (region.shape[i] == 1) continue;
    if (__builtin_mul_overflow(region.shape[i] - 1, region.stride[i], &reach)) return false;
    if (__builtin_mul_overflow(reach, bytes, &reach)) return false;
    std::int64_t& end = reach < 0 ? offsets.low : offsets.high;
    if (__builtin_add_overflow(end, reach, &end)) return false;
  }
  *extent = offsets;
  return true;
}

bool overlaps_itself(const Region& region) {
  if (is_empty(region) || is_nested(region)) return false;
  // Two rows of contiguous elements meet where they are less than their length apart. Of the dimensions
  // in which they differ the i-th is the first, and the second row is the one ahead there.
  const std::int64_t row = region.shape[outer];
  for (int i = 0; i < outer; ++i) {
    if (region.shape[i] == 1) continue;
    Sums distances(1 - row, row - 1);
    distances.shift(region.stride[i]);
    distances.add(region.stride[i], region.shape[i] - 2);
    for (int j = i + 1; j < outer; ++j) {
      distances.shift(Wide{region.stride[j]} * (1 - region.shape[j]));
      distances.add(region.stride[j], 2 * (Wide{region.shape[j]} - 1));
    }
    if (distances.meet()) return true;
  }
  return false;
}

bool overlap(const Region& a, const Region& b) {
  if (is_empty(a) || is_empty(b)) return false;
  const Range own = range_of(a), other = range_of(b);
  if (own.end <= other.begin || other.end <= own.begin) return false;
  // The distance of a row of a from a row of b, in bytes, where the rows meet.
  Sums distances(1 - a.shape[outer] * a.element_bytes, b.shape[outer] * b.element_bytes - 1);
  distances.shift(Wide{reinterpret_cast<std::uintptr_t>(a.data)} - reinterpret_cast<std::uintptr_t>(b.data));
  for (int i = 0; i < outer; ++i) {
    distances.add(Wide{a.stride[i]} * a.element_bytes, a.shape[i] - 1);
    distances.add(-Wide{b.stride[i]} * b.element_bytes, b.shape[i] - 1);
  }
  return distances.meet();
}

}  // namespace tandem::api
