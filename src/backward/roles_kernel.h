// The kernel of a tile of keys of wide heads: a warpgroup computes dV, the other dK, of the same 64 keys, for
// the registers of both gradients of 64 keys are more than a warpgroup has. P goes from the first to the
// second through shared memory. dQ is another kernel's.
#pragma once

#include "backward/group_splits.h"
#include "backward/keys_producer.h"

namespace tandem::backward {

/// P, or with a cap P (1 - t^2), as the threads of either warpgroup hold it as accumulators: four of each
/// thread after four of each. fp32, for dS is rounded too, and both roundings would show.
template <int queries>
struct alignas(128) ProbabilitiesStage {
  AccumulatorQuad quad[queries / 8][hw::warpgroup_size];
};

template <BackwardVariant V>
struct RolesShared : KeysShared<V> {
  static constexpr int p_stages = V.stages;
  ProbabilitiesStage<V.block_m> p[p_stages];
  tile::Handover<p_stages> p_pipeline;
};

/// What both roles keep: where they stand, and one of the gradients.
template <BackwardVariant V>
struct RoleState {
  const BackwardArguments& args;
  RolesShared<V>& shared;
  KeyLimits limits;
  int step;  ///< of the loop: blocks that are behind
  float gradient[V.head_dim / 2];

  /// In the pipelines of Q, dO and P.
  TANDEM_DEVICE tile::PipelineState<V.stages> at() const { return tile::PipelineState<V.stages>::of(step); }
};

/// P, or its factor of dS, for the other role.
template <BackwardVariant V>
TANDEM_DEVICE void share_p(RoleState<V>& state, const float (&scores)[V.block_m / 2]) {
  auto& stage = state.shared.p[state.at().stage];
  const auto thread = hw::thread_index() % hw::warpgroup_size;
  state.shared.p_pipeline.wait_emptied(state.at());
  TANDEM_UNROLL
  for (int q = 0; q < V.block_m / 8; ++q) stage.quad[q][thread] = AccumulatorQuad::of(scores, q);
  state.shared.p_pipeline.fill(state.at());
}

/// The role of dV, of a block whose scores are there: lines 24 and 26, and 21 of the next block; behind
/// the last one the same scores once more, so that no product stands under a condition.
template <BackwardVariant V, BlockKind kind>
TANDEM_DEVICE void dv_block(RoleState<V>& state, float (&scores)[V.block_m / 2], int block, bool has_next) {
  RolesShared<V>& shared = state.shared;
  tile::Probabilities<V.block_m> p;
  exponentiate<V, kind, V.block_m>(state.args, state.limits, block * V.block_m,
                                   BlockStatistics<0>::load(shared.lse_log2[state.at().stage].value), scores,
                                   p);  // line 24
  share_p(state, scores);
  const auto at = state.at();
  release_read_stage(shared.q_pipeline, at);
  tile::consumer_wait(shared.dout_pipeline, at);
  start_gradient_product<V.operand>(state.gradient, p, shared.dout[at.stage]);  // line 26
  if (has_next) {
    ++state.step;
    tile::consumer_wait(shared.q_pipeline, state.at());
  }
  start_score_product<V.operand>(scores, shared.k[0], shared.q[state.at().stage]);  // line 21
  hw::wgmma_wait<1>();
  release_read_stage(shared.dout_pipeline, at);
  hw::wgmma_wait<0>();
}

/// The role of dK, of a block whose dP is there: lines 25 and 27, and 23 of the next block.
template <BackwardVariant V>
TANDEM_DEVICE void dk_block(RoleState<V>& state, float (&dp)[V.block_m / 2], bool has_next) {
  RolesShared<V>& shared = state.shared;
  tile::Probabilities<V.block_m> ds;
  const auto at = state.at();
  const float* delta = shared.delta[at.stage].value;
  const auto& p = shared.p[at.stage];
  const auto thread = hw::thread_index() % hw::warpgroup_size;
  shared.p_pipeline.wait_filled(at);
  TANDEM_UNROLL
  for (int g = 0; g < V.block_m / tile::k_step; ++g) {  // line 25
    const FourQueries d = FourQueries::load(delta + g * statistics_group);
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      const AccumulatorQuad quad = p.quad[2 * g + half][thread];
      TANDEM_UNROLL
      for (int r = 0; r < 2; ++r) {
        const int j = 8 * g + 4 * half + 2 * r;
        ds.fragment[g][2 * half + r] = hw::pack<V.operand>(quad.value[2 * r] * (dp[j] - d.of(j)),
                                                           quad.value[2 * r + 1] * (dp[j + 1] - d.of(j + 1)));
      }
    }
  }
  shared.p_pipeline.release(at);
  release_read_stage(shared.dout_pipeline, at);
  tile::consumer_wait(shared.q_pipeline, at);
  start_gradient_product<V.operand>(state.gradient, ds, shared.q[at.stage]);  // line 27
  if (has_next) {
    ++state.step;
    tile::consumer_wait(shared.dout_pipeline, state.at());
  }
  start_score_product<V.operand>(dp, shared.v[0], shared.dout[state.at().stage]);  // line 23
  hw::wgmma_wait<1>();
  release_read_stage(shared.q_pipeline, at);
  hw::wgmma_wait<0>();
}

/// Lines 16-29 for dV.
template <BackwardVariant V>
TANDEM_DEVICE void walk_for_dv(RoleState<V>& state, const KeyWork& work) {
  const int visits = work.end_step;
  int visit = 0;
  float scores[V.block_m / 2];
  tile::consumer_wait(state.shared.k_pipeline, tile::PipelineState<1>{});        // line 17
  tile::consumer_wait(state.shared.q_pipeline, state.at());                      // line 19
  start_score_product<V.operand>(scores, state.shared.k[0], state.shared.q[0]);  // line 21
  hw::wgmma_wait<0>();
  for_each_visit<V>(work, state.args.group, visit, [&]<BlockKind kind>(int block) {
    dv_block<V, kind>(state, scores, block, ++visit < visits);
  });
}

/// Lines 16-29 for dK.
template <BackwardVariant V>
TANDEM_DEVICE void walk_for_dk(RoleState<V>& state, const KeyWork& work) {
  float dp[V.block_m / 2];
  tile::consumer_wait(state.shared.v_pipeline, tile::PipelineState<1>{});       // line 17
  tile::consumer_wait(state.shared.dout_pipeline, state.at());                  // line 22
  start_score_product<V.operand>(dp, state.shared.v[0], state.shared.dout[0]);  // line 23
  hw::wgmma_wait<0>();
  for (int left = work.end_step; left > 0; --left) dk_block(state, dp, left > 1);
}

template <BackwardVariant V>
TANDEM_DEVICE void consume_in_role(const BackwardArguments& args, RolesShared<V>& shared, const KeyWork& work,
                                   bool role_of_dv) {
  const int own_key = work.first_key + tile::upper_row(static_cast<int>(hw::warp_index() % 4),
                                                       static_cast<int>(hw::lane_index()));
  RoleState<V> state{args, shared, KeyLimits::of(extent_of<V>(args, work.sequence), own_key), 0, {}};
  TANDEM_UNROLL
  for (int i = 0; i < V.head_dim / 2; ++i) state.gradient[i] = 0.f;  // line 16
  const auto [first, length] = rows_of_keys<V>(args, work);
  const GradientRows rows{work.batch, work.kv_head, first, own_key, length};
  if (role_of_dv) {
    walk_for_dv(state, work);
  } else {
    walk_for_dk(state, work);
  }
  hand_over<V>(args, role_of_dv ? args.dv : args.dk, rows, role_of_dv ? 1.f : args.scale, state.gradient);
}

template <BackwardVariant V>
TANDEM_DEVICE void init_role_barriers(RolesShared<V>& shared) {
  if (hw::thread_index() == 0) {
    constexpr std::uint32_t warps = 4, consumer_warps = warps * V.consumers;
    shared.k_pipeline.init(warps);
    shared.v_pipeline.init(warps);
    shared.q_pipeline.init(consumer_warps);
    shared.dout_pipeline.init(consumer_warps);
    shared.p_pipeline.init(warps, warps);
    hw::fence_barrier_init();
  }
  hw::sync_block();
}

/// What the block works on, if anything.
template <BackwardVariant V>
TANDEM_DEVICE KeyWork work_of_block(const BackwardArguments& args) {
  KeyWork none{};
  none.tile = KeyWork::none;
  const auto position = static_cast<int>(hw::block_index());
  if (position >= key_positions<V>(args)) return none;
  const ScheduledTile scheduled = key_tile<V>(args, position);
  return scheduled.tile.exists() ? key_work<V>(args, scheduled) : none;
}

/// Behind it the block may read what the grids before have written. Fixed lengths are arguments: so what it
/// works on is found while these end.
template <BackwardVariant V>
TANDEM_DEVICE KeyWork find_work_and_wait(const BackwardArguments& args) {
  if constexpr (V.is_varlen()) {
    hw::wait_for_prior_grid();
    return work_of_block<V>(args);
  } else {
    const KeyWork work = work_of_block<V>(args);
    hw::wait_for_prior_grid();
    return work;
  }
}

/// The body of the kernel.
template <BackwardVariant V>
TANDEM_DEVICE void roles_kernel(const BackwardArguments& args) {
  auto& shared = hw::shared_memory<RolesShared<V>>();
  static_assert(sizeof(shared) <= hw::max_shared_bytes && V.block_n == tile::warpgroup_rows);
  init_role_barriers(shared);
  prefetch_maps(args);
  const KeyWork work = find_work_and_wait<V>(args);
  hw::release_next_grid();  // not ahead of that: it may run beside this one, and waits for nobody
                            // (queries_kernel.h)
  if (work.tile == KeyWork::none) return;

  const int warpgroup = static_cast<int>(hw::warpgroup_index());
  if (warpgroup == 0) {
    hw::set_role("producer");
    hw::release_registers<V.producer_registers>();
    if (hw::warp_index() == 0 && hw::elect_one())
      KeysProducer<V, RolesShared<V>>{args, shared}.produce_tile(work, [] {});
  } else {
    hw::set_role(warpgroup == 1 ? "dV" : "dK");
    hw::acquire_registers<V.consumer_registers>();
    consume_in_role<V>(args, shared, work, warpgroup == 1);
  }
}

}  // namespace tandem::backward
