// One task of the backward pass: a tile of rows, past which the rows of the other side stream.
//
// As in the forward, rows of the tile lie across the lanes of two vectors, a panel, and rows of the stream
// run down, so that nothing works across lanes. Of a tile of queries these are S^T = K Q^T and dP^T = V dO^T,
// and dQ^T += K^T dS^T; of a tile of keys S = Q K^T and dP = dO V^T, and dK^T += Q^T dS, dV^T += dO^T P. With
// the names of BackwardScratch both are one piece of code:
//   S = stream_first tile_first, dP = stream_second tile_second,
//   out_first += stream_first^T dS, and for keys out_second += stream_second^T P.
#include "cpu/backward_tile.h"

#include <algorithm>
#include <limits>
#include <type_traits>

#include "core/dtype.h"
#include "cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_tile.cpp"
// This file again for each instruction set, and only then what it uses: the order matters.
// clang-format off
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>
#include "cpu/simd-inl.h"
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {

using core::BackwardProblem;

constexpr float infinity = std::numeric_limits<float>::infinity();

/// What the tile knows of its own problem.
struct BackwardWork {
  const BackwardProblem& p;
  const BackwardTile& tile;
  const RowStatistics& statistics;
  const BackwardScratch& scratch;

  std::size_t head_dim() const { return static_cast<std::size_t>(p.head_dim()); }
  std::size_t stride() const { return Scratch::key_stride(head_dim()); }
};

/// What one panel of the tile and one block of the stream have in common.
struct StreamStep {
  std::size_t begin, end;  ///< rows of the block that some row of the panel meets
  bool masked;             ///< some row of the panel does not meet all of them
  bool finite;             ///< all elements of the block's rows
  std::int32_t first[max_panel_rows], last[max_panel_rows];  ///< met by each row; where masked
  const float *lse, *delta;  ///< of the panel's rows, or of the block's, whichever are queries
};

/// One panel within the tile's scratch.
struct BackwardPanel {
  const float *first, *second;
  float *out_first, *out_second;
};

/// How a score becomes a probability e^(factor * s - lse), s through tanh(inner * s) if capped.
struct ProbabilityRule {
  bool capped;
  float inner, factor;

  explicit ProbabilityRule(const BackwardProblem& p)
      : capped(p.softcap > 0),
        inner(capped ? p.scale / p.softcap : 1.0f),
        factor(capped ? p.softcap : p.scale) {}
};

/// The statistic of the queries that meet row `row` of the block.
template <Side side>
HWY_INLINE Pair statistic(const float* values, std::size_t row) {
  return side == Side::queries ? load(values) : splat(values[row]);
}

/// For each row of the panel: `met` where it meets row `row` of the block, else `other`. Of masked steps.
HWY_INLINE Pair where_met(const StreamStep& step, std::size_t row, Pair met, Pair other) {
  const Floats f;
  const hn::RebindToSigned<Floats> i;
  const auto at = hn::Set(i, static_cast<std::int32_t>(row));
  const auto choose = [&](Vector yes, Vector no, std::size_t lane) HWY_ATTR {
    const auto outside =
        hn::Or(hn::Lt(at, hn::LoadU(i, step.first + lane)), hn::Gt(at, hn::LoadU(i, step.last + lane)));
    return hn::IfThenElse(hn::RebindMask(f, outside), no, yes);
  };
  return {choose(met.low, other.low, 0), choose(met.high, other.high, lanes)};
}

/// e^(factor * s - lse), infinity from 2^128 on. The difference comes before the change of base: then large
/// scores lose nothing to the rounding of factor * log2(e).
HWY_INLINE Vector probability(Vector factor, Vector s, Vector lse) {
  const Floats f;
  const Vector x = hn::Mul(hn::MulSub(factor, s, lse), hn::Set(f, 1.44269504088896340736f));
  const Vector limit = hn::Set(f, 128.0f);
  return exp2(hn::IfThenElse(hn::Gt(x, limit), limit, x));
}

/// P of `rows` rows of the stream from `row` on; if capped also P (1 - tanh^2), where dS will stand.
template <Side side, int rows>
HWY_INLINE void find_probabilities(const BackwardWork& work, const BackwardPanel& panel,
                                   const StreamStep& step, std::size_t row) {
  const Floats f;
  const ProbabilityRule rule(work.p);
  const Vector factor = hn::Set(f, rule.factor), inner = hn::Set(f, rule.inner);
  Pair sums[rows];
  for (Pair& sum : sums) sum = splat(0.0f);
  multiply_add<rows>({work.scratch.stream_first + row * work.stride(), work.stride(), 1}, panel.first,
                     work.head_dim(), sums);
  for (std::size_t r = 0; r < rows; ++r) {
    Pair s = sums[r];
    if (rule.capped) s = {hn::CallTanh(f, hn::Mul(s.low, inner)), hn::CallTanh(f, hn::Mul(s.high, inner))};
    const Pair lse = statistic<side>(step.lse, row + r);
    Pair p = {probability(factor, s.low, lse.low), probability(factor, s.high, lse.high)};
    if (step.masked) p = where_met(step, row + r, p, splat(0.0f));
    store(p, work.scratch.probabilities + (row + r) * panel_rows);
    if (!rule.capped) continue;
    const Pair slope = {hn::NegMulAdd(s.low, s.low, hn::Set(f, 1.0f)),
                        hn::NegMulAdd(s.high, s.high, hn::Set(f, 1.0f))};
    store({hn::Mul(p.low, slope.low), hn::Mul(p.high, slope.high)},
          work.scratch.gradients + (row + r) * panel_rows);
  }
}

/// dS of the same rows.
template <Side side, int rows>
HWY_INLINE void find_gradients(const BackwardWork& work, const BackwardPanel& panel, const StreamStep& step,
                               std::size_t row) {
  const BackwardScratch& scratch = work.scratch;
  const float* weights = work.p.softcap > 0 ? scratch.gradients : scratch.probabilities;
  Pair sums[rows];
  for (Pair& sum : sums) sum = splat(0.0f);
  multiply_add<rows>({scratch.stream_second + row * work.stride(), work.stride(), 1}, panel.second,
                     work.head_dim(), sums);
  for (std::size_t r = 0; r < rows; ++r) {
    const Pair delta = statistic<side>(step.delta, row + r), weight = load(weights + (row + r) * panel_rows);
    Pair ds = {hn::Mul(weight.low, hn::Sub(sums[r].low, delta.low)),
               hn::Mul(weight.high, hn::Sub(sums[r].high, delta.high))};
    if (step.masked) ds = where_met(step, row + r, ds, splat(0.0f));
    store(ds, scratch.gradients + (row + r) * panel_rows);
  }
}

/// P and dS of the `count` rows from `row` on, at most as many as the micro-kernel has.
template <Side side, int rows = kernel_rows>
HWY_INLINE void weigh_rows(const BackwardWork& work, const BackwardPanel& panel, const StreamStep& step,
                           std::size_t row, std::size_t count) {
  if constexpr (rows > 0) {
    if (count == rows) {
      find_probabilities<side, rows>(work, panel, step, row);
      find_gradients<side, rows>(work, panel, step, row);
    } else {
      weigh_rows<side, rows - 1>(work, panel, step, row, count);
    }
  }
}

/// Elements [element, element + rows) of the output: plus stream^T times weights.
template <int rows>
HWY_INLINE void add_elements(const BackwardWork& work, const StreamStep& step, const float* stream,
                             const float* weights, float* out, std::size_t element) {
  const std::size_t stride = work.stride();
  out += element * panel_rows;
  Pair sums[rows];
  for (std::size_t r = 0; r < rows; ++r) sums[r] = load(out + r * panel_rows);
  multiply_add<rows>({stream + step.begin * stride + element, 1, stride}, weights + step.begin * panel_rows,
                     step.end - step.begin, sums);
  for (std::size_t r = 0; r < rows; ++r) store(sums[r], out + r * panel_rows);
}

/// add_elements, row by row of the stream and only for the rows of the panel that meet it: elsewhere its
/// weight is 0, but 0 times what is not finite would be NaN.
void add_met_elements(const BackwardWork& work, const StreamStep& step, const float* stream,
                      const float* weights, float* out) {
  for (std::size_t element = 0; element < work.head_dim(); ++element) {
    Pair sum = load(out + element * panel_rows);
    for (std::size_t row = step.begin; row < step.end; ++row) {
      const Vector value = hn::Set(Floats(), stream[row * work.stride() + element]);
      const Pair weight = load(weights + row * panel_rows);
      const Pair more = {hn::MulAdd(value, weight.low, sum.low), hn::MulAdd(value, weight.high, sum.high)};
      sum = where_met(step, row, more, sum);
    }
    store(sum, out + element * panel_rows);
  }
}

/// The whole output: plus stream^T times weights.
HWY_INLINE void add_product(const BackwardWork& work, const StreamStep& step, const float* stream,
                            const float* weights, float* out) {
  if (step.masked && !step.finite) return add_met_elements(work, step, stream, weights, out);
  std::size_t element = 0;
  for (; element + kernel_rows <= work.head_dim(); element += kernel_rows)
    add_elements<kernel_rows>(work, step, stream, weights, out, element);
  for (; element < work.head_dim(); element += 2)  // head_dim is even
    add_elements<2>(work, step, stream, weights, out, element);
}

/// One block of the stream for one panel. Beside it stand the lines of Algorithm 3.
template <Side side>
void meet_block(const BackwardWork& work, const BackwardPanel& panel, const StreamStep& step) {
  const BackwardScratch& scratch = work.scratch;
  for (std::size_t row = step.begin; row < step.end; row += kernel_rows)
    weigh_rows<side>(work, panel, step, row, std::min<std::size_t>(kernel_rows, step.end - row));  // 21-25
  if constexpr (side == Side::keys) {
    for (std::size_t row = step.begin; row < step.end; ++row) {  // queries without a part, whatever V and K
      if (step.lse[row] != infinity) continue;
      std::fill_n(scratch.probabilities + row * panel_rows, panel_rows, 0.0f);
      std::fill_n(scratch.gradients + row * panel_rows, panel_rows, 0.0f);
    }
    add_product(work, step, scratch.stream_second, scratch.probabilities, panel.out_second);  // 26: dV
  }
  add_product(work, step, scratch.stream_first, scratch.gradients, panel.out_first);  // 27: dK, 28: dQ
}

/// Rows of the stream that a row of the tile meets.
core::KeyRange met_by(const BackwardProblem& p, Side side, std::int64_t row) {
  if (side == Side::queries) return p.mask.visible_keys(row / p.group(), p.q_len(), p.k_len());
  const core::KeyRange queries = p.mask.transposed().visible_keys(row, p.k_len(), p.q_len());
  return {queries.begin * p.group(), queries.end * p.group()};
}

/// What the rows [row_begin, row_end) of one panel meet of the block that starts at `block`.
StreamStep stream_step(const BackwardWork& work, std::int64_t row_begin, std::int64_t row_end,
                       std::int64_t block) {
  const auto& [p, tile, statistics, scratch] = work;
  const auto within = [&](std::int64_t row) { return std::clamp<std::int64_t>(row - block, 0, stream_rows); };
  const core::KeyRange first = met_by(p, tile.side, row_begin), last = met_by(p, tile.side, row_end - 1);
  const bool of_queries = tile.side == Side::queries;
  StreamStep step;
  step.begin = static_cast<std::size_t>(within(first.begin));
  step.end = static_cast<std::size_t>(std::max(within(last.end), within(first.begin)));
  step.masked = within(last.begin) > within(first.begin) || within(first.end) < within(last.end);
  step.lse = statistics.lse + (of_queries ? row_begin : block);
  step.delta = statistics.delta + (of_queries ? row_begin : block);
  for (std::int64_t row = row_begin; of_queries && row < row_end; ++row)
    step.masked |= statistics.lse[row] == infinity;
  if (!step.masked) return step;
  for (std::int64_t lane = 0; lane < static_cast<std::int64_t>(panel_rows); ++lane) {
    const std::int64_t row = std::min(row_begin + lane, row_end - 1);
    const core::KeyRange met = met_by(p, tile.side, row);
    const bool counts = !of_queries || statistics.lse[row] != infinity;
    step.first[lane] = static_cast<std::int32_t>(within(met.begin));
    step.last[lane] = counts ? static_cast<std::int32_t>(within(met.end)) - 1 : -1;
  }
  return step;
}

/// Row `row` of a side's tensor.
template <typename Element>
Element* row_at(const BackwardWork& work, Side side, const core::Tensor& tensor, std::int64_t row) {
  const auto& [p, tile, statistics, scratch] = work;
  if (side == Side::keys) return core::row_of<Element>(tensor, tile.batch, row, tile.kv_head);
  return core::row_of<Element>(tensor, tile.batch, row / p.group(),
                               tile.kv_head * p.group() + row % p.group());
}

/// False for a query that has no part in any gradient, which is not to be read.
bool counts(const BackwardWork& work, Side side, std::int64_t row) {
  return side == Side::keys || work.statistics.lse[row] != infinity;
}

/// Where row `row` of the tile stands in panels: element e at [e * panel_rows].
std::size_t place_in_panels(const BackwardWork& work, std::int64_t row) {
  const auto at = static_cast<std::size_t>(row - work.tile.row_begin);
  return at / panel_rows * panel_rows * work.head_dim() + at % panel_rows;
}

/// Transposes rows of the tile into panels, zeros beyond them.
template <typename Element>
void load_tile(const BackwardWork& work, const core::Tensor& from, std::size_t padded_rows, float* panels) {
  std::fill_n(panels, padded_rows * work.head_dim(), 0.0f);
  for (std::int64_t row = work.tile.row_begin; row < work.tile.row_end; ++row) {
    if (!counts(work, work.tile.side, row)) continue;
    const Element* elements = row_at<const Element>(work, work.tile.side, from, row);
    float* to = panels + place_in_panels(work, row);
    for (std::size_t e = 0; e < work.head_dim(); ++e) to[e * panel_rows] = static_cast<float>(elements[e]);
  }
}

/// Scales, transposes back and writes a gradient of the tile's rows.
template <typename Element>
void store_tile(const BackwardWork& work, const float* panels, float scale, const core::Tensor& to) {
  for (std::int64_t row = work.tile.row_begin; row < work.tile.row_end; ++row) {
    const float* from = panels + place_in_panels(work, row);
    auto* elements = row_at<Element>(work, work.tile.side, to, row);
    const bool written = counts(work, work.tile.side, row);
    for (std::size_t e = 0; e < work.head_dim(); ++e) {
      const float value = written ? scale * from[e * panel_rows] : 0.0f;
      if constexpr (std::is_same_v<Element, float>) {
        elements[e] = value;
      } else {
        elements[e] = Element::from(value);
      }
    }
  }
}

/// Converts rows of the other side into the stream's scratch, from slot `begin - block` on. Whether all are
/// finite.
template <typename Element>
bool load_stream(const BackwardWork& work, const core::Tensor& from, const core::KeyRange& rows,
                 std::int64_t block, float* stream) {
  const Side side = work.tile.side == Side::queries ? Side::keys : Side::queries;
  bool finite = true;
  for (std::int64_t row = rows.begin; row < rows.end; ++row) {
    float* to = stream + static_cast<std::size_t>(row - block) * work.stride();
    if (!counts(work, side, row)) {
      std::fill_n(to, work.head_dim(), 0.0f);
      continue;
    }
    widen(row_at<const Element>(work, side, from, row), work.head_dim(), to);
    finite = finite && all_finite(to, work.head_dim());
  }
  return finite;
}

BackwardPanel panel_of(const BackwardWork& work, std::size_t row) {
  const BackwardScratch& s = work.scratch;
  const std::size_t at = row * work.head_dim();
  return {s.tile_first + at, s.tile_second + at, s.out_first + at, s.out_second + at};
}

/// Algorithm 3 for one tile; lines 18 and 29 are the loop over blocks.
template <Side side, typename Element>
void compute_tile_of(const BackwardWork& work) {
  const auto& [p, tile, statistics, scratch] = work;
  constexpr bool of_queries = side == Side::queries;
  const auto rows = static_cast<std::size_t>(tile.row_end - tile.row_begin);
  const auto padded_rows = static_cast<std::size_t>(
      core::round_up(tile.row_end - tile.row_begin, static_cast<std::int64_t>(panel_rows)));
  load_tile<Element>(work, of_queries ? p.q : p.k, padded_rows, scratch.tile_first);
  load_tile<Element>(work, of_queries ? p.dout : p.v, padded_rows, scratch.tile_second);
  for (float* out : {scratch.out_first, scratch.out_second})
    std::fill_n(out, padded_rows * work.head_dim(), 0.0f);

  const core::KeyRange met{met_by(p, side, tile.row_begin).begin, met_by(p, side, tile.row_end - 1).end};
  for (std::int64_t block = met.begin / stream_rows * stream_rows; block < met.end; block += stream_rows) {
    const core::KeyRange streamed{std::max(block, met.begin), std::min(block + stream_rows, met.end)};
    const bool first_finite =
        load_stream<Element>(work, of_queries ? p.k : p.q, streamed, block, scratch.stream_first);
    const bool second_finite =
        load_stream<Element>(work, of_queries ? p.v : p.dout, streamed, block, scratch.stream_second);
    for (std::size_t row = 0; row < rows; row += panel_rows) {
      const std::int64_t begin = tile.row_begin + static_cast<std::int64_t>(row);
      const std::int64_t end = std::min(begin + static_cast<std::int64_t>(panel_rows), tile.row_end);
      StreamStep step = stream_step(work, begin, end, block);
      step.finite = first_finite && second_finite;
      if (step.begin < step.end) meet_block<side>(work, panel_of(work, row), step);
    }
  }
  store_tile<Element>(work, scratch.out_first, p.scale, of_queries ? p.dq : p.dk);
  if (!of_queries) store_tile<Element>(work, scratch.out_second, 1.0f, p.dv);
}

template <typename Element>
void compute_tile_as(const BackwardWork& work) {
  if (work.tile.side == Side::queries) {
    compute_tile_of<Side::queries, Element>(work);
  } else {
    compute_tile_of<Side::keys, Element>(work);
  }
}

void compute_backward_tile(const BackwardProblem& p, const BackwardTile& tile,
                           const RowStatistics& statistics, const BackwardScratch& scratch) {
  const BackwardWork work{p, tile, statistics, scratch};
  switch (p.dtype()) {
    case TANDEM_BF16:
      return compute_tile_as<core::Bf16>(work);
    case TANDEM_FP16:
      return compute_tile_as<core::Fp16>(work);
    case TANDEM_FP32:
      return compute_tile_as<float>(work);
    case TANDEM_E4M3:
    case TANDEM_INT8:  // no backward pass has them
      return;
  }
}

}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::cpu {

HWY_EXPORT(compute_backward_tile);

void run_backward_tile(const core::BackwardProblem& p, const BackwardTile& tile,
                       const RowStatistics& statistics, const BackwardScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(compute_backward_tile)(p, tile, statistics, scratch);
}

}  // namespace tandem::cpu
#endif
