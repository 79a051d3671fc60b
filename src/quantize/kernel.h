// The quantising kernel: memory bound. TMA brings blocks of 128 tokens of a head into shared memory, some
// ahead; a block of threads takes one into registers at once, finds its largest magnitude, and writes it with
// 8 bits.
//
// Source: FlashAttention-3, section 3.3: "block quantization" and "incoherent processing", here by a Hadamard
// matrix with random signs (Chee et al., "QuIP", 2023; Tseng et al., "QuIP#", 2024).
#pragma once

#include <cmath>
#include <cstdint>

#include "core/quantize_problem.h"
#include "hw/hw.h"
#include "quantize/arguments.h"
#include "quantize/shared_storage.h"
#include "quantize/table.h"
#include "tile/hadamard.h"
#include "tile/inverse.h"
#include "tile/pipeline.h"
#include "tile/rotary.h"
#include "tile/warp_reduce.h"

namespace tandem::quantize {

/// Where a tile lies: 128 tokens of a head.
struct Place {
  int batch, block, head;

  TANDEM_DEVICE Place(const QuantizeArguments& args, int tile) {
    const auto [above, own_head] = args.heads.divide(tile);
    const auto [own_batch, own_block] = args.blocks.divide(above);
    batch = own_batch, block = own_block, head = own_head;
  }
  TANDEM_DEVICE int first() const { return block * block_tokens; }
  TANDEM_DEVICE float* scale(const QuantizeArguments& args) const {
    return args.scale.row<float>(batch, args.scale_block.divide(block).quotient, head);
  }
  TANDEM_DEVICE std::uint8_t* out(const QuantizeArguments& args) const {
    return args.out.row<std::uint8_t>(batch, 0, head);
  }
};

/// Of an entry; beyond the tables all positions are the last one.
TANDEM_DEVICE int first_position(const QuantizeArguments& args, int batch) {
  if (args.first_positions == nullptr) return 0;
  const int given = hw::load_global(args.first_positions + batch);
  return given < args.rotary.positions ? given : args.rotary.positions;
}

/// Eight floats as the output has them.
template <QuantizeVariant V>
TANDEM_DEVICE Pair pack(const float (&x)[chunk_columns], float inverse) {
  const auto pack_four = [&](int i) {
    const float x0 = x[i] * inverse, x1 = x[i + 1] * inverse, x2 = x[i + 2] * inverse,
                x3 = x[i + 3] * inverse;
    return V.output == hw::Operand::int8 ? hw::pack_int8(x0, x1, x2, x3) : hw::pack_e4m3(x0, x1, x2, x3);
  };
  return {{pack_four(0), pack_four(4)}};
}

/// The scale that a block finds, and its inverse.
struct Scale {
  float value, inverse;
};
template <QuantizeVariant V>
TANDEM_DEVICE Scale find_scale(float largest, float amplitude) {
  if constexpr (V.output == hw::Operand::int8) {
    const float scale = core::int8_scale_for(largest);
    return {scale, tile::inverse_of_given(scale)};
  } else {
    const float scale = core::scale_for(largest, amplitude);
    return {scale, core::inverse_of(scale)};
  }
}

/// A thread's part of a tile: a chunk of each panel, of its rows.
template <QuantizeVariant V>
struct Rows {
  static constexpr int lanes = panel_columns / chunk_columns, count = V.rows_of_thread();
  static constexpr int row_step = block_tokens / 2 / count;
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
  TANDEM_DEVICE float largest() const {
    float own = 0;
    TANDEM_UNROLL
    for (const auto& of_row : value) {
      TANDEM_UNROLL
      for (const auto& chunk : of_row) {
        TANDEM_UNROLL
        for (const float x : chunk) own = hw::max(own, std::fabs(x));
      }
    }
    return tile::warp_max(own);
  }

  TANDEM_DEVICE void store_rows(const QuantizeArguments& args, const Place& place, float inverse) const {
    TANDEM_UNROLL
    for (int i = 0; i < count; ++i) {
      const int at = place.first() + row(i);
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

/// Packed rows into columns of the output: each thread 16 tokens of four columns, in the order that outputs
/// have them.
template <QuantizeVariant V>
TANDEM_DEVICE void store_columns(const QuantizeArguments& args, QuantizeShared<V>& shared,
                                 const Place& place) {
  constexpr int groups = block_tokens / core::key_group;
  const int thread = static_cast<int>(hw::thread_index()), group = thread % groups;
  const int column = thread / groups * 4;  // of all terms
  const int at = place.first() + group * core::key_group;
  if (column >= V.terms * V.head_dim || at >= args.padded) return;
  std::uint32_t words[4][4];  // column, four tokens
  TANDEM_UNROLL
  for (int four = 0; four < 4; ++four) {
    std::uint32_t own[4];
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int token = static_cast<int>(core::key_of_position(4 * four + i));
      own[i] = shared.packed[column / V.head_dim].word(group, token, column % V.head_dim);
    }
    const std::uint32_t low[2] = {hw::select_bytes<0x5140>(own[0], own[1]),
                                  hw::select_bytes<0x5140>(own[2], own[3])};
    const std::uint32_t high[2] = {hw::select_bytes<0x7362>(own[0], own[1]),
                                   hw::select_bytes<0x7362>(own[2], own[3])};
    words[0][four] = hw::select_bytes<0x5410>(low[0], low[1]);
    words[1][four] = hw::select_bytes<0x7632>(low[0], low[1]);
    words[2][four] = hw::select_bytes<0x5410>(high[0], high[1]);
    words[3][four] = hw::select_bytes<0x7632>(high[0], high[1]);
  }
  std::uint8_t* address = place.out(args) + column * args.out.row_stride + at;
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i) hw::store_kept<4>(address + i * args.out.row_stride, words[i]);
}

/// One thread: starts bringing a tile, if there is one.
template <QuantizeVariant V>
TANDEM_DEVICE void start_load(const QuantizeArguments& args, QuantizeShared<V>& shared, int stage, int tile) {
  if (tile >= args.tiles) return;
  const Place place(args, tile);
  hw::barrier_arrive_expecting(shared.full[stage], Tile<V>::bytes);
  TANDEM_UNROLL
  for (int panel = 0; panel < V.panels(); ++panel)
    hw::load_box(shared.x[stage].panel[panel], args.x, shared.full[stage],
                 {panel * panel_columns, place.first(), place.head, place.batch},
                 hw::l2_policy(hw::CachePolicy::evict_first));
}

/// Takes a tile from its stage, and starts the load of the one that comes after it there.
template <QuantizeVariant V>
TANDEM_DEVICE void quantize_tile(const QuantizeArguments& args, QuantizeShared<V>& shared, int tile,
                                 int stage, int turn) {
  const Place place(args, tile);
  Rows<V> rows;
  if constexpr (V.turns) {
    rows.load_turned(args, shared, shared.x[stage], first_position(args, place.batch) + place.first());
  } else {
    rows.load(shared, shared.x[stage]);
  }
  if (args.shift.data != nullptr) rows.subtract_shift(args, shared, place);
  if constexpr (!V.by_column) {
    if (args.k_shift.data != nullptr) rows.store_dots(args, shared, place);
  }
  if (args.hadamard.on) rows.transform(args);
  if (!args.scale_given) shared.publish(turn, rows.largest());
  hw::sync_block();
  if (hw::thread_index() == 0)
    start_load(args, shared, stage, tile + V.stages() * static_cast<int>(hw::grid_size()));

  float inverse;
  if (args.scale_given) {
    inverse = tile::inverse_of_given(hw::load_global(place.scale(args)));
  } else {
    const Scale found = find_scale<V>(shared.largest(turn), args.amplitude);
    inverse = found.inverse;
    if (hw::thread_index() == 0) hw::store_global(place.scale(args), found.value);
  }
  if constexpr (V.by_column) {
    rows.place_rows(shared, inverse);
    hw::sync_block();
    store_columns(args, shared, place);
  } else {
    rows.store_rows(args, place, inverse);
  }
}

template <QuantizeVariant V>
TANDEM_DEVICE void quantize_kernel(const QuantizeArguments& args) {
  auto& shared = hw::shared_memory<QuantizeShared<V>>();
  const int first = static_cast<int>(hw::block_index()), step = static_cast<int>(hw::grid_size());
  if (hw::thread_index() == 0) {
    for (hw::Barrier& full : shared.full) hw::barrier_init(full, 1);
    hw::fence_barrier_init();
  }
  if (const int chunk = static_cast<int>(hw::thread_index()); chunk < V.head_dim / chunk_columns)
    shared.signs[chunk] = tile::chunk_signs(args.hadamard, chunk * chunk_columns);
  hw::sync_block();
  hw::release_next_grid();  // its blocks find place as these end, and wait for all of them
  hw::wait_for_prior_grid();
  if (hw::thread_index() == 0)
    for (int stage = 0; stage < V.stages(); ++stage) start_load(args, shared, stage, first + stage * step);

  tile::PipelineState<V.stages()> at;
  int turn = 0;
  TANDEM_DONT_UNROLL
  for (int tile = first; tile < args.tiles; tile += step, turn ^= 1, at.advance()) {
    hw::barrier_wait(shared.full[at.stage], at.parity);
    hw::sync_warp();
    quantize_tile(args, shared, tile, at.stage, turn);
  }
}

/// As the launcher finds it.
template <QuantizeVariant V>
struct KernelBody {
  static constexpr int shared_bytes = sizeof(QuantizeShared<V>);
  static TANDEM_DEVICE void run(const QuantizeArguments& args) { quantize_kernel<V>(args); }
};

}  // namespace tandem::quantize
