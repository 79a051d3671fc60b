// The epilogue: O and L from registers to global memory (Algorithm 1, lines 24 and 25).
#pragma once

#include <cstdint>

#include "forward/arguments.h"
#include "forward/shared_storage.h"
#include "forward/variant.h"
#include "forward/work.h"
#include "hw/hw.h"
#include "tile/block_softmax.h"
#include "tile/fp16_softmax.h"
#include "tile/lazy_softmax.h"
#include "tile/output_row.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Of the tile. Where lengths vary, read again: so no register keeps it meanwhile.
template <ForwardVariant V>
TANDEM_DEVICE int first_row_of(const Work& work) {
  if constexpr (V.lengths == Lengths::varlen) return listed_tile<V>(work.tile).m_block * V.block_m;
  return work.first_row;
}

/// Where rows of a tile stand in the tensors that are written.
struct OutputRows {
  Packing packing;
  TileQueries queries;
  int q_len;
  int first_row;  ///< of the tile

  template <ForwardVariant V>
  TANDEM_DEVICE static OutputRows of(const ForwardArguments& args, const Work& work) {
    return {args.packing, queries_of<V>(work.tile), lengths_of<V>(args, work.tile).q_len,
            first_row_of<V>(work)};
  }
  TANDEM_DEVICE bool exists(int row) const { return packing.query(row) < q_len; }
};

template <typename Element>
TANDEM_DEVICE Element* address_of(const core::TensorView& tensor, const OutputRows& rows, int row) {
  const TileQueries& queries = rows.queries;
  return static_cast<Element*>(tensor.data) + queries.o_batch * tensor.batch_stride +
         rows.packing.head(queries.pack, row) * tensor.head_stride +
         (queries.q_begin + rows.packing.query(row)) * tensor.row_stride;
}

/// Whether outputs are fp32 parts.
template <ForwardVariant V>
TANDEM_DEVICE bool stores_parts(const ForwardArguments& args) {
  return V.lengths == Lengths::varlen && args.varlen.split_keys > 0;
}

/// Whether a tile's output may be stored while the next tile is at work. Where lengths vary, not parts, nor
/// staged rows some of which don't exist: that would take registers where there are none.
template <ForwardVariant V>
TANDEM_DEVICE bool stores_aside(const ForwardArguments& args, const Work& work, int last_row) {
  if constexpr (V.lengths == Lengths::uniform) return true;
  const bool whole =
      args.packing.query(first_row_of<V>(work) + last_row) < lengths_of<V>(args, work.tile).q_len;
  return !stores_parts<V>(args) && (whole || !V.decisions.stages_output);
}
enum class Stores { alone, aside };

/// Stores the thread's two rows of normalised output at once: V.value_dim columns from `first_column` on.
template <ForwardVariant V>
TANDEM_DEVICE void store_output(const ForwardArguments& args, const OutputRows& rows, int row,
                                const float (&output)[V.value_dim / 2], int first_column = 0) {
  // All exchanges before any store: stores keep their order, and would make the exchanges wait for one
  // another.
  using Row = tile::OutputRow<V.output, V.value_dim>;
  const Row upper(output, 0), lower(output, 1);
  const auto store = [&](const Row& values, int at) {
    if (rows.exists(at))
      values.store(address_of<std::uint16_t>(args.o, rows, at) + first_column, args.value_dim - first_column);
  };
  store(upper, row);
  store(lower, row + 8);
}

/// Stores the thread's two rows of normalised output in fp32: parts, which somebody merges.
template <ForwardVariant V>
TANDEM_DEVICE void store_part(const ForwardArguments& args, const OutputRows& rows, int row,
                              const float (&output)[V.value_dim / 2]) {
  const int own_column = 2 * static_cast<int>(hw::lane_index() % 4);
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    if (!rows.exists(row + 8 * i)) continue;
    float* to = address_of<float>(args.o, rows, row + 8 * i);
    TANDEM_UNROLL
    for (int j = 0; j < V.value_dim / 8; ++j) {
      const int column = 8 * j + own_column;
      if (column >= args.value_dim) continue;
      hw::store_global(to + column, output[4 * j + 2 * i]);
      hw::store_global(to + column + 1, output[4 * j + 2 * i + 1]);
    }
  }
}

/// Warp: stores those of its staged rows that exist, where rows behind them are another sequence's. `first`:
/// the first of them.
template <typename OutputTile>
TANDEM_DEVICE void store_staged_rows(OutputTile& staged, const ForwardArguments& args, const OutputRows& rows,
                                     int first) {
  constexpr int chunks = OutputTile::columns / tile::chunk_columns;
  static_assert(output_rows * chunks % hw::warp_size == 0);
  const int lane = static_cast<int>(hw::lane_index());
  TANDEM_DONT_UNROLL
  for (int i = 0; i < output_rows * chunks; i += hw::warp_size) {  // all lanes as often (work.h)
    const int row = (i + lane) / chunks, column = (i + lane) % chunks * tile::chunk_columns;
    if (rows.exists(first + row) && column < args.value_dim) {
      hw::store_global(address_of<std::uint16_t>(args.o, rows, first + row) + column,
                       staged.chunk(row, column).words);
    }
  }
}

/// Starts storing the warp's rows of normalised output. TMA leaves out the rows and columns that don't exist
/// in the tensor.
template <ForwardVariant V, Stores when>
TANDEM_DEVICE void start_storing_output(const ForwardArguments& args, ForwardShared<V>& shared,
                                        const OutputRows& rows, const float (&output)[V.value_dim / 2]) {
  const int lane = static_cast<int>(hw::lane_index());
  const int warp = static_cast<int>(hw::warp_index()) - 4;  // of the consumers'
  const int first_row = rows.first_row + output_rows * warp;
  auto& own = shared.o.warp[warp];
  if (lane == 0) hw::wait_stores_read<0>();  // those of the tile before
  hw::sync_warp();
  tile::store_rounded<V.output>(own, 0, output);
  if constexpr (V.lengths == Lengths::varlen && when == Stores::alone) {
    if (!rows.exists(first_row + output_rows - 1)) {
      hw::sync_warp();
      store_staged_rows(own, args, rows, first_row);
      return;
    }
  }
  hw::fence_async_proxy();
  hw::sync_warp();
  if (lane != 0) return;
  tile::start_storing(own, args.o_boxes, box_of_rows(args, rows.queries, first_row),
                      hw::CachePolicy::evict_first);
  hw::commit_stores();
}

/// Before the warp ends: its tile has been read.
template <ForwardVariant V>
TANDEM_DEVICE void finish_storing_output() {
  if constexpr (V.decisions.stages_output) {
    if (hw::lane_index() == 0) hw::wait_stores_read<0>();
  }
}

/// Writes L. Addresses come before the question who stores: so there is no branch, and all of it stands among
/// the instructions around.
TANDEM_DEVICE void store_lse(const ForwardArguments& args, const OutputRows& rows, int row,
                             const float (&lse)[2]) {
  const bool first_of_quad = args.lse.data != nullptr && hw::lane_index() % 4 == 0;
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int at = row + 8 * i;
    float* address = address_of<float>(args.lse, rows, at);
    if (first_of_quad && rows.exists(at)) hw::store_global(address, lse[i]);
  }
}

/// The statistics of a tile's rows.
template <ForwardVariant V>
using BlockSoftmax = std::conditional_t<V.fp16_scores, tile::Fp16Softmax,
                                        tile::BlockSoftmax<V.codes(), V.integer_scores() && !V.softcap>>;
template <ForwardVariant V>
using Softmax =
    std::conditional_t<V.is_8_bit(), BlockSoftmax<V>,
                       std::conditional_t<V.references_stay(), tile::LazySoftmax, tile::OnlineSoftmax>>;

/// Line 24 for the thread's two rows: their lse, and what normalises their output.
struct RowStatistics {
  float lse[2], normalise[2];
};
template <ForwardVariant V>
TANDEM_DEVICE RowStatistics statistics_of(const ForwardArguments& args, Softmax<V>& softmax) {
  RowStatistics rows;
  if constexpr (V.references_stay()) {
    softmax.template finish<V.operand>(rows.lse, rows.normalise, args.scale_log2);
  } else {
    softmax.finish(rows.lse, rows.normalise);
  }
  return rows;
}

/// Takes the sinks of the heads of the thread's rows into their statistics.
TANDEM_DEVICE void add_sinks(const ForwardArguments& args, const OutputRows& rows, int row, float (&lse)[2],
                             float (&normalise)[2]) {
  if (args.sinks == nullptr) return;
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int head = rows.packing.head(rows.queries.pack, row + 8 * i);
    tile::add_sink(hw::load_global(args.sinks + head), lse[i], normalise[i]);
  }
}

/// Line 24 for O. Gives the output of 8-bit values back what they lack, as a row's probabilities add up to 1:
/// their shift. Rows that see no key stay 0. All columns are read before the first is added, so that no read
/// waits for another; those that don't exist are read as the last that do, so that there is no branch.
template <ForwardVariant V>
TANDEM_DEVICE void normalise_output(const ForwardArguments& args, const Work& work,
                                    const float (&normalise)[2], float (&output)[V.value_dim / 2]) {
  if (!V.adds_shifts() || args.v_shift.data == nullptr) return tile::scale_rows(output, normalise);
  const int kv_head = static_cast<int>(args.group.divide(work.tile.head).quotient);
  const float* own = args.v_shift.row(work.tile.batch, kv_head) + 2 * (hw::lane_index() % 4);
  const auto last = static_cast<std::uint32_t>(args.value_dim) - 8;
  float shift[V.value_dim / 8][2];
  TANDEM_UNROLL
  for (int j = 0; j < V.value_dim / 8; ++j) {
    const std::uint32_t column = 8u * j < last ? 8u * j : last;
    TANDEM_UNROLL
    for (int c = 0; c < 2; ++c) shift[j][c] = hw::load_global(own + column + c);
  }
  TANDEM_UNROLL
  for (int j = 0; j < V.value_dim / 2; ++j) {
    const float by = normalise[tile::row_of_accumulator(j)];
    output[j] = hw::fma(output[j], by, by == 0.f ? 0.f : shift[j / 4][j % 2]);
  }
}

/// What the shift of 8-bit keys has taken off each score of the thread's rows, before scale: 0 without one.
/// Rows that don't exist take the tile's first, so that there is no branch.
TANDEM_DEVICE void read_k_shift(const ForwardArguments& args, const OutputRows& rows, int row,
                                float (&of_scores)[2]) {
  of_scores[0] = of_scores[1] = 0.f;
  if (args.q_dot_k_shift.data == nullptr) return;
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int own = row + 8 * i, at = rows.exists(own) ? own : rows.first_row;
    of_scores[i] = hw::load_global(address_of<const float>(args.q_dot_k_shift, rows, at));
  }
}

/// Normalises the output (line 24) and writes O and L. `own_row`: of the tile, the thread's upper one.
template <ForwardVariant V, Stores when>
TANDEM_DEVICE void store_tile(const ForwardArguments& args, ForwardShared<V>& shared, const Work& work,
                              int own_row, RowStatistics& statistics, float (&output)[V.value_dim / 2]) {
  auto& [lse, normalise] = statistics;
  const auto rows = OutputRows::of<V>(args, work);
  const int row = rows.first_row + own_row;
  if constexpr (V.lengths == Lengths::varlen) add_sinks(args, rows, row, lse, normalise);
  if constexpr (V.adds_shifts()) {
    float of_scores[2];
    read_k_shift(args, rows, row, of_scores);  // on its way while the output is at work
    normalise_output<V>(args, work, normalise, output);
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) lse[i] = hw::fma(args.scale, of_scores[i], lse[i]);
  } else {
    normalise_output<V>(args, work, normalise, output);  // line 24
  }
  if (when == Stores::alone && stores_parts<V>(args)) {  // line 25
    store_part<V>(args, rows, row, output);
  } else if constexpr (V.decisions.stages_output) {
    start_storing_output<V, when>(args, shared, rows, output);
  } else {
    store_output<V>(args, rows, row, output);
  }
  store_lse(args, rows, row, lse);
}

}  // namespace tandem::forward
