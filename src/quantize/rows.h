// A tile of tokens in the registers of a block of threads: from shared memory on, turned, shifted and
// multiplied by the Hadamard matrix where that is asked for, and out with 8 bits.
#pragma once

#include <cstdint>

#include "hw/hw.h"
#include "quantize/arguments.h"
#include "quantize/place.h"
#include "quantize/shared_storage.h"
#include "tile/hadamard.h"
#include "tile/rotary.h"
#include "tile/warp_reduce.h"

namespace tandem::quantize {

/// Of an entry; beyond the tables all positions are the last one.
TANDEM_DEVICE int first_position(const QuantizeArguments& args, int batch) {
  if (args.first_positions == nullptr) return 0;
  const int given = hw::load_global(args.first_positions + batch);
  return given < args.rotary.positions ? given : args.rotary.positions;
}

/// The signs of each chunk. Who calls it publishes them by a barrier.
template <QuantizeVariant V>
TANDEM_DEVICE void place_signs(const QuantizeArguments& args, QuantizeShared<V>& shared) {
  const auto chunk = static_cast<int>(hw::thread_index());
  if (chunk < V.head_dim / chunk_columns)
    shared.signs[chunk] = tile::chunk_signs(args.hadamard, chunk * chunk_columns);
}

/// A thread's part of a tile: a chunk of each panel, of its rows.
template <QuantizeVariant V>
struct Rows {
  static constexpr int lanes = panel_columns / chunk_columns, count = V.rows_of_thread();
  static constexpr int row_step = block_tokens / 2 / count;
  static constexpr float to_unit = 1;
  float value[count][V.panels()][chunk_columns];
  int lane, first_row;

  /// Neighbouring eights of lanes have rows 64 apart, which lie in other banks of PackedRows.
  TANDEM_DEVICE Rows() {
    const int thread = static_cast<int>(hw::thread_index()), slot = thread / lanes;
    lane = thread % lanes;
    first_row = slot % 2 * (block_tokens / 2) + slot / 2;
  }

  TANDEM_DEVICE int row(int i) const { return first_row + i * row_step; }
  TANDEM_DEVICE int column(int panel) const { return panel * panel_columns + lane * chunk_columns; }

  /// From the stage into which they have come, as they are quantised.
  TANDEM_DEVICE void take(const QuantizeArguments& args, QuantizeShared<V>& shared, const Place& place,
                          int stage) {
    if constexpr (V.turns) {
      load_turned(args, shared, shared.x[stage], first_position(args, place.batch) + place.first());
    } else {
      load(shared, shared.x[stage]);
    }
    if (args.shift.data != nullptr) subtract_shift(args, shared, place);
    if constexpr (!V.by_column) {
      if (args.k_shift.data != nullptr) store_dots(args, shared, place);
    }
    if (args.hadamard.on) transform(args);
  }

  /// With signs as the matrix has them.
  TANDEM_DEVICE void load(const QuantizeShared<V>& shared, Tile<V>& x) {
    const tile::Chunk* const own = &x.chunk(first_row, column(0));
    TANDEM_UNROLL
    for (int panel = 0; panel < V.panels(); ++panel) {
      const std::uint32_t signs = shared.signs[panel * lanes + lane];
      TANDEM_UNROLL
      for (int i = 0; i < count; ++i) {
        tile::Chunk chunk = own[x.ahead(i * row_step, panel)];
        tile::flip_packed_signs(chunk, signs);
        tile::unpack_chunk<V.operand>(value[i][panel], chunk);
      }
    }
  }

  /// The same of rows that are turned. `position`: of the tile's first token.
  TANDEM_DEVICE void load_turned(const QuantizeArguments& args, const QuantizeShared<V>& shared, Tile<V>& x,
                                 int position) {
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) {
      const auto chunk_at = [&](int at) { return x.chunk(row(i), at); };
      TANDEM_UNROLL
      for (int panel = 0; panel < V.panels(); ++panel) {
        const tile::Chunk chunk = chunk_at(column(panel));
        tile::unpack_chunk<V.operand>(value[i][panel], chunk);
        if (column(panel) < args.rotary.dim)
          tile::rotate_chunk<V.operand>(value[i][panel], chunk, chunk_at, column(panel), args.rotary,
                                        position + row(i));
        tile::flip_signs(value[i][panel], shared.signs[panel * lanes + lane]);
      }
    }
  }

  /// Takes a vector off each row that exists.
  TANDEM_DEVICE void subtract_shift(const QuantizeArguments& args, const QuantizeShared<V>& shared,
                                    const Place& place) {
    const float* shift = args.shift.row(place.batch, place.head);
    visit_beside(shift, shared, [&](int i, int panel, const float(&own)[chunk_columns]) {
      const bool exists = place.first() + row(i) < args.length;
      TANDEM_UNROLL
      for (int c = 0; c < chunk_columns; ++c) value[i][panel][c] -= exists ? own[c] : 0.f;
    });
  }

  /// Writes each row's product with the keys' shift.
  TANDEM_DEVICE void store_dots(const QuantizeArguments& args, const QuantizeShared<V>& shared,
                                const Place& place) const {
    const float* shift = args.k_shift.row(place.batch, place.head);
    float dot[count] = {};
    visit_beside(shift, shared, [&](int i, int panel, const float(&own)[chunk_columns]) {
      TANDEM_UNROLL
      for (int c = 0; c < chunk_columns; ++c) dot[i] = hw::fma(value[i][panel][c], own[c], dot[i]);
    });
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) {
      dot[i] = tile::warp_sum<lanes>(dot[i]);
      const int at = place.first() + row(i);
      if (lane == 0 && at < args.length)
        hw::store_global(args.q_dot_k_shift.row<float>(place.batch, at, place.head), dot[i]);
    }
  }

  /// Multiplies each row by H / sqrt(d).
  TANDEM_DEVICE void transform(const QuantizeArguments& args) {
    TANDEM_UNROLL
    for (auto& of_row : value) tile::transform_row<lanes>(of_row, args.hadamard, column(0));
  }

  /// The largest magnitude of the warp's rows.
  TANDEM_DEVICE float largest() const { return tile::warp_max(largest_magnitude(value)); }

  /// Visits the thread's elements of row i, four neighbours at a time, without to_unit.
  template <typename Visit>
  TANDEM_DEVICE void for_each_four(int i, const Visit& visit) const {
    TANDEM_UNROLL
    for (const auto& x : value[i]) {
      visit({x[0], x[1], x[2], x[3]});
      visit({x[4], x[5], x[6], x[7]});
    }
  }

  /// inverse_of(i): of the scale of row i.
  template <typename InverseOf>
  TANDEM_DEVICE void store_rows(const QuantizeArguments& args, const Place& place,
                                const InverseOf& inverse_of) const {
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) {
      const int at = place.first() + row(i);
      const float inverse = inverse_of(i);
      std::uint8_t* address = place.out(args) + at * args.out.row_stride + column(0);
      TANDEM_UNROLL
      for (int panel = 0; panel < V.panels(); ++panel) {
        const Pair pair = pack<V>(value[i][panel], inverse);
        if (at < args.length) hw::store_kept<2>(address + panel * panel_columns, pair.words);
      }
    }
  }

  /// Into shared memory; of two terms what the first leaves is the second.
  TANDEM_DEVICE void place_rows(QuantizeShared<V>& shared, float inverse) {
    using Packed = PackedRows<V.head_dim>;
    Pair* const own = shared.packed[0].pair(first_row, column(0));
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) {
      TANDEM_UNROLL
      for (int panel = 0; panel < V.panels(); ++panel) {
        auto& x = value[i][panel];
        const Pair first = pack<V>(x, inverse);
        const int ahead = Packed::ahead(i * row_step, panel * panel_columns);
        own[ahead] = first;
        if constexpr (V.terms == 2) {
          subtract(x, inverse, first);
          own[ahead + sizeof(Packed) / sizeof(Pair)] = pack<V>(x, 1.f);
        }
      }
    }
  }

 private:
  /// Visits the chunks of all rows as (row, panel, the vector's numbers of their columns, with signs as rows
  /// have them).
  template <typename Visit>
  TANDEM_DEVICE void visit_beside(const float* vector, const QuantizeShared<V>& shared,
                                  const Visit& visit) const {
    TANDEM_UNROLL
    for (int panel = 0; panel < V.panels(); ++panel) {
      float own[chunk_columns];
      hw::sync_warp();  // so that ptxas has no registers taken for the panels behind it
      TANDEM_UNROLL
      for (int c = 0; c < chunk_columns; ++c) own[c] = hw::load_global(vector + column(panel) + c);
      tile::flip_signs(own, shared.signs[panel * lanes + lane]);
      TANDEM_UNROLL
      for (int i = 0; i < count; ++i) visit(i, panel, own);
    }
  }
  /// From elements times `inverse` what `taken` has of them.
  TANDEM_DEVICE static void subtract(float (&x)[chunk_columns], float inverse, const Pair& taken) {
    TANDEM_UNROLL
    for (int word = 0; word < 2; ++word) {
      std::uint32_t pairs[2];
      hw::unpack_e4m3(pairs, taken.words[word]);
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float term = i % 2 == 0 ? hw::unpack_low<hw::Operand::fp16>(pairs[i / 2])
                                      : hw::unpack_high<hw::Operand::fp16>(pairs[i / 2]);
        x[4 * word + i] = hw::fma(x[4 * word + i], inverse, -term);
      }
    }
  }
};

}  // namespace tandem::quantize
