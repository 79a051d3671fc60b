// The epilogue: O and L from registers to global memory (Algorithm 1, lines 24 and 25).
#pragma once

#include <cstdint>

#include "forward/arguments.h"
#include "forward/variant.h"
#include "forward/work.h"
#include "hw/hw.h"
#include "tile/softmax.h"

namespace tandem::forward {

/// Transposes a 4 x 4 matrix of words over the four lanes of a quad: lane t's word b becomes lane b's word t.
TANDEM_DEVICE void transpose_quad(std::uint32_t (&words)[4]) {
  const std::uint32_t lane = hw::lane_index();
  TANDEM_UNROLL
  for (int distance = 1; distance <= 2; distance *= 2) {
    const bool upper = (lane & distance) != 0;
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int low = distance == 1 ? 2 * i : i, high = low + distance;
      const std::uint32_t sent = upper ? words[low] : words[high];
      const std::uint32_t received = hw::shuffle_xor(sent, distance);
      (upper ? words[low] : words[high]) = received;
    }
  }
}

/// One row of a thread's output as 16-byte pieces: each thread holds two of every eight columns; the quad
/// exchanges them so that lane t of it has all eight of every fourth group.
template <ForwardVariant V>
struct OutputRow {
  static constexpr int pieces = V.head_dim / 32;
  std::uint32_t words[pieces][4];

  /// Row `half` (0: upper, 1: lower) of the accumulators.
  TANDEM_DEVICE OutputRow(const float (&output)[V.head_dim / 2], int half) {
    TANDEM_UNROLL
    for (int p = 0; p < pieces; ++p) {
      TANDEM_UNROLL
      for (int g = 0; g < 4; ++g) {
        const int j = 4 * (4 * p + g) + 2 * half;
        words[p][g] = hw::pack<V.operand>(output[j], output[j + 1]);
      }
      transpose_quad(words[p]);
    }
  }

  /// Stores the columns that exist.
  TANDEM_DEVICE void store(std::uint16_t* row, int head_dim) const {
    const int lane_in_quad = static_cast<int>(hw::lane_index() % 4);
    TANDEM_UNROLL
    for (int p = 0; p < pieces; ++p) {
      const int column = 32 * p + 8 * lane_in_quad;
      if (column < head_dim) hw::store_global(row + column, words[p]);
    }
  }
};

/// Stores the thread's two rows of normalised output.
template <ForwardVariant V>
TANDEM_DEVICE void store_output(const ForwardArguments& args, const Work& work, int query,
                                const float (&output)[V.head_dim / 2]) {
  auto* row = static_cast<std::uint16_t*>(args.o.data) + work.tile.batch * args.o.batch_stride +
              work.tile.head * args.o.head_stride + query * args.o.row_stride;
  // All exchanges before any store: stores keep their order, and would make the exchanges wait for one
  // another.
  const OutputRow<V> upper(output, 0), lower(output, 1);
  if (query < args.q_len) upper.store(row, args.head_dim);
  if (query + 8 < args.q_len) lower.store(row + 8 * args.o.row_stride, args.head_dim);
}

/// Normalises the output and writes O and L. `query`: of the thread's upper row.
template <ForwardVariant V>
TANDEM_DEVICE void store_tile(const ForwardArguments& args, const Work& work, int query,
                              tile::OnlineSoftmax& softmax, float (&output)[V.head_dim / 2]) {
  float lse[2], normalise[2];
  softmax.finish(args.scale_log2, lse, normalise);  // line 24
  tile::scale_rows(output, normalise);
  store_output<V>(args, work, query, output);  // line 25
  if (args.lse.data == nullptr || hw::lane_index() % 4 != 0) return;
  auto* head = static_cast<float*>(args.lse.data) + work.tile.batch * args.lse.batch_stride +
               work.tile.head * args.lse.head_stride;
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const int row = query + 8 * i;
    if (row < args.q_len) hw::store_global(head + row * args.lse.row_stride, lse[i]);
  }
}

}  // namespace tandem::forward
