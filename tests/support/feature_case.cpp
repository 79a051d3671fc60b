#include "tests/support/feature_case.h"

#include <cmath>
#include <limits>

namespace tandem::test {

float draw_slope(std::int64_t i, Random& random) {
  if (i % 5 == 3) return -0.01f;
  return i % 5 == 4 ? 0.f : std::exp2(-static_cast<float>(1 + random() % 8));
}

std::uint64_t draw_tree_word(Random& random) { return random() % 6 == 0 ? 0 : random() | random(); }

std::ostream& operator<<(std::ostream& out, const FeatureCase& c) {
  out << (c.sinks ? " sinks" : "") << (c.tree ? " tree" : "");
  if (c.slopes) out << (c.slopes_by_entry ? " slopes by entry" : " slopes");
  return c.any() ? out << " of seed " << c.seed : out;
}

FeatureCase draw_features(Random& random) {
  const auto odds = [&](std::uint64_t of) { return random() % of == 0; };
  return {.sinks = odds(2), .tree = odds(2), .slopes = odds(2), .slopes_by_entry = odds(2), .seed = random()};
}

FeatureArrays::FeatureArrays(const FeatureCase& c, const core::ForwardProblem& problem) {
  Random random(c.seed);
  const std::int64_t heads = problem.q_heads(), spare = 2;
  // Of the scores' size, one without weight among them.
  for (std::int64_t h = 0; c.sinks && h < heads; ++h)
    sinks.push_back(h == 2 ? -std::numeric_limits<float>::infinity()
                           : static_cast<float>(random() % 80) / 10 - 2);
  if (c.slopes && c.slopes_by_entry) slope_stride = heads + spare;
  const std::int64_t slope_count = !c.slopes ? 0 : c.slopes_by_entry ? slope_stride * problem.batch() : heads;
  for (std::int64_t i = 0; i < slope_count; ++i) slopes.push_back(draw_slope(i, random));
  for (std::int64_t i = 0; c.tree && i < problem.batch() * problem.q_len(); ++i)
    tree.push_back(draw_tree_word(random));
}

void FeatureArrays::give(core::ForwardProblem& problem) const {
  if (!sinks.empty()) problem.sinks = sinks.data();
  if (!slopes.empty()) problem.slopes = {slopes.data(), slope_stride};
  if (!tree.empty()) problem.tree = tree.data();
}

}  // namespace tandem::test
