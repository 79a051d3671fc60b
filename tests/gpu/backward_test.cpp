// The Hopper backward against the oracle: every compiled variant, random problems, the same bits every time.
#include <algorithm>
#include <gtest/gtest.h>
#include <sstream>
#include <string>
#include <vector>

#include "backward/launch.h"
#include "tests/gpu/device_backward.h"

namespace tandem::test {
namespace {

using backward::BackwardVariant;

/// Cheap enough for the oracle on the CPU.
void limit_work(ForwardCase& f) {
  const auto work = [&] { return f.batch * f.q_heads * f.q_len * f.k_len * f.head_dim; };
  constexpr std::int64_t limit = 12'000'000;
  if (work() > limit) f.batch = 1;
  if (work() > limit) f.q_heads = f.kv_heads;
  if (work() > limit) f.q_heads = f.kv_heads = 1;
}

/// A problem for the choice that dtype, head dim and cap lead to.
BackwardCase random_case(std::uint64_t seed) {
  BackwardCase c = random_tma_backward_case(seed, seed % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16, 420);
  limit_work(c.forward);
  return c;
}

/// One that the variant serves.
BackwardCase case_for(const BackwardVariant& variant, std::uint64_t seed) {
  BackwardCase c = random_case(seed);
  ForwardCase& f = c.forward;
  f.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  f.head_dim = variant.head_dim - (seed % 4 == 0 ? 8 : 0);
  f.softcap = variant.softcap ? 5.f : 0.f;
  limit_work(f);
  return c;
}

std::string described(const BackwardCase& c, const std::string& failure) {
  std::ostringstream out;
  if (!failure.empty()) out << c << ": " << failure;
  return out.str();
}

TEST_F(HopperBackward, RandomProblemsMatchTheOracle) {
  // Another seed: --gtest_random_seed.
  const auto first = static_cast<std::uint64_t>(GTEST_FLAG_GET(random_seed)) * 1000 + 1;
  EXPECT_EQ(failures_among(200,
                           [&](int i) {
                             const BackwardCase c = random_case(first + static_cast<std::uint64_t>(i));
                             return described(c, failure_of(c, backward::choose(shapes_of(c))));
                           }),
            "");
}

class EveryBackwardVariant : public HopperBackward, public testing::WithParamInterface<BackwardVariant> {};

INSTANTIATE_TEST_SUITE_P(Built, EveryBackwardVariant, testing::ValuesIn(backward::all_variants()),
                         backward_variant_name);

TEST_P(EveryBackwardVariant, MatchesTheOracle) {
  EXPECT_EQ(failures_among(6,
                           [&](int i) {
                             const BackwardCase c = case_for(GetParam(), static_cast<std::uint64_t>(i) + 1);
                             return described(c, failure_of(c, backward::choice_with(GetParam())));
                           }),
            "");
}

/// Lengths of several tiles of every kernel, which do not fill the last.
BackwardCase long_case(std::int64_t head_dim) {
  BackwardCase c;
  c.sinks = true;
  c.forward.q_heads = 2;
  c.forward.q_len = 700, c.forward.k_len = 900, c.forward.head_dim = head_dim;
  c.forward.mask = core::Mask::causal();
  return c;
}

TEST_F(HopperBackward, ResultsAreTheSameBitsUnderLoad) {
  constexpr int runs = 1000;
  for (const std::int64_t head_dim : {64, 96, 128, 192, 256}) {
    const BackwardCase c = long_case(head_dim);
    const BackwardTensors tensors(c);
    const DeviceBackward device(tensors, backward::choose(tensors.problem()));
    const DeviceBackward load(tensors, backward::choose(tensors.problem()));
    const Stream stream, other;
    device.run(stream.get());
    stream.wait();
    const std::vector<std::byte> first = device.output_bytes();
    int different = 0;
    for (int i = 1; i < runs; ++i) {
      if (i % 3 != 0) load.run(other.get());
      device.run(stream.get());
      stream.wait();
      different += device.output_bytes() != first;
    }
    EXPECT_EQ(different, 0) << "of " << runs << " runs at head dim " << head_dim;
  }
}

/// More heads than the ring of sums has room for.
BackwardCase case_of_many_heads(std::int64_t head_dim, const core::Mask& mask) {
  BackwardCase c;
  c.forward.batch = 4, c.forward.q_heads = c.forward.kv_heads = 16;
  c.forward.q_len = 300, c.forward.k_len = 1000, c.forward.head_dim = head_dim;
  c.forward.mask = mask;
  return c;
}

int heads_of_ring(const BackwardCase& c, const backward::Choice& choice) {
  return backward::ring_plan(backward::crop(shapes_of(c)), choice).heads;
}

TEST_F(HopperBackward, HeadsWhoseSumsTakeTurnsInTheRingMatchTheOracle) {
  static constexpr std::int64_t head_dims[] = {64, 96, 128};
  const core::Mask masks[] = {core::Mask::full(), core::Mask::causal(), core::Mask{900, 20}};
  EXPECT_EQ(failures_among(9,
                           [&](int i) {
                             const BackwardCase c = case_of_many_heads(head_dims[i % 3], masks[i / 3]);
                             const backward::Choice choice = backward::choose(shapes_of(c));
                             EXPECT_LT(heads_of_ring(c, choice), 4 * 16);
                             return described(c, failure_of(c, choice));
                           }),
            "");
}

TEST_F(HopperBackward, SectionsOfHeadsThatOverlapMatchTheOracle) {
  for (const std::int64_t head_dim : {64, 96, 128}) {
    BackwardCase c = case_of_many_heads(head_dim, core::Mask::causal());
    c.forward.batch = 6;  // of so many tiles that they overlap
    backward::Choice choice = backward::choose(shapes_of(c));
    choice.cached_bytes = 1;  // so a head is a section
    EXPECT_LT(heads_of_ring(c, choice), 6 * 16);
    EXPECT_EQ(described(c, failure_of(c, choice)), "");
  }
}

TEST_F(HopperBackward, SplitsOfAGroupMatchTheOracle) {
  static constexpr std::int64_t head_dims[] = {64, 96, 128, 192, 256};
  static constexpr int splits[] = {2, 4, 8};
  EXPECT_EQ(failures_among(15,
                           [&](int i) {
                             BackwardCase c;
                             c.forward.head_dim = head_dims[i % 5], c.forward.q_heads = 8;
                             c.forward.q_len = 150 + 40 * (i % 4), c.forward.k_len = 333;
                             c.forward.mask = i % 2 == 0 ? core::Mask::causal() : core::Mask{250, 10};
                             c.forward.softcap = i % 3 == 0 ? 8.f : 0.f;
                             backward::Choice choice = backward::choose(shapes_of(c));
                             choice.splits = splits[i / 5];
                             return described(c, failure_of(c, choice));
                           }),
            "");
}

TEST_F(HopperBackward, SumsAreOfTheHeadsThatAreWorkedOnTogether) {
  const BackwardCase c = case_of_many_heads(128, core::Mask::full());
  constexpr std::size_t heads = 4 * 16, rows = 384, statistics = heads * rows * 8;
  EXPECT_LT(backward::workspace_bytes(shapes_of(c)), statistics + heads * rows * 128 * 4 * 3 / 4);
}

}  // namespace
}  // namespace tandem::test
