// The quantising kernel: memory bound. A block of threads reads 128 tokens of a head once, keeps them in
// registers, finds their largest magnitude, and writes them with 8 bits.
//
// Source: FlashAttention-3, section 3.3: "block quantization" and "incoherent processing", here by a Hadamard
// matrix with random signs (Chee et al., "QuIP", 2023; Tseng et al., "QuIP#", 2024).
#pragma once

#include <cstdint>

#include "core/quantize_problem.h"
#include "hw/hw.h"
#include "quantize/arguments.h"
#include "quantize/table.h"
#include "tile/inverse.h"

namespace tandem::quantize {

template <QuantizeVariant V>
struct QuantizeShared {
  float largest[V.threads() / hw::warp_size];
  /// Outputs by column: a row for each, four keys a word, places exchanged so that neighbouring chunks write
  /// to other banks.
  std::uint32_t columns[V.by_column ? V.head_dim : 1][block_tokens / 4];

  TANDEM_DEVICE std::uint32_t& word(int column, int at) {
    return columns[column][at ^ (column / chunk_columns % (block_tokens / 4))];
  }
};

/// A thread's part of the block: a chunk of four or eight rows. Four by four the rows are those that stand
/// side by side in an output by column.
template <QuantizeVariant V>
struct Rows {
  float value[V.rows_of_thread()][chunk_columns];
  int stage, chunk;

  TANDEM_DEVICE Rows()
      : stage(static_cast<int>(hw::thread_index()) / V.lanes()),
        chunk(static_cast<int>(hw::thread_index()) % V.lanes()) {}

  /// Which four neighbouring positions rows 4 * i ... are at.
  TANDEM_DEVICE int quad(int i) const { return stage + V.rows_at_once() * i; }
  TANDEM_DEVICE int token(int row) const {
    return static_cast<int>(core::key_of_position(4 * quad(row / 4) + row % 4));
  }
  TANDEM_DEVICE int column() const { return chunk * chunk_columns; }

  /// Zeros behind the last token.
  TANDEM_DEVICE void load(const QuantizeArguments& args, const std::uint16_t* x, int first) {
    TANDEM_UNROLL
    for (int row = 0; row < V.rows_of_thread(); ++row) {
      std::uint32_t words[4] = {};
      const int at = first + token(row);
      if (at < args.length) hw::load_global(words, x + at * args.x.row_stride + column());
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) {
        value[row][2 * i] = hw::unpack_low<V.operand>(words[i]);
        value[row][2 * i + 1] = hw::unpack_high<V.operand>(words[i]);
      }
    }
  }

  /// Multiplies each row by H diag(signs) / sqrt(d): butterflies within the thread, then between lanes.
  TANDEM_DEVICE void rotate(const QuantizeArguments& args) {
    const std::uint32_t signs = args.signs[column() / 32] >> (column() % 32);
    TANDEM_UNROLL
    for (auto& row : value) {
      TANDEM_UNROLL
      for (int i = 0; i < chunk_columns; ++i) row[i] = (signs >> i & 1u) != 0 ? -row[i] : row[i];
      TANDEM_UNROLL
      for (int distance = 1; distance < chunk_columns; distance *= 2) {
        TANDEM_UNROLL
        for (int i = 0; i < chunk_columns; ++i) {
          if ((i & distance) != 0) continue;
          const float low = row[i], high = row[i + distance];
          row[i] = low + high;
          row[i + distance] = low - high;
        }
      }
      TANDEM_UNROLL
      for (int distance = 1; distance < V.lanes(); distance *= 2) {
        const bool upper = (chunk & distance) != 0;
        TANDEM_UNROLL
        for (float& x : row) {
          const float other = hw::shuffle_xor(x, static_cast<std::uint32_t>(distance));
          x = upper ? other - x : x + other;
        }
      }
      TANDEM_UNROLL
      for (float& x : row) x = hw::fma(x, args.to_unit, 0.f);  // no negative zeros behind the last token
    }
  }

  /// The largest magnitude of the whole block of threads.
  TANDEM_DEVICE float largest(QuantizeShared<V>& shared) const {
    float own = 0;
    TANDEM_UNROLL
    for (const auto& row : value) {
      TANDEM_UNROLL
      for (const float x : row) own = hw::max(own, hw::max(x, -x));
    }
    TANDEM_UNROLL
    for (std::uint32_t distance = 1; distance < hw::warp_size; distance *= 2)
      own = hw::max(own, hw::shuffle_xor(own, distance));
    const std::uint32_t warp = hw::warp_index();
    if (hw::lane_index() == 0) shared.largest[warp] = own;
    hw::sync_block();
    TANDEM_UNROLL
    for (const float of_warp : shared.largest) own = hw::max(own, of_warp);
    return own;
  }

  TANDEM_DEVICE void store_rows(const QuantizeArguments& args, std::uint8_t* out, int first,
                                float inverse) const {
    TANDEM_UNROLL
    for (int row = 0; row < V.rows_of_thread(); ++row) {
      const auto& x = value[row];
      const std::uint32_t words[2] = {
          hw::pack_e4m3(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse),
          hw::pack_e4m3(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse)};
      const int at = first + token(row);
      if (at < args.length) hw::store_kept<2>(out + at * args.out.row_stride + column(), words);
    }
  }

  /// By way of shared memory, from where whole rows go out.
  TANDEM_DEVICE void store_columns(const QuantizeArguments& args, QuantizeShared<V>& shared,
                                   std::uint8_t* out, int first, float inverse) const {
    TANDEM_UNROLL
    for (int i = 0; i < V.rows_of_thread() / 4; ++i) {
      TANDEM_UNROLL
      for (int c = 0; c < chunk_columns; ++c) {
        shared.word(column() + c, quad(i)) =
            hw::pack_e4m3(value[4 * i][c] * inverse, value[4 * i + 1][c] * inverse,
                          value[4 * i + 2][c] * inverse, value[4 * i + 3][c] * inverse);
      }
    }
    hw::sync_block();
    const int lane = static_cast<int>(hw::lane_index()), at = first + 4 * lane;
    TANDEM_DONT_UNROLL
    for (int c = static_cast<int>(hw::warp_index()); c < V.head_dim; c += V.threads() / hw::warp_size) {
      const std::uint32_t word = shared.word(c, lane);
      void* address = out + c * args.out.row_stride + at;
      if (at < args.padded) hw::store_global(static_cast<std::uint32_t*>(address), word);
    }
  }
};

template <QuantizeVariant V>
TANDEM_DEVICE void quantize_kernel(const QuantizeArguments& args) {
  auto& shared = hw::shared_memory<QuantizeShared<V>>();
  const auto [above, head] = args.heads.divide(static_cast<int>(hw::block_index()));
  const auto [batch, block] = args.blocks.divide(above);
  const int first = block * block_tokens;

  float* scale = static_cast<float*>(args.scale.data) +
                 args.scale.at(batch, args.scale_block.divide(block).quotient, head);
  float inverse = args.scale_given ? tile::inverse_of_given(hw::load_global(scale)) : 0.f;

  Rows<V> rows;
  rows.load(args, static_cast<const std::uint16_t*>(args.x.data) + args.x.at(batch, 0, head), first);
  if (args.hadamard) rows.rotate(args);
  if (!args.scale_given) {
    const float found = core::scale_for(rows.largest(shared));
    inverse = core::inverse_of(found);
    if (hw::thread_index() == 0) hw::store_global(scale, found);
  }

  auto* out = static_cast<std::uint8_t*>(args.out.data) + args.out.at(batch, 0, head);
  if constexpr (V.by_column) {
    rows.store_columns(args, shared, out, first, inverse);
  } else {
    rows.store_rows(args, out, first, inverse);
  }
}

/// As the launcher finds it.
template <QuantizeVariant V>
struct KernelBody {
  static constexpr int shared_bytes = sizeof(QuantizeShared<V>);
  static TANDEM_DEVICE void run(const QuantizeArguments& args) { quantize_kernel<V>(args); }
};

}  // namespace tandem::quantize
