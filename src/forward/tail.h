// The last block of V of a sequence: rows behind the last key are cleared.
//
// Probabilities there are 0, but the rows may hold NaN, and 0 * NaN is NaN. Where all sequences have the
// tensor's length TMA fills with zeros; behind a shorter one there are other sequences' rows, or nobody's. So
// such a block lands at a barrier of its own; a warp of the producer clears the rows and makes the stage
// full.
#pragma once

#include "forward/shared_storage.h"
#include "forward/work.h"

namespace tandem::forward {

/// Whether a block of keys reaches beyond the sequence's last.
template <ForwardVariant V>
TANDEM_DEVICE bool has_tail(int block, int k_len) {
  return (block + 1) * V.block_n > k_len;
}

/// Warp: clears the rows of a stage from `first` on.
template <int rows, int columns>
TANDEM_DEVICE void clear_rows(tile::SharedTile<rows, columns>& tile, int first) {
  constexpr int chunks = tile::SharedTile<rows, columns>::panels * tile::panel_columns / tile::chunk_columns;
  const int lane = static_cast<int>(hw::lane_index());
  for (int i = first * chunks + lane; i < rows * chunks; i += hw::warp_size) {
    tile.chunk(i / chunks, i % chunks * tile::chunk_columns) = tile::Chunk{};
  }
}

/// Warp: goes over the loops of the block's tiles as the producer does.
template <ForwardVariant V>
TANDEM_DEVICE void clear_tails(const ForwardArguments& args, ForwardShared<V>& shared) {
  tile::PipelineState<V.kv_stages> v_at;
  std::uint32_t parities = 0;  // a bit for each stage's barrier
  for_each_tile<V>(args, [&](const Work& work, int k_len) {
    shared.queue.ask();
    for (int i = 0; i < work.loop.count; ++i, v_at.advance()) {
      const int block = key_block<V>(args, work.loop, i);
      if (!has_tail<V>(block, k_len)) continue;
      hw::barrier_wait(shared.tail.landed[v_at.stage], parities >> v_at.stage & 1u);
      parities ^= 1u << v_at.stage;
      // Of wild lists a block may begin behind the last key.
      const int first = k_len - block * V.block_n;
      clear_rows(shared.v[v_at.stage], V.block_sparse ? core::clamp(first, 0, V.block_n) : first);
      hw::fence_async_proxy();
      hw::sync_warp();
      if (hw::lane_index() == 0) hw::barrier_arrive(shared.v_pipeline.full[v_at.stage]);
    }
  });
}

}  // namespace tandem::forward
