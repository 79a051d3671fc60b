// Splits of a group: where heads of keys are few and each has many query heads, a tile of keys visits some of
// these alone, and others of the same keys the rest. Each keeps its part of dK and dV in fp32; a kernel
// behind them adds the parts, always in the same order, and rounds.
//
// To the kernels of the products a split is a key/value head with fewer query heads.
#pragma once

#include <bit>
#include <cstdint>

#include "backward/gradients.h"
#include "backward/kept.h"

namespace tandem::backward {

/// The kept parts of one gradient, of some splits: those of a split's keys follow one another.
TANDEM_DEVICE float* kept_at(float* all, const GroupSplits& splits, int split, int key_block, int head_dim) {
  return all + (static_cast<std::int64_t>(split) * splits.key_blocks + key_block) * kept_elements(head_dim);
}

/// Keeps a gradient of 64 keys, if there are such keys: a tile may have more.
template <BackwardVariant V>
TANDEM_DEVICE void keep_gradient(const BackwardArguments& args, const GradientRows& at, float* kept,
                                 const float (&gradient)[V.head_dim / 2]) {
  const int thread = static_cast<int>(hw::thread_index() % hw::warpgroup_size),
            key_block = at.row / kept_keys;
  if (key_block >= args.splits.key_blocks) return;
  float* to = kept_at(kept, args.splits, at.batch * args.splits.heads + at.head, key_block, V.head_dim);
  TANDEM_UNROLL
  for (int quad = 0; quad < V.head_dim / 8; ++quad) {
    AccumulatorQuad own = AccumulatorQuad::of(gradient, quad);
    // In registers of its own, for a store reads them late, and ptxas serialises products around that
    // (C7514).
    for (float& value : own.value) value += 0.f;
    hw::store_global(static_cast<void*>(to + place_in_part(thread, quad)),
                     std::bit_cast<AccumulatorWords>(own).word);
  }
}

/// A gradient of a tile to where it goes. Where lengths vary, groups are not split.
template <BackwardVariant V>
TANDEM_DEVICE void hand_over(const BackwardArguments& args, const GradientOutput& output,
                             const GradientRows& at, float scale, float (&gradient)[V.head_dim / 2]) {
  if constexpr (!V.is_varlen()) {
    if (output.kept != nullptr) return keep_gradient<V>(args, at, output.kept, gradient);
  }
  store_gradient<V.operand>(output.to, at, args.extent.head_dim, scale, gradient);
}

/// A warpgroup's accumulators of 32 columns, of what a split kept of 64 keys.
struct KeptColumns {
  static constexpr int columns = kept_columns, quads = columns / 8;
  AccumulatorQuad quad[quads];

  /// `piece`: of 32 columns.
  TANDEM_DEVICE static KeptColumns load(const float* kept, int piece) {
    const int thread = static_cast<int>(hw::thread_index() % hw::warpgroup_size);
    KeptColumns all;
    TANDEM_UNROLL
    for (int q = 0; q < quads; ++q) {
      AccumulatorWords words;
      hw::load_global(words.word, kept + place_in_part(thread, piece * quads + q));
      all.quad[q] = std::bit_cast<AccumulatorQuad>(words);
    }
    return all;
  }
};

/// Adds what the splits of a key/value head kept of 32 columns of a gradient of 64 keys, and stores the sum.
/// A block of the grid for each; some splits are loaded at once, since nothing else hides their way.
template <hw::Operand operand, int head_dim>
TANDEM_DEVICE void combine_kernel(const CombineArguments& args) {
  constexpr int pieces = head_dim / KeptColumns::columns, at_once = 4;
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const auto block = static_cast<int>(hw::block_index());
  const int piece = block % pieces;
  const auto [of_gradient, key_block] = args.key_blocks.divide(block / pieces);
  const auto [is_dv, place] = args.all_heads.divide(of_gradient);
  const auto [batch, head] = args.heads.divide(place);
  const GradientOutput& output = is_dv != 0 ? args.dv : args.dk;
  const int splits = args.splits.count.value();
  float gradient[KeptColumns::columns / 2] = {};
  for (int first = 0; first < splits; first += at_once) {
    KeptColumns kept[at_once] = {};
    TANDEM_UNROLL
    for (int i = 0; i < at_once; ++i) {
      if (first + i < splits)
        kept[i] = KeptColumns::load(
            kept_at(output.kept, args.splits, place * splits + first + i, key_block, head_dim), piece);
    }
    TANDEM_UNROLL
    for (int i = 0; i < at_once; ++i) {
      TANDEM_UNROLL
      for (int j = 0; j < KeptColumns::columns / 2; ++j) gradient[j] += kept[i].quad[j / 4].value[j % 4];
    }
  }
  const int thread = static_cast<int>(hw::thread_index() % hw::warpgroup_size),
            row = key_block * kept_keys + tile::upper_row(thread);
  core::TensorView to = output.to;
  to.data = static_cast<std::uint16_t*>(to.data) + piece * KeptColumns::columns;
  store_gradient<operand>(to, {batch, head, 0, row, args.k_len}, args.head_dim - piece * KeptColumns::columns,
                          is_dv != 0 ? 1.f : args.scale, gradient);
}

}  // namespace tandem::backward
