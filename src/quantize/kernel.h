// The quantising kernel: memory bound. TMA brings blocks of 128 tokens of a head into shared memory, some
// ahead; a block of threads takes one into registers at once, finds its largest magnitude, and writes it with
// 8 bits.
//
// Source: FlashAttention-3, section 3.3: "block quantization" and "incoherent processing", here by a Hadamard
// matrix with random signs (Chee et al., "QuIP", 2023; Tseng et al., "QuIP#", 2024).
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/quantize_problem.h"
#include "hw/hw.h"
#include "quantize/arguments.h"
#include "quantize/best_scale.h"
#include "quantize/place.h"
#include "quantize/products.h"
#include "quantize/rows.h"
#include "quantize/shared_storage.h"
#include "quantize/table.h"
#include "tile/inverse.h"
#include "tile/pipeline.h"

namespace tandem::quantize {

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
  std::conditional_t<V.products, ProductRows<V>, Rows<V>> rows;
  rows.take(args, shared, place, stage);
  if (!V.row_scales && !args.scale_given) shared.publish(turn, rows.largest());
  hw::sync_block();
  if (hw::thread_index() == 0)
    start_load(args, shared, stage, tile + V.stages() * static_cast<int>(hw::grid_size()));

  if constexpr (V.row_scales) {
    rows.store_rows(args, place, [&](int i) { return take_best_scale<V>(args, place, rows, i); });
    return;
  }
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
    rows.store_rows(args, place, [&](int) { return inverse; });
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
  if constexpr (V.products) {
    place_matrix(args, shared);
  } else {
    place_signs(args, shared);
  }
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
