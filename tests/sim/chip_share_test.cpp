// How a step of few queries and the forward share the chip: what the kernel ahead of both decides, on the
// software Hopper, against a plain model of the same in float64.
#include "forward/chip_share.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <gtest/gtest.h>
#include <vector>

#include "api/hopper_mixed.h"
#include "apps/sim/mixed_sim.h"
#include "apps/sim/simulate.h"
#include "tests/sim/workspace.h"
#include "tests/support/forward_case.h"
#include "tests/support/varlen_case.h"

namespace tandem {
namespace {

using test::KeyLayout;
using test::VarlenCase;
using test::VarlenTensors;

constexpr int chip = 132;

/// Prompts, and decoded tokens, over one pool of keys. Entries lie on one another: their bytes are not read.
struct Batch {
  std::vector<std::int64_t> q_lens, k_lens;
  std::int64_t q_heads = 8, kv_heads = 2;
};

/// What the device says, and what it was told.
struct Shared {
  int step_blocks, forward_blocks;
  forward::ChipShare share;
  int all_step_blocks, tile_queries, packs;
};

Shared shared_between(const Batch& batch) {
  VarlenCase c;
  c.q_lens = batch.q_lens, c.k_lens.assign(batch.q_lens.size(), 1);
  c.keys = KeyLayout::entries;
  c.q_heads = batch.q_heads, c.kv_heads = batch.kv_heads;
  c.mask = core::Mask::causal();
  VarlenTensors tensors(c);
  std::copy(batch.k_lens.begin(), batch.k_lens.end(), tensors.seqused_k.begin());
  core::ForwardProblem problem = tensors.problem();
  const std::int64_t longest = *std::ranges::max_element(batch.k_lens);
  for (core::Tensor* keys : {&problem.k, &problem.v}) keys->shape[1] = longest, keys->stride[0] = 0;
  problem.varlen.max_seqlen_k = longest;
  problem.varlen.max_seqlen_q =
      std::max<std::int64_t>(64, problem.varlen.max_seqlen_q);  // there may be prompts
  const auto few = api::few_queries_of(problem);
  test::Workspace memory;
  const std::span<std::byte> workspace = memory.of(api::mixed_workspace_bytes(problem, *few));
  api::MixedLaunches all = api::launches_of(problem, *few, chip, workspace.data());
  const forward::ListArguments args = all.list.arguments;
  const int step_blocks = all.step.blocks;
  // Without buffers: keys that are longer than their memory would be among them.
  const hw::sim::Report report = sim::simulate(std::move(all.list), {}, {});
  EXPECT_TRUE(report.ok()) << report.text();
  return {args.few.list[1], args.forward.varlen.tile_list[1], args.few.share,
          step_blocks,      args.tile_queries.value(),        args.forward.varlen.packs};
}

/// The same numbers from every tile, and from every share.
struct Model {
  double tiles = 0, tiles_us = 0, longest_us = 0, step_us = 0;
  const Shared& shared;

  Model(const Batch& batch, const Shared& s) : shared(s) {
    const std::int64_t few = core::few_queries(batch.q_heads / batch.kv_heads);
    for (std::size_t i = 0; i < batch.q_lens.size(); ++i) {
      const std::int64_t q = batch.q_lens[i], k = batch.k_lens[i];
      if (q == 0) continue;
      if (q <= few) {
        step_us += s.share.listed_us + s.share.listed_key_us * static_cast<double>(k);
        continue;
      }
      for (std::int64_t first = 0; first < q; first += s.tile_queries) {
        const std::int64_t past = std::min(q, first + s.tile_queries);
        const double us =
            s.share.tile_us + s.share.key_us * static_cast<double>(std::max<std::int64_t>(0, k - q + past));
        tiles += s.packs, tiles_us += s.packs * us, longest_us = std::max(longest_us, us);
      }
    }
  }
  double spread() const { return std::min(1., 2 - 2 * tiles_us / tiles / longest_us); }
  double forward_us(int blocks) const {
    const double rounds = tiles / blocks;
    return std::max(longest_us, (rounds + (std::ceil(rounds) - rounds) * (1 - spread())) * tiles_us / tiles);
  }
  /// Of blocks that take equal tiles one after another, the first of them at once, all from `later` on.
  double equal_tiles_us(int at_once, int all, double later) const {
    std::vector<double> free(static_cast<std::size_t>(all), later);
    std::fill_n(free.begin(), at_once, 0.);
    double end = 0;
    for (int i = 0; i < static_cast<int>(tiles); ++i) {
      double& first = *std::ranges::min_element(free);
      first += tiles_us / tiles, end = std::max(end, first);
    }
    return end;
  }
  double us_with(int blocks) const {
    const double part = static_cast<double>(blocks) / chip;
    const double rate =
        std::min(part * shared.share.speed_of_few, forward::saturated + (1 - forward::saturated) * part);
    const double step = forward::step_begin_us + step_us / chip / rate;
    const int all = shared.share.forward_blocks;
    const int at_once = std::min((chip - blocks) * shared.share.resident, all);
    const double alone = forward_us(at_once);
    if (alone <= step) return step;
    const double filled = step + (tiles_us - at_once * step) / all;
    const double joined =
        filled * spread() + std::max(filled, equal_tiles_us(at_once, all, step)) * (1 - spread());
    return std::max(step, std::min(alone, joined));
  }
  double us_in_turn() const {
    return forward::step_begin_us + forward::turn_us + step_us / chip +
           forward_us(shared.share.forward_blocks);
  }
  double least_us() const {
    double least = us_in_turn();
    for (int blocks = shared.share.team_blocks; blocks <= shared.all_step_blocks && blocks < chip;
         blocks += shared.share.team_blocks)
      least = std::min(least, us_with(blocks));
    return least;
  }
};

TEST(ChipShare, TakesAboutAsLongAsTheBestShareOfAPlainModel) {
  int side_by_side = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    test::Random random(seed);
    Batch batch;
    const auto up_to = [&](std::uint64_t most) { return 1 + static_cast<std::int64_t>(random() % most); };
    batch.kv_heads = std::int64_t{1} << random() % 4, batch.q_heads = 4 * batch.kv_heads;
    for (std::int64_t i = up_to(4); i > 0; --i) {
      const std::int64_t queries = 16 + up_to(2000);
      batch.q_lens.push_back(queries), batch.k_lens.push_back(queries + (random() % 2) * up_to(8000));
    }
    for (std::int64_t i = up_to(70); i > 0; --i)
      batch.q_lens.push_back(up_to(8)), batch.k_lens.push_back(8 + up_to(random() % 2 ? 20'000 : 500));
    const Shared shared = shared_between(batch);
    const Model model(batch, shared);
    const bool in_turn = shared.step_blocks == shared.all_step_blocks && shared.forward_blocks == 0;
    const double us = in_turn ? model.us_in_turn() : model.us_with(shared.step_blocks);
    EXPECT_LE(us, 1.03 * model.least_us()) << "seed " << seed << ": " << shared.step_blocks << " blocks";
    EXPECT_EQ(shared.step_blocks % shared.share.team_blocks, 0) << "seed " << seed;
    if (in_turn) continue;
    ++side_by_side;
    EXPECT_EQ(shared.forward_blocks,
              std::min((chip - shared.step_blocks) * shared.share.resident, shared.share.forward_blocks))
        << "seed " << seed;
  }
  EXPECT_GT(side_by_side, 20);
}

TEST(ChipShare, WhoIsAloneHasTheWholeChip) {
  const Shared prompts = shared_between({{300, 0, 70}, {300, 50, 900}});
  EXPECT_EQ(prompts.forward_blocks, prompts.share.forward_blocks);
  const Shared step = shared_between({{1, 8, 0, 1}, {300, 4000, 10, 2000}});
  EXPECT_EQ(step.step_blocks, step.all_step_blocks);
}

// Who has little to read is done early beside as few as keep up with the tiles, and with the whole chip.
TEST(ChipShare, ALongStepHasMostOfTheChipBesideTiles) {
  for (const std::int64_t keys : {4000, 20'000}) {
    const Shared shared = shared_between(
        {{2000, 1, 1, 1, 1, 1, 1, 1, 1}, {2000, keys, keys, keys, keys, keys, keys, keys, keys}});
    EXPECT_GE(shared.step_blocks, chip / 3) << keys;
    EXPECT_LT(shared.step_blocks, chip) << keys;
    EXPECT_GT(shared.forward_blocks, 0) << keys;
  }
}

}  // namespace
}  // namespace tandem
