// One task: a tile of query rows against all keys that they see, block by block, with online softmax.
//
// Everything is transposed: a panel of query rows lies across the lanes of two vectors, keys (and then the
// elements of the head dim) run down. S^T = K Q^T and O^T = V^T P^T then take K, V and P as they lie in
// memory, and the softmax has no operation across lanes. Only Q and O are transposed, once per tile.
#include "cpu/tile.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "cpu/forward.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/tile.cpp"
// This file again for each instruction set, and only then what it uses: the order matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {

static_assert(panel_rows <= max_panel_rows && max_panel_rows % panel_rows == 0);

constexpr float infinity = std::numeric_limits<float>::infinity();

/// What one block of keys and one panel of rows have in common.
struct BlockStep {
  std::size_t key_begin, key_end;  ///< visible to a row of the panel, relative to the block
  bool masked;                     ///< some row of the panel does not see all of them
  bool finite = true;              ///< all values of the block's keys; where masked
  std::int32_t first[max_panel_rows], last[max_panel_rows];  ///< visible to each row; where masked
  bool biased = false;                                       ///< there are slopes
  float slope[max_panel_rows];  ///< of each row, of scores before the rule's factor; where biased
  float ahead[max_panel_rows];  ///< how far a row stands behind the block's first key
  bool tree = false;
  std::int64_t tree_begin;  ///< the first key that words speak of, relative to the block; of trees
  std::uint64_t words[max_panel_rows];  ///< of each row
};

/// How scores become exponents of two: p = 2^(factor * (s - max)), s through tanh(inner * s) if capped.
/// Beyond `coarse_from` an exponent in fp32 is rounded by tens, which p would show. Scores that differ at all
/// differ by so much there that p is 0, so any larger factor will do: `coarse`, a power of two, rounds
/// nothing. Where that would be no float, scores are doubled before, and the factor halved.
struct ScoreRule {
  static constexpr float coarse_from = 0x1p30f, largest_power = 0x1p127f;
  bool capped, doubled;
  float inner, factor, coarse;

  explicit ScoreRule(const core::ForwardProblem& p)
      : capped(p.softcap > 0), inner(capped ? p.scale / p.softcap : 1.0f) {
    const float whole = (capped ? p.softcap : p.scale) * 1.44269504088896340736f;
    doubled = whole > largest_power;
    factor = doubled ? whole / 2 : whole;
    coarse = std::exp2(std::ceil(std::log2(factor)));
  }

  /// The factor for a block of which these are the row maxima. For no two blocks of a row their order differs
  /// before and after.
  HWY_INLINE Vector factor_of(Vector row_max) const {
    const Floats f;
    const Vector exact = hn::Set(f, factor);
    const auto beyond = hn::Ge(hn::Abs(hn::Mul(row_max, exact)), hn::Set(f, coarse_from));
    return hn::IfThenElse(beyond, hn::Set(f, coarse), exact);
  }
  /// The natural logarithm of what a reference stands for.
  double log_of(float reference) const {
    const double unit = std::abs(reference) >= coarse_from ? static_cast<double>(factor) / coarse : 1.0;
    return reference * unit * 0.69314718055994530942;
  }
};

/// What all steps of a tile share.
struct TileWork {
  Scratch scratch;
  std::size_t head_dim, value_dim;
  ScoreRule rule;

  std::size_t key_stride() const { return Scratch::key_stride(head_dim); }
  std::size_t value_stride() const { return Scratch::key_stride(value_dim); }
};

/// The rows of one panel within the tile's scratch.
struct Panel {
  const float* queries;
  float* outputs;
  float* reference;
  float* row_sum;
};

/// For each row of the panel: `seen` where it sees the key, else `hidden`. Of masked steps.
HWY_INLINE Pair where_seen(const BlockStep& step, std::size_t key, Pair seen, Pair hidden) {
  const Floats f;
  const hn::RebindToSigned<Floats> i;
  const auto at = hn::Set(i, static_cast<std::int32_t>(key));
  std::int32_t behind[max_panel_rows] = {};  // a row's word hides the key
  if (const std::int64_t bit = static_cast<std::int64_t>(key) - step.tree_begin; step.tree && bit >= 0)
    for (std::size_t lane = 0; lane < panel_rows; ++lane)
      behind[lane] = core::word_shows(step.words[lane], bit) ? 0 : 1;
  const auto choose = [&](Vector yes, Vector no, std::size_t lane) HWY_ATTR {
    const auto beyond =
        hn::Or(hn::Lt(at, hn::LoadU(i, step.first + lane)), hn::Gt(at, hn::LoadU(i, step.last + lane)));
    const auto outside = hn::Or(beyond, hn::Ne(hn::LoadU(i, behind + lane), hn::Zero(i)));
    return hn::IfThenElse(hn::RebindMask(f, outside), no, yes);
  };
  return {choose(seen.low, hidden.low, 0), choose(seen.high, hidden.high, lanes)};
}

/// Scores of a key, less by the rows' slopes and its distance.
HWY_INLINE Pair less_by_distance(const BlockStep& step, std::size_t key, Pair scores) {
  const Floats f;
  const Vector at = hn::Set(f, static_cast<float>(key));
  const auto lessened = [&](Vector score, std::size_t lane) HWY_ATTR {
    const Vector distance = hn::Abs(hn::Sub(hn::LoadU(f, step.ahead + lane), at));
    return hn::NegMulAdd(hn::LoadU(f, step.slope + lane), distance, score);
  };
  return {lessened(scores.low, 0), lessened(scores.high, lanes)};
}

/// Scores of `rows` keys from `key` on, capped, biased and masked, into the transposed scores; raises
/// `row_max`.
template <int rows>
HWY_INLINE void score_keys(const TileWork& work, const Panel& panel, const BlockStep& step, std::size_t key,
                           Pair& row_max) {
  const Floats f;
  const std::size_t stride = work.key_stride();
  Pair sums[rows];
  for (Pair& sum : sums) sum = splat(0.0f);
  multiply_add<rows>({work.scratch.keys + key * stride, stride, 1}, panel.queries, work.head_dim, sums);
  for (int r = 0; r < rows; ++r) {
    if (work.rule.capped) {
      const Vector inner = hn::Set(f, work.rule.inner);
      sums[r] = {hn::CallTanh(f, hn::Mul(sums[r].low, inner)), hn::CallTanh(f, hn::Mul(sums[r].high, inner))};
    }
    if (work.rule.doubled) sums[r] = {hn::Add(sums[r].low, sums[r].low), hn::Add(sums[r].high, sums[r].high)};
    if (step.biased) sums[r] = less_by_distance(step, key + static_cast<std::size_t>(r), sums[r]);
    if (step.masked) sums[r] = where_seen(step, key + static_cast<std::size_t>(r), sums[r], splat(-infinity));
    row_max = {hn::Max(row_max.low, sums[r].low), hn::Max(row_max.high, sums[r].high)};
    store(sums[r], work.scratch.scores + (key + static_cast<std::size_t>(r)) * panel_rows);
  }
}

/// score_keys for the `count` keys that are left, fewer than the micro-kernel has rows.
template <int rows = kernel_rows - 1>
HWY_INLINE void score_rest(const TileWork& work, const Panel& panel, const BlockStep& step, std::size_t key,
                           std::size_t count, Pair& row_max) {
  if constexpr (rows > 0) {
    if (count == rows) {
      score_keys<rows>(work, panel, step, key, row_max);
    } else {
      score_rest<rows - 1>(work, panel, step, key, count, row_max);
    }
  }
}

/// Scores of the step's keys; returns the row maxima.
HWY_INLINE Pair score_block(const TileWork& work, const Panel& panel, const BlockStep& step) {
  Pair row_max = splat(-infinity);
  std::size_t key = step.key_begin;
  for (; key + kernel_rows <= step.key_end; key += kernel_rows) {
    score_keys<kernel_rows>(work, panel, step, key, row_max);
  }
  score_rest(work, panel, step, key, step.key_end - key, row_max);
  return row_max;
}

/// Turns scores into weights 2^(factor * s - reference) in place and returns their sums.
HWY_INLINE Pair weigh_block(float* scores, const BlockStep& step, Pair factor, Pair reference) {
  Pair sums = splat(0.0f);
  for (std::size_t key = step.key_begin; key < step.key_end; ++key) {
    const Pair s = load(scores + key * panel_rows);
    const Pair weights =
        exp2({hn::MulSub(factor.low, s.low, reference.low), hn::MulSub(factor.high, s.high, reference.high)});
    sums = {hn::Add(sums.low, weights.low), hn::Add(sums.high, weights.high)};
    store(weights, scores + key * panel_rows);
  }
  return sums;
}

/// Elements [element, element + rows) of the outputs: rescaled, plus weights times values.
template <int rows>
HWY_INLINE void add_values(const TileWork& work, const Panel& panel, const BlockStep& step,
                           std::size_t element, Pair rescale) {
  const std::size_t stride = work.value_stride();
  float* outputs = panel.outputs + element * panel_rows;
  Pair sums[rows];
  for (int r = 0; r < rows; ++r) {
    const Pair old = load(outputs + static_cast<std::size_t>(r) * panel_rows);
    sums[r] = {hn::Mul(old.low, rescale.low), hn::Mul(old.high, rescale.high)};
  }
  multiply_add<rows>({work.scratch.values + step.key_begin * stride + element, 1, stride},
                     work.scratch.scores + step.key_begin * panel_rows, step.key_end - step.key_begin, sums);
  for (int r = 0; r < rows; ++r) store(sums[r], outputs + static_cast<std::size_t>(r) * panel_rows);
}

HWY_INLINE void add_value_block(const TileWork& work, const Panel& panel, const BlockStep& step,
                                Pair rescale) {
  std::size_t element = 0;
  for (; element + kernel_rows <= work.value_dim; element += kernel_rows) {
    add_values<kernel_rows>(work, panel, step, element, rescale);
  }
  for (; element < work.value_dim; element += 2) {  // value_dim is even
    add_values<2>(work, panel, step, element, rescale);
  }
}

/// add_value_block, key by key and only for the rows that see it: elsewhere its weight is 0, but 0 times a
/// value that is not finite would be NaN.
void add_seen_values(const TileWork& work, const Panel& panel, const BlockStep& step, Pair rescale) {
  for (std::size_t element = 0; element < work.value_dim; ++element) {
    float* output = panel.outputs + element * panel_rows;
    const Pair old = load(output);
    Pair sum = {hn::Mul(old.low, rescale.low), hn::Mul(old.high, rescale.high)};
    for (std::size_t key = step.key_begin; key < step.key_end; ++key) {
      const Vector value = hn::Set(Floats(), work.scratch.values[key * work.value_stride() + element]);
      const Pair weight = load(work.scratch.scores + key * panel_rows);
      const Pair more = {hn::MulAdd(value, weight.low, sum.low), hn::MulAdd(value, weight.high, sum.high)};
      sum = where_seen(step, key, more, sum);
    }
    store(sum, output);
  }
}

/// One block of keys for one panel of rows: online softmax in base 2. A row's reference, what is subtracted
/// in its exponents, is its maximum times the factor as it was rounded; weights, rescaling and lse all go by
/// that one number, so that its rounding cancels, however many blocks there are. Finite from the start: a row
/// that sees no key so far has weights of 0.
void attend_block(const TileWork& work, const Panel& panel, const BlockStep& step) {
  const Pair row_max = score_block(work, panel, step);
  const Pair factor = {work.rule.factor_of(row_max.low), work.rule.factor_of(row_max.high)};
  const Pair last = load(panel.reference);
  const Pair reference = {hn::Max(last.low, hn::Mul(row_max.low, factor.low)),
                          hn::Max(last.high, hn::Mul(row_max.high, factor.high))};
  const Pair rescale = exp2({hn::Sub(last.low, reference.low), hn::Sub(last.high, reference.high)});
  const Pair sums = weigh_block(work.scratch.scores, step, factor, reference);
  const Pair old_sum = load(panel.row_sum);
  store(reference, panel.reference);
  store({hn::MulAdd(old_sum.low, rescale.low, sums.low), hn::MulAdd(old_sum.high, rescale.high, sums.high)},
        panel.row_sum);
  if (step.masked && !step.finite) return add_seen_values(work, panel, step, rescale);
  add_value_block(work, panel, step, rescale);
}

/// Rows of one key/value head of a batch entry.
struct RowRange {
  std::int64_t batch, begin, end;
};

/// At most block_keys keys.
struct KeyBlock {
  std::int64_t begin, count;
};

/// The keys that rows of one panel see of the block.
BlockStep block_step(const core::ForwardProblem& p, const RowRange& rows, const KeyBlock& block) {
  const auto [batch, row_begin, row_end] = rows;
  const auto visible = [&](std::int64_t row) {
    return p.mask.visible_keys(row / p.group(), p.q_len(), p.k_len());
  };
  const auto within = [&](std::int64_t key) {
    return std::clamp<std::int64_t>(key - block.begin, 0, block.count);
  };
  const core::KeyRange first = visible(row_begin), last = visible(row_end - 1);
  BlockStep step;
  step.key_begin = static_cast<std::size_t>(within(first.begin));
  step.key_end = static_cast<std::size_t>(std::max(within(last.end), within(first.begin)));
  step.masked = within(last.begin) > within(first.begin) || within(first.end) < within(last.end);
  step.tree_begin = p.k_len() - p.q_len() - block.begin;
  step.tree = p.is_tree() && static_cast<std::int64_t>(step.key_end) > step.tree_begin;
  step.masked = step.masked || step.tree;
  if (!step.masked) return step;
  for (std::int64_t lane = 0; lane < static_cast<std::int64_t>(panel_rows); ++lane) {
    const std::int64_t row = std::min(row_begin + lane, row_end - 1);
    const core::KeyRange keys = visible(row);
    if (step.tree) step.words[lane] = p.tree[batch * p.q_len() + row / p.group()];
    step.first[lane] = static_cast<std::int32_t>(within(keys.begin));
    step.last[lane] = static_cast<std::int32_t>(within(keys.end)) - 1;
  }
  return step;
}

/// The slopes of a panel that begins at `row_begin`, and where its rows stand.
void take_slopes(const core::ForwardProblem& p, const Tile& tile, const ScoreRule& rule,
                 std::int64_t row_begin, std::int64_t block, BlockStep& step) {
  step.biased = p.slopes.given();
  if (!step.biased) return;
  const float unit = (rule.doubled ? 2 : 1) / (p.softcap > 0 ? p.softcap : p.scale);
  for (std::int64_t lane = 0; lane < static_cast<std::int64_t>(panel_rows); ++lane) {
    const std::int64_t row = std::min(row_begin + lane, tile.row_end - 1),
                       head = tile.kv_head * p.group() + row % p.group();
    step.slope[lane] = p.slopes.of(tile.batch, head) * unit;
    step.ahead[lane] = static_cast<float>(row / p.group() + p.k_len() - p.q_len() - block);
  }
}

Panel panel_of(const TileWork& work, std::size_t row) {
  const Scratch& s = work.scratch;
  return {s.queries + row * work.head_dim, s.outputs + row * work.value_dim, s.reference + row,
          s.row_sum + row};
}

/// Transposes the tile's queries into panels, rows beyond it as 0, and resets the outputs.
template <typename Element>
void load_queries(const core::ForwardProblem& p, const Tile& tile, const Scratch& scratch, std::size_t rows) {
  const auto head_dim = static_cast<std::size_t>(p.head_dim());
  std::fill_n(scratch.queries, rows * head_dim, 0.0f);
  std::fill_n(scratch.outputs, rows * static_cast<std::size_t>(p.value_dim()), 0.0f);
  std::fill_n(scratch.reference, rows, std::numeric_limits<float>::lowest());
  std::fill_n(scratch.row_sum, rows, 0.0f);
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const auto at = static_cast<std::size_t>(row - tile.row_begin);
    const Element* from =
        core::row_of<Element>(p.q, tile.batch, row / p.group(), tile.kv_head * p.group() + row % p.group());
    float* to = scratch.queries + at / panel_rows * panel_rows * head_dim + at % panel_rows;
    for (std::size_t e = 0; e < head_dim; ++e) to[e * panel_rows] = static_cast<float>(from[e]);
  }
}

/// The part of the weight that keys have where a sink has some too; `lse`, of the keys, becomes that of both.
float share_beside_sink(double sink, double& lse) {
  const double of_keys = lse, top = std::max(of_keys, sink);
  if (top == -std::numeric_limits<double>::infinity()) return 1.0f;
  lse = top + std::log(std::exp(of_keys - top) + std::exp(sink - top));
  return static_cast<float>(std::exp(of_keys - lse));
}

/// Divides by the row sums, transposes back and writes o and lse.
template <typename Element>
void store_outputs(const core::ForwardProblem& p, const Tile& tile, const TileWork& work) {
  const auto& [scratch, head_dim, value_dim, rule] = work;
  for (std::int64_t row = tile.row_begin; row < tile.row_end; ++row) {
    const auto at = static_cast<std::size_t>(row - tile.row_begin);
    const std::int64_t query = row / p.group(), head = tile.kv_head * p.group() + row % p.group();
    const float row_sum = scratch.row_sum[at];
    const float divisor = row_sum == 0 ? 1.0f : row_sum;  // no key with any weight: o = 0
    const double log_reference = row_sum == 0 ? 0.0 : rule.log_of(scratch.reference[at]);
    double lse = log_reference + std::log(static_cast<double>(row_sum));
    const float share = p.sinks == nullptr ? 1.0f : share_beside_sink(p.sinks[head], lse);
    const float* from = scratch.outputs + at / panel_rows * panel_rows * value_dim + at % panel_rows;
    auto* to = core::row_of<Element>(p.o, tile.batch, query, head);
    for (std::size_t e = 0; e < value_dim; ++e) {
      const float value = from[e * panel_rows] / divisor * share;
      if constexpr (std::is_same_v<Element, float>) {
        to[e] = value;
      } else {
        to[e] = Element::from(value);
      }
    }
    if (p.lse.data == nullptr) continue;
    *core::row_of<float>(p.lse, tile.batch, query, head) = static_cast<float>(lse);
  }
}

/// Calls visit(block) for the blocks of keys that the tile's rows see keys of.
template <typename Visit>
void for_each_key_block(const core::ForwardProblem& p, const Tile& tile, Visit visit) {
  const std::int64_t q_begin = tile.row_begin / p.group(), q_end = (tile.row_end - 1) / p.group() + 1;
  const auto visit_range = [&](std::int64_t begin, std::int64_t end) {
    for (; begin < end; begin += block_keys)
      visit(KeyBlock{begin, std::min<std::int64_t>(end - begin, block_keys)});
  };
  const std::int64_t from = p.mask.visible_keys(q_begin, p.q_len(), p.k_len()).begin,
                     to = p.mask.visible_keys(q_end - 1, p.q_len(), p.k_len()).end;
  if (from >= to) return;
  if (tile.listed.block == 0) return visit_range(from / block_keys * block_keys, to);
  for (const std::int64_t block : tile.listed.blocks) {
    if (block < 0) continue;  // and of those behind the last key nothing is visible
    const std::int64_t begin = block * tile.listed.block;
    visit_range(std::max(begin, from), std::min(begin + tile.listed.block, to));
  }
}

template <typename Element>
void compute_tile_of(const core::ForwardProblem& p, const Tile& tile, const Scratch& scratch) {
  const TileWork work{scratch, static_cast<std::size_t>(p.head_dim()),
                      static_cast<std::size_t>(p.value_dim()), ScoreRule(p)};
  const std::size_t stride = work.key_stride(), value_stride = work.value_stride();
  const auto rows = static_cast<std::size_t>(tile.row_end - tile.row_begin);
  const auto padded_rows = static_cast<std::size_t>(
      core::round_up(tile.row_end - tile.row_begin, static_cast<std::int64_t>(panel_rows)));
  load_queries<Element>(p, tile, scratch, padded_rows);

  for_each_key_block(p, tile, [&](const KeyBlock& block) {
    const BlockStep seen = block_step(p, {tile.batch, tile.row_begin, tile.row_end}, block);
    bool finite = true;
    for (std::size_t key = seen.key_begin; key < seen.key_end; ++key) {
      const std::int64_t s = block.begin + static_cast<std::int64_t>(key);
      const KeyPlace place = tile.keys[s];
      widen(row_at<Element>(p.k, place, tile.kv_head), work.head_dim, scratch.keys + key * stride);
      widen(row_at<Element>(p.v, place, tile.kv_head), work.value_dim, scratch.values + key * value_stride);
      if (seen.masked) finite = finite && all_finite(scratch.values + key * value_stride, work.value_dim);
    }
    for (std::size_t row = 0; row < rows; row += panel_rows) {
      const std::int64_t begin = tile.row_begin + static_cast<std::int64_t>(row);
      const std::int64_t end =
          std::min<std::int64_t>(begin + static_cast<std::int64_t>(panel_rows), tile.row_end);
      BlockStep step = block_step(p, {tile.batch, begin, end}, block);
      step.finite = finite;
      take_slopes(p, tile, work.rule, begin, block.begin, step);
      if (step.key_begin < step.key_end) {
        attend_block(work, panel_of(work, row), step);
      }
    }
  });
  store_outputs<Element>(p, tile, work);
}

void compute_tile(const core::ForwardProblem& p, const Tile& tile, const Scratch& scratch) {
  switch (p.dtype()) {
    case TANDEM_BF16:
      return compute_tile_of<core::Bf16>(p, tile, scratch);
    case TANDEM_FP16:
      return compute_tile_of<core::Fp16>(p, tile, scratch);
    case TANDEM_FP32:
      return compute_tile_of<float>(p, tile, scratch);
    case TANDEM_E4M3:
    case TANDEM_INT8:  // widened before (forward_eight_bit.cpp)
      break;
  }
}

const char* target_name() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(compute_tile);
HWY_EXPORT(target_name);

void run_tile(const core::ForwardProblem& p, const Tile& tile, const Scratch& scratch) {
  HWY_DYNAMIC_DISPATCH(compute_tile)(p, tile, scratch);
}

const char* simd_name() { return HWY_DYNAMIC_DISPATCH(target_name)(); }

}  // namespace tandem::cpu
#endif
