// Calls of variable lengths with fixed splits, on the software Hopper: the bits of a sequence's result are
// the same alone, in any batch, in any order and with any bounds.
#include <algorithm>
#include <gtest/gtest.h>
#include <numeric>
#include <ostream>
#include <utility>
#include <vector>

#include "api/hopper_mixed.h"
#include "api/validate.h"
#include "apps/sim/decode_sim.h"
#include "apps/sim/forward_sim.h"
#include "apps/sim/mixed_sim.h"
#include "forward/plan.h"
#include "tests/sim/coverage.h"
#include "tests/sim/mixed_draws.h"
#include "tests/sim/simulated_forward.h"
#include "tests/sim/workspace.h"
#include "tests/support/forward_case.h"
#include "tests/support/varlen_batch.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using decode::DecodeVariant;
using test::KeyLayout;
using test::Random;
using test::VarlenCase;
using test::VarlenTensors;

/// As a caller says them; 0: not known.
struct Bounds {
  std::int64_t queries = 0, keys = 0;
};

/// As the Hopper backend runs a call.
void run(const VarlenTensors& tensors, const Bounds& bounds, const sim::Machine& machine) {
  test::VarlenCall call(tensors.problem(), test::to_c(tensors.setup.mask), TANDEM_BACKEND_HOPPER);
  call.varlen.max_seqlen_q = bounds.queries, call.varlen.max_seqlen_k = bounds.keys;
  core::ForwardProblem given;
  const core::Status status = api::validate(&call.args, true, &given);
  ASSERT_TRUE(status.ok()) << status.message();
  const core::ForwardProblem problem = forward::for_kernels(given);
  const auto few = api::few_queries_of(problem);
  ASSERT_NE(forward::choose_variant(problem), nullptr);
  test::Workspace memory;
  const auto report =
      few ? sim::simulate_mixed(problem, *few, memory.of(api::mixed_workspace_bytes(problem, *few)), machine)
          : sim::simulate_forward(problem, *forward::choose_variant(problem), machine);
  ASSERT_TRUE(report.ok()) << report.text();
}

/// Not known, exact, or too large.
std::int64_t draw_bound(Random& random, const std::vector<std::int64_t>& lengths) {
  const std::int64_t longest = std::max<std::int64_t>(1, std::ranges::max(lengths));
  const std::int64_t bounds[] = {0, longest, longest + 1 + static_cast<std::int64_t>(random() % 400)};
  return bounds[random() % 3];
}
Bounds draw_bounds(Random& random, const VarlenCase& c) {
  // Where queries have entries, their number is that of each sequence.
  return {c.q_packed ? draw_bound(random, c.q_lens) : 0, draw_bound(random, c.k_lens)};
}

/// What the forward's body serves alone.
void draw_biases(Random& random, VarlenCase& c) {
  if (random() % 4 != 0) return;
  c.slopes = random() % 2 == 0, c.slopes_by_sequence = random() % 2 == 0, c.tree = random() % 2 == 0;
  if (random() % 2 == 0) c.mask.chunk = 1 + static_cast<std::int64_t>(random() % 200);
}

/// Of the variant's operands and its head dim, or one that it pads.
VarlenCase draw_batch(const DecodeVariant& variant, std::uint64_t seed) {
  Random random(seed);
  VarlenCase c = test::draw_varlen_case(random, {64, 64});
  c.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = variant.head_dim;
  if (random() % 2 == 0)
    c.head_dim -= 8 * static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(variant.head_dim / 16));
  const std::int64_t group = std::int64_t{1} << random() % 4;
  c.q_heads = c.kv_heads * group;
  c.q_lens.clear(), c.k_lens.clear(), c.new_lens.clear(), c.padding.clear();
  c.batch_index = false, c.new_packed = true;
  c.split_size = std::int64_t{64} << random() % 3;
  for (std::uint64_t i = 0, count = 2 + random() % 4; i < count; ++i) {
    c.q_lens.push_back(test::draw_queries(random, core::few_queries(group), c.q_packed ? 1000 : 8));
    c.k_lens.push_back(test::draw_keys(random, 128));
  }
  const bool appends = c.keys != KeyLayout::packed && random() % 2 == 0;
  for (std::size_t i = 0; appends && i < c.q_lens.size(); ++i)
    c.new_lens.push_back(std::min(c.q_lens[i], c.k_lens[i]));
  // A window may be as wide as some sequences are long.
  if (random() % 3 == 0) c.mask = {c.k_lens[random() % c.k_lens.size()], 0};
  c.mask.chunk = 0, c.slopes = c.tree = false;
  if (variant.head_dim <= 128) draw_biases(random, c);  // wider kernels know no chunks and trees
  if (random() % 3 == 0) c.softcap = 1.f + static_cast<float>(random() % 30);
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  return c;
}

/// A batch, and some of its sequences in other batches.
struct Batch {
  VarlenCase c;
  std::uint64_t seed;

  void check(const sim::Machine& machine) const {
    Random random(seed);
    const VarlenTensors all(c);
    const Bounds bounds = draw_bounds(random, all.setup);
    ASSERT_NO_FATAL_FAILURE(run(all, bounds, machine));
    const test::VarlenValues values = test::varlen_values(all);
    EXPECT_TRUE(
        test::within_tolerance(values.result.o, values.standard.o, values.reference.o, all.setup.dtype));
    for (int i = 0; i < 3 && !testing::Test::HasFailure(); ++i) {
      std::vector<std::size_t> which(c.q_lens.size());
      std::iota(which.begin(), which.end(), std::size_t{0});
      std::shuffle(which.begin(), which.end(), random);
      if (i == 1) {  // no prompts: those of few queries have other tiles then
        std::erase_if(which, [this](std::size_t s) { return c.q_lens[s] > few(); });
        if (which.empty()) continue;
      } else {
        which.resize(i == 0 ? 1 : 1 + random() % which.size());
      }
      check_in_another(all, which, random, machine);
    }
  }

  friend std::ostream& operator<<(std::ostream& out, const Batch& batch) { return out << batch.c; }

 private:
  std::int64_t few() const { return core::few_queries(c.q_heads / c.kv_heads); }

  static void check_in_another(const VarlenTensors& all, const std::vector<std::size_t>& which,
                               Random& random, sim::Machine machine) {
    const VarlenTensors some = test::sequences_of(all, which);
    const Bounds bounds = draw_bounds(random, some.setup);
    machine.multiprocessors = 1 + static_cast<int>(random() % 5);
    SCOPED_TRACE(testing::Message() << some.setup << "\nbounds " << bounds.queries << ", " << bounds.keys
                                    << ", multiprocessors " << machine.multiprocessors);
    ASSERT_NO_FATAL_FAILURE(run(some, bounds, machine));
    for (std::size_t j = 0; j < which.size(); ++j)
      EXPECT_TRUE(test::bits_of(some, j) == test::bits_of(all, which[j])) << "sequence " << which[j];
  }
};

class MixedBitsOnSim : public testing::TestWithParam<DecodeVariant> {};

INSTANTIATE_TEST_SUITE_P(Variants, MixedBitsOnSim, testing::ValuesIn(test::listing_variants()),
                         test::test_name<DecodeVariant>);

TEST_P(MixedBitsOnSim, OfASequenceAreTheSameAloneInAnyBatchAndWithAnyBounds) {
  test::for_each_run("sim_mixed_test --gtest_filter=Variants/MixedBitsOnSim", 5, [](std::uint64_t seed) {
    return Batch{draw_batch(GetParam(), seed), seed};
  });
}

// Of many more than one run of the test has.
TEST(MixedBitsDraws, HaveEveryFeature) {
  constexpr std::uint64_t draws = 60;
  test::Coverage coverage;
  for (const DecodeVariant& variant : test::listing_variants())
    for (std::uint64_t seed = 1; seed <= draws; ++seed) {
      const VarlenCase c = draw_batch(variant, seed);
      const std::int64_t few = core::few_queries(c.q_heads / c.kv_heads);
      const bool decodes = c.mask.chunk == 0 && !c.slopes && !c.tree;
      const auto count = [&](const char* what, bool is) { coverage.count(sim::name_of(variant), what, is); };
      bool parts = false, prompts = false;
      for (std::size_t i = 0; i < c.q_lens.size(); ++i) {
        parts = parts || (decodes && c.q_lens[i] > 0 && c.q_lens[i] <= few && c.k_lens[i] > c.split_size);
        prompts = prompts || c.q_lens[i] > few;
      }
      count("few queries on several parts", parts), count("parts beside prompts", parts && prompts);
      count("keys packed", c.keys == KeyLayout::packed),
          count("keys in entries", c.keys == KeyLayout::entries);
      count("keys in pages", c.keys == KeyLayout::paged), count("queries in entries", !c.q_packed);
      count("a window", c.mask.left != core::Mask::unlimited);
      count("sinks", c.sinks), count("lse", c.lse);
      count("softcap", c.softcap > 0), count("appended", c.appends()), count("rotated", c.rotary_dim > 0);
      if (variant.head_dim > 128) continue;
      count("chunks", c.mask.chunk > 0), count("slopes", c.slopes), count("a tree", c.tree);
    }
  EXPECT_EQ(coverage.missing(), "");
}

}  // namespace
}  // namespace tandem
