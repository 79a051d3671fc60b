// The epilogue: O and L from registers to global memory (Algorithm 1, lines 24 and 25).
#pragma once

#include <cstdint>

#include "forward/arguments.h"
#include "forward/shared_storage.h"
#include "forward/variant.h"
#include "forward/work.h"
#include "hw/hw.h"
#include "tile/block_softmax.h"
#include "tile/output_row.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Where rows of a tile stand in the tensors that are written.
struct OutputRows {
  Packing packing;
  Sequence sequence;
  int pack;

  TANDEM_DEVICE bool exists(int row) const { return packing.query(row) < sequence.q_len; }
};

template <ForwardVariant V>
TANDEM_DEVICE OutputRows output_rows_of(const ForwardArguments& args, const Work& work) {
  return {args.packing, sequence_of<V>(args, work.tile.batch), work.tile.head};
}

template <typename Element>
TANDEM_DEVICE Element* address_of(const OutputView& tensor, const OutputRows& rows, int row) {
  const Sequence& sequence = rows.sequence;
  return static_cast<Element*>(tensor.data) + sequence.o_batch * tensor.batch_stride +
         rows.packing.head(rows.pack, row) * tensor.head_stride +
         (sequence.q_begin + rows.packing.query(row)) * tensor.row_stride;
}

/// Stores the thread's two rows of normalised output at once.
template <ForwardVariant V>
TANDEM_DEVICE void store_output(const ForwardArguments& args, const Work& work, int row,
                                const float (&output)[V.head_dim / 2]) {
  // All exchanges before any store: stores keep their order, and would make the exchanges wait for one
  // another.
  using Row = tile::OutputRow<V.output, V.head_dim>;
  const Row upper(output, 0), lower(output, 1);
  const auto rows = output_rows_of<V>(args, work);
  const auto store = [&](const Row& values, int at) {
    if (rows.exists(at)) values.store(address_of<std::uint16_t>(args.o, rows, at), args.head_dim);
  };
  store(upper, row);
  store(lower, row + 8);
}

/// Stores the thread's two rows of normalised output in fp32: parts, which somebody merges.
template <ForwardVariant V>
TANDEM_DEVICE void store_part(const ForwardArguments& args, const Work& work, int row,
                              const float (&output)[V.head_dim / 2]) {
  const auto rows = output_rows_of<V>(args, work);
  const int own_column = 2 * static_cast<int>(hw::lane_index() % 4);
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    if (!rows.exists(row + 8 * i)) continue;
    float* to = address_of<float>(args.o, rows, row + 8 * i);
    TANDEM_UNROLL
    for (int j = 0; j < V.head_dim / 8; ++j) {
      const int column = 8 * j + own_column;
      if (column >= args.head_dim) continue;
      hw::store_global(to + column, output[4 * j + 2 * i]);
      hw::store_global(to + column + 1, output[4 * j + 2 * i + 1]);
    }
  }
}

/// Starts storing the warp's rows of normalised output. TMA leaves out the rows and columns that don't exist.
template <ForwardVariant V>
TANDEM_DEVICE void start_storing_output(const ForwardArguments& args, ForwardShared<V>& shared,
                                        const Work& work, const float (&output)[V.head_dim / 2]) {
  const int lane = static_cast<int>(hw::lane_index());
  const int warp = static_cast<int>(hw::warp_index()) - 4;  // of the consumers'
  auto& own = shared.o.warp[warp];
  if (lane == 0) hw::wait_stores_read<0>();  // those of the tile before
  hw::sync_warp();
  tile::store_rounded<V.output>(own, 0, output);
  hw::fence_async_proxy();
  hw::sync_warp();
  if (lane != 0) return;
  tile::start_storing(own, args.o_boxes, box_of_rows<V>(args, work.tile, work.first_row + output_rows * warp),
                      hw::CachePolicy::evict_first);
  hw::commit_stores();
}

/// Before the warp ends: its tile has been read.
template <ForwardVariant V>
TANDEM_DEVICE void finish_storing_output() {
  if constexpr (V.stages_output()) {
    if (hw::lane_index() == 0) hw::wait_stores_read<0>();
  }
}

/// Writes L. Addresses come before the question who stores: so there is no branch, and all of it stands among
/// the instructions around.
template <ForwardVariant V>
TANDEM_DEVICE void store_lse(const ForwardArguments& args, const Work& work, int row, const float (&lse)[2]) {
  const auto rows = output_rows_of<V>(args, work);
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
using Softmax = std::conditional_t<V.is_8_bit(), tile::BlockSoftmax, tile::OnlineSoftmax>;

/// Normalises the output and writes O and L. `row`: the thread's upper one.
template <ForwardVariant V>
TANDEM_DEVICE void store_tile(const ForwardArguments& args, ForwardShared<V>& shared, const Work& work,
                              int row, Softmax<V>& softmax, float (&output)[V.head_dim / 2]) {
  float lse[2], normalise[2];
  softmax.finish(lse, normalise);  // line 24
  tile::scale_rows(output, normalise);
  if constexpr (V.stages_output()) {  // line 25
    start_storing_output(args, shared, work, output);
  } else if (V.lengths == Lengths::varlen && args.varlen.split_keys > 0) {
    store_part<V>(args, work, row, output);
  } else {
    store_output<V>(args, work, row, output);
  }
  store_lse<V>(args, work, row, lse);
}

}  // namespace tandem::forward
