// What the fuzzers of attention draw alike: masks, sinks, slopes, trees and tables of angles.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/fuzz/arena.h"
#include "tests/fuzz/features.h"

namespace tandem::fuzz {

inline tandem_mask draw_mask(Draws& draws, std::int64_t reach) {
  tandem_mask mask{sizeof(tandem_mask), TANDEM_MASK_FULL, 0, 0, 0};
  const std::size_t kind = draws.below(4);
  if (kind == 0) mask.kind = TANDEM_MASK_CAUSAL;
  if (kind >= 2) {
    mask.kind = TANDEM_MASK_WINDOW;
    mask.window_left = draws.between(-1, reach), mask.window_right = draws.between(-1, 5);
  }
  return mask;
}

inline std::int64_t draw_chunk(Draws& draws) { return draws.below(4) == 0 ? draws.between(1, 12) : 0; }

/// One for each head; -inf: none for this head.
inline std::vector<float> draw_sinks(std::int64_t heads, Noise& noise) {
  std::vector<float> sinks(static_cast<std::size_t>(heads));
  for (float& sink : sinks)
    sink = noise.below(4) == 0 ? -HUGE_VALF : static_cast<float>(static_cast<int>(noise.below(9)) - 4);
  return sinks;
}

inline std::vector<float> draw_slopes(std::int64_t count, Noise& noise) {
  std::vector<float> slopes(static_cast<std::size_t>(count));
  for (float& slope : slopes) slope = noise.power() * (noise.below(4) == 0 ? -0.25f : 0.25f);
  return slopes;
}

/// A word for each query, most with its own bit, which is number `i`; 0: it sees all.
inline std::vector<std::uint64_t> draw_tree(std::int64_t words, std::int64_t queries, Noise& noise) {
  std::vector<std::uint64_t> tree(static_cast<std::size_t>(words));
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const std::uint64_t own = std::uint64_t{1}
                              << i % static_cast<std::size_t>(std::clamp<std::int64_t>(queries, 1, 64));
    std::uint64_t others = 0;
    for (int part = 0; part < 4; ++part) others = others << 16 | noise.next();
    const std::uint32_t kind = noise.below(8);
    tree[i] = kind == 0 ? 0 : kind == 1 ? others : own | others;
  }
  return tree;
}

/// o, and in three of four calls lse. `shape`: of o.
template <typename Args>
void place_outputs(Args& args, Placer& placer, Draws& draws, tandem_dtype dtype,
                   const std::int64_t (&shape)[4]) {
  args.o = placer.output(dtype, shape);
  if (draws.below(4) != 0) args.lse = placer.output(TANDEM_FP32, {shape[0], shape[1], shape[2], 1});
}

/// Of the calls that may run, what nobody reads is NaN in a third.
template <typename Call>
void poison_some(Call& call, Draws& draws, void (*poison)(Call&)) {
  call.poisoned = draws.below(3) == 0 && may_run(call);
  if (call.poisoned) poison(call);
}

/// What sinks, slopes and trees are drawn for.
struct ScoreSizes {
  std::int64_t sequences, heads;
  std::int64_t words, queries;  ///< of all trees, and of one
};

/// Sinks, slopes and trees, each in a third of all calls, in arrays as long as the call needs.
struct ScoreOptions {
  std::vector<float> sinks, slopes;
  std::vector<std::uint64_t> tree;

  template <typename Args>
  void draw(Args& args, Draws& draws, Noise& noise, const ScoreSizes& s) {
    if (draws.below(3) == 0) sinks = draw_sinks(s.heads, noise), args.sinks = sinks.data();
    if (draws.below(3) == 0) {
      args.alibi_stride = draws.one_of({std::int64_t{0}, s.heads, s.heads + 3});
      slopes = draw_slopes(std::max<std::int64_t>(s.sequences - 1, 0) * args.alibi_stride + s.heads, noise);
      args.alibi_slopes = slopes.data();
    }
    if (draws.below(3) == 0) tree = draw_tree(s.words, s.queries, noise), args.tree = tree.data();
  }
  /// Whether a call that has any of them has these, and no more of them than there are.
  template <typename Args>
  bool fit(const Args& args, std::int64_t sequences, Wide words) const {
    const std::int64_t heads = args.q.shape[2];
    const auto fits = [](const auto* given, const auto& own, Wide needed) {
      return given == nullptr || (given == own.data() && needed <= static_cast<Wide>(own.size()));
    };
    return fits(args.sinks, sinks, heads) && fits(args.tree, tree, words) &&
           fits(args.alibi_slopes, slopes, (Wide{sequences} - 1) * args.alibi_stride + heads);
  }
};

/// Of a call that was compared; `rows`: it has queries and keys.
template <typename Args>
void count_features_of_scores(const Args& args, bool rows) {
  const tandem_mask mask = args.mask != nullptr && rows ? *args.mask : tandem_mask{};
  const bool slopes = rows && args.alibi_slopes != nullptr;
  count_feature("causal", mask.kind == TANDEM_MASK_CAUSAL);
  count_feature("window", mask.kind == TANDEM_MASK_WINDOW);
  count_feature("chunks", mask.chunk > 0);
  count_feature("sinks", rows && args.sinks != nullptr);
  count_feature("slopes", slopes && args.alibi_stride == 0);
  count_feature("slopes of each sequence", slopes && args.alibi_stride > 0);
  count_feature("tree", rows && args.tree != nullptr);
  count_feature("no lse", rows && args.lse.data == nullptr);
}

/// Tables of angles, of any numbers, and the struct that names them.
struct Angles {
  std::vector<std::byte> cos, sin;
  tandem_rotary rotary{};

  void draw(Draws& draws, Noise& noise, tandem_dtype dtype, std::int64_t head_dim) {
    rotary.struct_size = sizeof rotary;
    rotary.dtype = draws.below(2) == 0 ? TANDEM_FP32 : dtype;
    rotary.positions = draws.between(1, 30);
    rotary.dim = 16 * draws.between(1, head_dim / 16);
    rotary.interleaved = static_cast<std::int32_t>(draws.below(2));
    for (std::vector<std::byte>* table : {&cos, &sin}) {
      table->resize(static_cast<std::size_t>(rotary.positions * rotary.dim / 2) * size_of(rotary.dtype));
      for (std::size_t at = 0; at < table->size(); at += size_of(rotary.dtype))
        store_number(table->data() + at, rotary.dtype, noise, false);
    }
    rotary.cos = cos.data(), rotary.sin = sin.data();
  }
  /// Of a call that was compared, and whether it has them; `dtype`: of q.
  void count_features(bool given, const tandem_dtype& dtype) const {
    count_feature("rotary, interleaved", given && rotary.interleaved == 1);
    count_feature("rotary by halves", given && rotary.interleaved == 0);
    count_feature("rotary of fp32 for 16 bits", given && number(rotary.dtype) != number(dtype));
  }
  /// Whether the tables have what the struct says.
  bool fit() const {
    const Wide bytes =
        Wide{rotary.positions} * (rotary.dim / 2) * static_cast<Wide>(size_of(number(rotary.dtype)));
    return rotary.cos == cos.data() && rotary.sin == sin.data() && bytes <= static_cast<Wide>(cos.size());
  }
};

}  // namespace tandem::fuzz
