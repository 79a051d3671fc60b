// The kernel of a tile of queries: dQ without sums in memory, and so with the same bits always. The products
// S and dP are computed a second time for it.
#pragma once

#include "backward/gradients.h"
#include "backward/keys_shared.h"
#include "backward/pingpong.h"

namespace tandem::backward {

template <BackwardVariant V>
struct QueriesShared {
  using QueryTile = tile::SharedTile<tile::warpgroup_rows, V.head_dim>;
  using KeyTile = tile::SharedTile<V.block_n, V.head_dim>;
  /// V has fewer stages where memory is short: a block of it is needed for one product, of K for two.
  static constexpr int v_stages = V.head_dim == 256 ? V.stages - 1 : V.stages;

  QueryTile q[V.consumers], dout[V.consumers];
  KeyTile k[V.stages], v[v_stages];
  tile::Pipeline<1> q_pipeline;  ///< q and dO of all consumers, once
  tile::Pipeline<V.stages> k_pipeline;
  tile::Pipeline<v_stages> v_pipeline;
};

/// What a consumer keeps in registers: of its 64 queries.
template <BackwardVariant V>
struct QueriesState {
  const BackwardArguments& args;
  QueriesShared<V>& shared;
  int consumer;
  int key_begin[2], key_end[2];  ///< keys that the thread's two queries see
  float lse_log2[2], delta[2];
  int step;  ///< of the loop: blocks that are behind
  float dq[V.head_dim / 2];

  TANDEM_DEVICE auto k_at() const { return tile::PipelineState<V.stages>::of(step); }
  TANDEM_DEVICE auto v_at() const { return tile::PipelineState<QueriesShared<V>::v_stages>::of(step); }
};

/// One thread.
template <BackwardVariant V>
TANDEM_DEVICE void produce_for_queries(const BackwardArguments& args, QueriesShared<V>& shared,
                                       const QueryWork& work) {
  using QueryTile = typename QueriesShared<V>::QueryTile;
  using KeyTile = typename QueriesShared<V>::KeyTile;
  tile::PipelineState<V.stages> k_at;
  tile::PipelineState<QueriesShared<V>::v_stages> v_at;
  tile::producer_acquire(shared.q_pipeline, tile::PipelineState<1>{}, 2 * V.consumers * QueryTile::bytes);
  for (int c = 0; c < V.consumers; ++c) {
    const auto origin = query_box<V>(work, work.head, work.first_query + c * tile::warpgroup_rows);
    tile::load_tile(shared.q[c], hw::Panels::whole_ones(args.q), shared.q_pipeline.full[0], origin,
                    hw::CachePolicy::evict_first);
    tile::load_tile(shared.dout[c], hw::Panels::whole_ones(args.dout), shared.q_pipeline.full[0], origin,
                    hw::CachePolicy::evict_first);
  }
  const int kv_head = args.group.divide(work.head).quotient;
  for (int block = work.blocks.begin; block < work.blocks.end; ++block) {
    const auto origin = key_box<V>(work, kv_head, block * V.block_n);
    tile::producer_acquire(shared.k_pipeline, k_at, KeyTile::bytes);
    tile::load_tile(shared.k[k_at.stage], hw::Panels::whole_ones(args.k), shared.k_pipeline.full[k_at.stage],
                    origin, hw::CachePolicy::evict_last);
    tile::producer_acquire(shared.v_pipeline, v_at, KeyTile::bytes);
    tile::load_tile(shared.v[v_at.stage], hw::Panels::whole_ones(args.v), shared.v_pipeline.full[v_at.stage],
                    origin, hw::CachePolicy::evict_last);
    k_at.advance();
    v_at.advance();
  }
}

/// Line 24: scores become P, or with a cap P (1 - t^2): what dS is the product of dP - D with.
template <BackwardVariant V, BlockKind kind>
TANDEM_DEVICE void exponentiate_rows(const QueriesState<V>& state, float (&scores)[V.block_n / 2],
                                     int first_key) {
  const int own_key = first_key + 2 * static_cast<int>(hw::lane_index() % 4);
  TANDEM_UNROLL
  for (int j = 0; j < V.block_n / 2; ++j) {
    const int i = tile::row_of_accumulator(j), key = own_key + tile::column_of_accumulator(j);
    const float t = V.softcap ? hw::tanh(scores[j] * state.args.score_to_cap) : scores[j];
    scores[j] = hw::exp2(hw::fma(t, state.args.scale_log2, -state.lse_log2[i]));
    if constexpr (kind == BlockKind::masked) {
      if (key < state.key_begin[i] || key >= state.key_end[i]) scores[j] = 0.f;
    }
    if constexpr (V.softcap) scores[j] *= hw::fma(-t, t, 1.f);
  }
}

/// Lines 23-25 and 28 of one block of keys, whose scores are there: dQ += dS K; and 21 of the next one,
/// behind the last one the same once more, so that no product stands under a condition.
template <BackwardVariant V, BlockKind kind>
TANDEM_DEVICE void dq_block(QueriesState<V>& state, float (&scores)[V.block_n / 2], int block,
                            bool has_next) {
  QueriesShared<V>& shared = state.shared;
  const Pingpong<V> pingpong{state.consumer};
  tile::Probabilities<V.block_n> ds;
  {
    float dp[V.block_n / 2];
    if constexpr (V.softcap) exponentiate_rows<V, kind>(state, scores, block * V.block_n);  // for registers
    tile::consumer_wait(shared.v_pipeline, state.v_at());
    start_score_product<V.operand>(dp, shared.dout[state.consumer], shared.v[state.v_at().stage]);  // line 23
    pingpong.take();
    if constexpr (!V.softcap) exponentiate_rows<V, kind>(state, scores, block * V.block_n);
    hw::wgmma_wait<0>();
    tile::consumer_release(shared.v_pipeline, state.v_at());
    TANDEM_UNROLL
    for (int j = 0; j < V.block_n / 2; ++j)  // line 25
      scores[j] *= dp[j] - state.delta[tile::row_of_accumulator(j)];
    tile::round_probabilities<V.operand>(ds, scores);
  }
  start_gradient_product<V.operand>(state.dq, ds, shared.k[state.k_at().stage]);  // line 28
  pingpong.pass();
  const auto at = state.k_at();
  if (has_next) {
    ++state.step;
    tile::consumer_wait(shared.k_pipeline, state.k_at());
  }
  start_score_product<V.operand>(scores, shared.q[state.consumer], shared.k[state.k_at().stage]);  // line 21
  hw::wgmma_wait<1>();
  tile::consumer_release(shared.k_pipeline, at);
  hw::wgmma_wait<0>();
}

/// Lines 18-29 for dQ: the loop is over keys here, so that its sums stay in registers.
template <BackwardVariant V>
TANDEM_DEVICE void walk_for_dq(QueriesState<V>& state, const core::BlockRanges& blocks) {
  float scores[V.block_n / 2];
  int left = blocks.end - blocks.begin;
  Pingpong<V>{state.consumer}.init();
  tile::consumer_wait(state.shared.k_pipeline, state.k_at());
  start_score_product<V.operand>(scores, state.shared.q[state.consumer], state.shared.k[0]);  // line 21
  hw::wgmma_wait<0>();
  for_each_block<V>(blocks,
                    [&]<BlockKind kind>(int block) { dq_block<V, kind>(state, scores, block, --left > 0); });
}

template <BackwardVariant V>
TANDEM_DEVICE void consume_for_queries(const BackwardArguments& args, QueriesShared<V>& shared,
                                       const QueryWork& work, int consumer) {
  const Extent extent = extent_of<V>(args, work.sequence);
  const int row = work.first_query + tile::warpgroup_rows * consumer +
                  tile::upper_row(static_cast<int>(hw::warp_index() % 4), static_cast<int>(hw::lane_index()));
  QueriesState<V> state{args, shared, consumer, {}, {}, {}, {}, 0, {}};
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int query = row + 8 * i;
    const auto keys = extent.mask.visible_keys(query, extent.q_len, extent.k_len);
    state.key_begin[i] = keys.begin;
    state.key_end[i] = keys.end;
    const std::int64_t at = statistics_at<V>(extent, work, work.head, 0) + place_of_row(query);
    state.lse_log2[i] = hw::load_global(args.statistics.lse_log2 + at);
    state.delta[i] = hw::load_global(args.statistics.delta + at);
  }
  TANDEM_UNROLL
  for (int i = 0; i < V.head_dim / 2; ++i) state.dq[i] = 0.f;
  tile::consumer_wait(shared.q_pipeline, tile::PipelineState<1>{});
  walk_for_dq(state, work.blocks);
  const int first = V.is_varlen() ? work.sequence.q_begin : 0;
  store_gradient<V.operand>(args.dq, GradientRows{work.batch, work.head, first, row, extent.q_len},
                            extent.head_dim, args.scale, state.dq);
}

template <BackwardVariant V>
TANDEM_DEVICE void init_query_barriers(QueriesShared<V>& shared) {
  if (hw::thread_index() == 0) {
    constexpr std::uint32_t consumer_warps = 4 * V.consumers;
    shared.q_pipeline.init(consumer_warps);
    shared.k_pipeline.init(consumer_warps);
    shared.v_pipeline.init(consumer_warps);
    hw::fence_barrier_init();
  }
  hw::sync_block();
}

/// The body of the kernel. It runs beside the kernel of keys, of which it needs nothing: that one lets it
/// begin when the statistics are there, which both read. What comes behind waits for this one alone. So it
/// has a block more than tiles, which ends when the kernel of keys has ended.
template <BackwardVariant V>
TANDEM_DEVICE void queries_kernel(const BackwardArguments& args) {
  auto& shared = hw::shared_memory<QueriesShared<V>>();
  static_assert(sizeof(shared) <= hw::max_shared_bytes);
  init_query_barriers(shared);
  hw::release_next_grid();
  const auto position = static_cast<int>(hw::block_index());
  if (position >= query_positions<V>(args)) {
    if (position == query_positions<V>(args)) hw::wait_for_prior_grid();
    return;
  }
  const ScheduledTile scheduled = query_tile<V>(args, position);
  if (!scheduled.tile.exists()) return;
  const QueryWork work = query_work<V>(args, scheduled);

  const int warpgroup = static_cast<int>(hw::warpgroup_index());
  if (warpgroup == 0) {
    hw::set_role("producer");
    hw::release_registers<V.producer_registers>();
    if (hw::warp_index() == 0 && hw::elect_one()) produce_for_queries<V>(args, shared, work);
  } else {
    hw::set_role("consumer");
    hw::acquire_registers<V.consumer_registers>();
    consume_for_queries<V>(args, shared, work, warpgroup - 1);
  }
}

}  // namespace tandem::backward
