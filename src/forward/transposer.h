// The transposition of V in the kernel: 8-bit products read keys along rows, and V comes with keys down its
// columns.
//
// Seed 001, FlashAttention-3 section 3.3 "Layout transformations": a block of V is transposed on its way from
// one pipeline to another by warps of the producer, with ldmatrix.trans and stmatrix, which move 16 bits:
// pairs of columns, parted by a selection of bytes.
#pragma once

#include "forward/shared_storage.h"
#include "forward/work.h"

namespace tandem::forward {

/// Warps of the producer warpgroup behind the one that loads.
inline constexpr int transposing_warps = 3;

/// Transposes the part of a block that falls to `warp`: V (keys x words of two columns) to V^T (columns x
/// words of two keys, in the order of core::key_of_position).
template <typename Rows, typename Columns>
TANDEM_DEVICE void transpose_block(Rows& v, Columns& v_transposed, int warp) {
  constexpr int key_groups = Rows::rows / 32, chunks = Rows::columns / tile::chunk_columns;  // of 16 columns
  const int lane = static_cast<int>(hw::lane_index());
  TANDEM_DONT_UNROLL
  for (int item = warp; item < key_groups * chunks; item += transposing_warps) {
    const int keys = item % key_groups, chunk = item / key_groups;
    // Four matrices, of 8 keys each: lane l gets of matrix m the keys 8 * m + 2 * (l % 4) + {0, 1}, of the
    // columns 2 * (l / 4) + {0, 1} of the chunk.
    std::uint32_t pairs[4], rows[4];
    hw::load_matrices_transposed(pairs, &v.chunk(32 * keys + lane, tile::chunk_columns * chunk));
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {  // 16 keys: of the even column, and of the odd one
      rows[2 * half] = hw::select_bytes<0x6420>(pairs[2 * half], pairs[2 * half + 1]);
      rows[2 * half + 1] = hw::select_bytes<0x7531>(pairs[2 * half], pairs[2 * half + 1]);
    }
    const int matrix = lane / 8, column = 16 * chunk + 2 * (lane % 8) + matrix % 2;
    hw::store_matrices(&v_transposed.chunk(column, 16 * keys + 8 * (matrix / 2)), rows);
  }
}

/// Between the producer and the consumers, for every tile of the block.
template <ForwardVariant V>
TANDEM_DEVICE void transpose(const ForwardArguments& args, ForwardShared<V>& shared, int warp) {
  constexpr TileRows all_rows{0, V.block_m};
  tile::PipelineState<V.row_stages()> from;
  tile::PipelineState<V.kv_stages> to;
  int round = 0;
  for (Work work = find_work<V>(args, all_rows, round); work.exists();
       work = find_work<V>(args, all_rows, ++round)) {
    for (int i = 0; i < work.loop.count; ++i) {
      tile::consumer_wait(shared.rows.pipeline, from);
      hw::barrier_wait(shared.v_pipeline.empty[to.stage], to.parity ^ 1u);
      hw::sync_warp();
      transpose_block(shared.rows.v[from.stage], shared.v[to.stage], warp);
      hw::fence_async_proxy();  // the products read what was stored
      hw::sync_warp();
      tile::consumer_release(shared.rows.pipeline, from);
      if (hw::lane_index() == 0) hw::barrier_arrive(shared.v_pipeline.full[to.stage]);
      from.advance();
      to.advance();
    }
  }
}

}  // namespace tandem::forward
