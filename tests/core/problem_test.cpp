#include "core/problem.h"

#include <gtest/gtest.h>

namespace tandem::core {
namespace {

ForwardProblem problem_of(std::int64_t q_len, std::int64_t k_len, std::int64_t q_heads,
                          std::int64_t kv_heads) {
  ForwardProblem p{};
  p.q = {nullptr, TANDEM_BF16, {2, q_len, q_heads, 64}, {0, 0, 0, 1}};
  p.k = p.v = {nullptr, TANDEM_BF16, {2, k_len, kv_heads, 64}, {0, 0, 0, 1}};
  return p;
}

TEST(Problem, GroupIsQueryHeadsPerKeyValueHead) {
  EXPECT_EQ(problem_of(1, 1, 12, 3).group(), 4);
  EXPECT_EQ(problem_of(1, 1, 0, 0).group(), 1);
}

TEST(Problem, FlopsCountVisiblePairsOnly) {
  ForwardProblem p = problem_of(4, 4, 3, 1);
  EXPECT_EQ(forward_flops(p), 4.0 * 2 * 3 * 64 * 16);
  p.mask = Mask::causal();
  EXPECT_EQ(forward_flops(p), 4.0 * 2 * 3 * 64 * 10);
}

TEST(Problem, RowsAreFoundBeyondFourGigaElements) {
  char base = 0;
  Tensor t{&base, TANDEM_BF16, {2, 2, 2, 8}, {std::int64_t{1} << 40, -(std::int64_t{1} << 33), 5, 1}};
  const auto* row = reinterpret_cast<const char*>(row_of<std::uint16_t>(t, 1, 1, 1));
  EXPECT_EQ(row - &base, 2 * ((std::int64_t{1} << 40) - (std::int64_t{1} << 33) + 5));
}

}  // namespace
}  // namespace tandem::core
