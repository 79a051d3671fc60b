// Random backward calls cover what they are to cover; the verdict on one sees every kind of mistake.
#include "backward_verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backward_cases.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

BackwardOutput computed(const BackwardCall& call) {
  const std::unique_ptr<Place> place = make_place(call.forward.backend);
  PreparedBackward prepared(*place, call);
  prepared.enqueue();
  return prepared.fetch();
}

TEST(RandomBackward, FollowsFromItsSeed) {
  const BackwardCall a = random_backward(7, TANDEM_BACKEND_CPU), b = random_backward(7, TANDEM_BACKEND_CPU);
  EXPECT_EQ(described(a), described(b));
  EXPECT_EQ(a.dout.storage, b.dout.storage);
  EXPECT_NE(a.dout.storage, random_backward(8, TANDEM_BACKEND_CPU).dout.storage);
}

TEST(RandomBackward, DrawsBothModesAndGradientsOfLse) {
  int deterministic = 0, with_dlse = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const BackwardCall call = random_backward(seed, TANDEM_BACKEND_CPU);
    EXPECT_TRUE(call.forward.want_lse);
    deterministic += call.deterministic;
    with_dlse += !call.dlse.storage.empty();
  }
  for (const int count : {deterministic, with_dlse}) {
    EXPECT_GT(count, 8);
    EXPECT_LT(count, 52);
  }
}

class VerifyBackward : public testing::Test {
 protected:
  static BackwardCall small_call() {
    for (std::uint64_t seed = 0;; ++seed) {
      BackwardCall call = random_backward(seed, TANDEM_BACKEND_CPU);
      if (call.forward.q.dtype == TANDEM_BF16 && call.forward.q.shape[1] > 1 && call.forward.k.shape[1] > 1 &&
          call.forward.mask.kind == TANDEM_MASK_FULL && !call.dlse.storage.empty())
        return call;
    }
  }

  const BackwardCall call = small_call();
  BackwardOutput output = computed(call);
};

TEST_F(VerifyBackward, AcceptsTheCpuBackend) { EXPECT_EQ(verify(call, output).complaint, ""); }

TEST_F(VerifyBackward, RefusesAWrongElementOfEachGradientByItsName) {
  for (const auto& [name, member] : {std::pair{"dq: ", &BackwardOutput::dq},
                                     {"dk: ", &BackwardOutput::dk},
                                     {"dv: ", &BackwardOutput::dv}}) {
    BackwardOutput wrong = output;
    std::vector<float> values = (wrong.*member).to_dense();
    values.back() += 4;
    (wrong.*member).assign_dense(values);
    EXPECT_THAT(verify(call, wrong).complaint, AllOf(HasSubstr(name), HasSubstr("largest error")));
  }
}

TEST_F(VerifyBackward, RefusesWritesBetweenTheElements) {
  output.dk.storage.front() = std::byte{0};
  EXPECT_THAT(verify(call, output).complaint, HasSubstr("around the rows of dk was written"));
}

TEST_F(VerifyBackward, RefusesGradientsWithoutThatOfLse) {
  BackwardCall without = call;
  without.dlse = {};
  EXPECT_THAT(verify(call, computed(without)).complaint, HasSubstr("dq: "));
}

}  // namespace
}  // namespace tandem::cli
