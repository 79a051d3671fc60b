// What fixed lengths may have besides, on Hopper of the kernels for variable lengths: sinks, slopes, trees.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "core/problem.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {

/// Number i of slopes. As models have them, 2^(-8 h / heads) and the like; one that grows with distance, and
/// none.
float draw_slope(std::int64_t i, Random& random);
/// Of a query's tree: any bits at all, and words of 0, which hide nothing.
std::uint64_t draw_tree_word(Random& random);

/// Chunks are the mask's.
struct FeatureCase {
  bool sinks = false, tree = false;
  bool slopes = false, slopes_by_entry = false;  ///< of each head, or of each entry and head
  std::uint64_t seed = 1;

  bool any() const { return sinks || slopes || tree; }
};

std::ostream& operator<<(std::ostream& out, const FeatureCase& c);

FeatureCase draw_features(Random& random);

/// What a problem is given of them, in memory of their own.
struct FeatureArrays {
  FeatureArrays(const FeatureCase& c, const core::ForwardProblem& problem);

  void give(core::ForwardProblem& problem) const;

  std::vector<float> sinks, slopes;
  std::int64_t slope_stride = 0;
  std::vector<std::uint64_t> tree;
};

}  // namespace tandem::test
