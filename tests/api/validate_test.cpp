// What validation makes of arguments that are right.
#include "api/validate.h"

#include <cstddef>
#include <cstring>
#include <gtest/gtest.h>
#include <limits>

#include "tests/api/request.h"

namespace tandem::test {
namespace {

core::ForwardProblem validated(const tandem_forward_args& args) {
  core::ForwardProblem problem;
  const core::Status status = api::validate(&args, /*need_data=*/true, &problem);
  EXPECT_TRUE(status.ok()) << status.message();
  return problem;
}

TEST(Validate, ResolvesTheScale) {
  Request request;
  EXPECT_EQ(validated(request.args).scale, 0.25f);
  request.args.scale = 3;
  EXPECT_EQ(validated(request.args).scale, 3);
}

TEST(Validate, ZerosStridesOfDimensionsOfSizeOne) {
  ForwardCase c = small_case();
  c.batch = 1;
  Request request(c);
  request.args.q.stride[0] = 12345;
  const core::ForwardProblem problem = validated(request.args);
  EXPECT_EQ(problem.q.stride[0], 0);
  EXPECT_EQ(problem.q.stride[1], request.args.q.stride[1]);
  EXPECT_EQ(problem.lse.stride[3], 0);
}

TEST(Validate, DropsLseThatIsNotWanted) {
  Request request;
  request.args.lse.data = nullptr;
  const core::ForwardProblem problem = validated(request.args);
  EXPECT_EQ(problem.lse.data, nullptr);
  EXPECT_EQ(problem.lse.shape[1], 0);
}

TEST(Validate, CarriesWhatIsAskedForStudy) {
  Request request;
  request.study.overlap = TANDEM_OVERLAP_THREE_STAGE;
  request.study.turn = TANDEM_TURN_PINGPONG;
  const core::ForwardProblem problem = validated(request.args);
  EXPECT_EQ(problem.overlap, TANDEM_OVERLAP_THREE_STAGE);
  EXPECT_EQ(problem.turn, TANDEM_TURN_PINGPONG);
}

TEST(Validate, WithoutAMaskEveryQuerySeesEveryKey) {
  ForwardCase c = small_case();
  c.mask = core::Mask::causal();
  Request request(c);
  request.args.mask = nullptr;
  request.args.study = nullptr;
  const core::ForwardProblem problem = validated(request.args);
  EXPECT_TRUE(problem.mask.is_full());
  EXPECT_EQ(problem.overlap, TANDEM_OVERLAP_AUTO);
  EXPECT_EQ(problem.turn, TANDEM_TURN_AUTO);
}

/// tandem.h's words about masks, key by key.
bool sees(const tandem_mask& mask, std::int64_t query, std::int64_t key, std::int64_t offset) {
  const std::int64_t distance = key - (query + offset);
  if (mask.kind == TANDEM_MASK_FULL) return true;
  if (mask.kind == TANDEM_MASK_CAUSAL) return distance <= 0;
  return (mask.window_left == TANDEM_UNLIMITED || -distance <= mask.window_left) &&
         (mask.window_right == TANDEM_UNLIMITED || distance <= mask.window_right);
}

void expect_same_keys(const Mask& mask, std::int64_t q_len, std::int64_t k_len) {
  ForwardCase c = small_case();
  c.q_len = q_len, c.k_len = k_len;
  Request request(c);
  request.mask = mask.c_mask();
  const core::Mask resolved = validated(request.args).mask;
  for (std::int64_t query = 0; query < q_len; ++query) {
    const auto keys = resolved.visible_keys(query, q_len, k_len);
    for (std::int64_t key = 0; key < k_len; ++key)
      ASSERT_EQ(keys.begin <= key && key < keys.end, sees(mask.c_mask(), query, key, k_len - q_len))
          << "kind " << mask.c_mask().kind << " left " << mask.c_mask().window_left << " right "
          << mask.c_mask().window_right << " sq " << q_len << " sk " << k_len << " query " << query << " key "
          << key;
  }
}

TEST(Validate, ResolvesMasksWithoutChangingWhatIsSeen) {
  constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
  for (std::int64_t q_len : {1, 2, 5})
    for (std::int64_t k_len : {1, 3, 7}) {
      expect_same_keys(Mask::full(), q_len, k_len);
      expect_same_keys(Mask::causal(), q_len, k_len);
      for (std::int64_t left : {-1L, 0L, 1L, 2L, 4L, 6L, 9L, most})
        for (std::int64_t right : {-1L, 0L, 1L, 2L, 4L, 6L, 9L, most})
          expect_same_keys(Mask::window(left, right), q_len, k_len);
    }
}

TEST(Validate, FindsTheSimplestMask) {
  const auto resolved = [](const Mask& mask, std::int64_t q_len) {
    ForwardCase c = small_case();
    c.q_len = q_len;
    Request request(c);
    request.mask = mask.c_mask();
    return validated(request.args).mask;
  };
  EXPECT_TRUE(resolved(Mask::causal(), 1).is_full()) << "one query sees every key";
  EXPECT_TRUE(resolved(Mask::window(1000, 1000), 3).is_full());
  EXPECT_TRUE(resolved(Mask::window(TANDEM_UNLIMITED, TANDEM_UNLIMITED), 3).is_full());
  const core::Mask causal = resolved(Mask::window(4, 0), 3);
  EXPECT_EQ(causal.left, core::Mask::unlimited);
  EXPECT_EQ(causal.right, 0);
}

}  // namespace
}  // namespace tandem::test
