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
#include "tile/hadamard.h"
#include "tile/inverse.h"
#include "tile/rotary.h"

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

/// Four floats as the output has them.
template <QuantizeVariant V>
TANDEM_DEVICE std::uint32_t pack(float x0, float x1, float x2, float x3) {
  return V.output == hw::Operand::int8 ? hw::pack_int8(x0, x1, x2, x3) : hw::pack_e4m3(x0, x1, x2, x3);
}

/// The scale that a block finds, and its inverse.
struct Scale {
  float value, inverse;
};
template <QuantizeVariant V>
TANDEM_DEVICE Scale find_scale(float largest) {
  if constexpr (V.output == hw::Operand::int8) {
    const float scale = core::int8_scale_for(largest);
    return {scale, tile::inverse_of_given(scale)};
  } else {
    const float scale = core::scale_for(largest);
    return {scale, core::inverse_of(scale)};
  }
}

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

  /// The same of rows that are turned. `position`: of the block's first token.
  TANDEM_DEVICE void load_turned(const QuantizeArguments& args, const std::uint16_t* x, int first,
                                 int position) {
    TANDEM_UNROLL
    for (int row = 0; row < V.rows_of_thread(); ++row) {
      tile::Chunk chunk = {};
      const int own = token(row);
      const std::uint16_t* address = x + (first + own) * args.x.row_stride;
      const bool exists = first + own < args.length;
      if (exists) chunk = tile::load_chunk(address + column());
      tile::unpack_chunk<V.operand>(value[row], chunk);
      if (exists && column() < args.rotary.dim)
        tile::rotate_chunk<V.operand>(value[row], chunk, address, column(), args.rotary, position + own);
    }
  }

  /// Multiplies each row by H diag(signs) / sqrt(d).
  TANDEM_DEVICE void rotate(const QuantizeArguments& args) {
    TANDEM_UNROLL
    for (auto& row : value) tile::multiply_by_hadamard<V.lanes()>(row, args.hadamard, column());
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
          pack<V>(x[0] * inverse, x[1] * inverse, x[2] * inverse, x[3] * inverse),
          pack<V>(x[4] * inverse, x[5] * inverse, x[6] * inverse, x[7] * inverse)};
      const int at = first + token(row);
      if (at < args.length) hw::store_kept<2>(out + at * args.out.row_stride + column(), words);
    }
  }

  /// All terms, one after the other by way of shared memory, from where whole rows go out.
  TANDEM_DEVICE void store_columns(const QuantizeArguments& args, QuantizeShared<V>& shared,
                                   std::uint8_t* out, int first, float inverse) {
    store_term(args, shared, out, first, inverse);
    if constexpr (V.terms == 2) {
      hw::sync_block();
      store_term(args, shared, out + V.head_dim * args.out.row_stride, first, 1.f);
    }
  }

 private:
  /// Of more terms than one: what this one leaves stays behind.
  TANDEM_DEVICE void store_term(const QuantizeArguments& args, QuantizeShared<V>& shared, std::uint8_t* out,
                                int first, float inverse) {
    TANDEM_UNROLL
    for (int i = 0; i < V.rows_of_thread() / 4; ++i) {
      TANDEM_UNROLL
      for (int c = 0; c < chunk_columns; ++c) {
        const std::uint32_t word =
            hw::pack_e4m3(value[4 * i][c] * inverse, value[4 * i + 1][c] * inverse,
                          value[4 * i + 2][c] * inverse, value[4 * i + 3][c] * inverse);
        shared.word(column() + c, quad(i)) = word;
        if constexpr (V.terms == 2) subtract(word, 4 * i, c, inverse);
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

  /// From four rows of a column, times `inverse`, what `word` has of them.
  TANDEM_DEVICE void subtract(std::uint32_t word, int row, int c, float inverse) {
    std::uint32_t pairs[2];
    hw::unpack_e4m3(pairs, word);
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float taken = i % 2 == 0 ? hw::unpack_low<hw::Operand::fp16>(pairs[i / 2])
                                     : hw::unpack_high<hw::Operand::fp16>(pairs[i / 2]);
      value[row + i][c] = hw::fma(value[row + i][c], inverse, -taken);
    }
  }
};

/// Of an entry; beyond the tables all positions are the last one.
TANDEM_DEVICE int first_position(const QuantizeArguments& args, int batch) {
  if (args.first_positions == nullptr) return 0;
  const int given = hw::load_global(args.first_positions + batch);
  return given < args.rotary.positions ? given : args.rotary.positions;
}

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
  const auto* x = static_cast<const std::uint16_t*>(args.x.data) + args.x.at(batch, 0, head);
  if constexpr (V.turns) {
    rows.load_turned(args, x, first, first_position(args, batch) + first);
  } else {
    rows.load(args, x, first);
  }
  if (args.hadamard.on) rows.rotate(args);
  if (!args.scale_given) {
    const Scale found = find_scale<V>(rows.largest(shared));
    inverse = found.inverse;
    if (hw::thread_index() == 0) hw::store_global(scale, found.value);
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
