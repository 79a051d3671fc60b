// The table of all variants that are built, by head dim and purpose: a file of kernels for each pair.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "forward/study.h"
#include "forward/variants.h"

namespace tandem::forward {

enum class Purpose { best, study };

/// Everything that is built for a head dim and a purpose.
template <int head_dim, Purpose purpose>
constexpr auto built() {
  if constexpr (purpose == Purpose::best) {
    return candidates<head_dim>();
  } else {
    return study_candidates<head_dim>();
  }
}

/// Calls `visit.operator()<head_dim, purpose>()` for every file of kernels, head dims ascending. Those in
/// between run padded to the next.
template <typename Visit>
constexpr void for_each_built(Visit&& visit) {
  const auto both = [&visit]<int head_dim>() {
    visit.template operator()<head_dim, Purpose::best>();
    visit.template operator()<head_dim, Purpose::study>();
  };
  both.template operator()<64>();
  both.template operator()<96>();
  both.template operator()<128>();
  both.template operator()<192>();
  both.template operator()<256>();
}

/// Everything that is built, head dims ascending.
constexpr auto all_candidates() {
  constexpr std::size_t count = [] {
    std::size_t n = 0;
    for_each_built([&n]<int head_dim, Purpose purpose>() { n += built<head_dim, purpose>().size(); });
    return n;
  }();
  std::array<Candidate, count> all{};
  std::size_t i = 0;
  for_each_built([&]<int head_dim, Purpose purpose>() {
    for (const Candidate& candidate : built<head_dim, purpose>()) all[i++] = candidate;
  });
  return all;
}

}  // namespace tandem::forward
