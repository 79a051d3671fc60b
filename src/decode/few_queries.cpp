#include "decode/few_queries.h"

#include <algorithm>

#include "decode/plan.h"

namespace tandem::decode {
namespace {

/// More rows of a key/value head would read its keys too often.
constexpr std::int64_t most_rows = 1024;
/// Fewer keys than this are not worth splitting for tiles of more rows than that.
constexpr std::int64_t wide_rows = 16, fewest_keys_of_wide = 2048;

/// Of all sequences and heads, so that their blocks can be counted.
constexpr std::int64_t most_keys = std::int64_t{1} << 30;

/// Bytes of a microsecond.
constexpr double memory_rate = 4.3e6;
/// A step's beginning and end, and the merge of its parts.
constexpr double fixed_us = 4;

/// Microseconds of a multiprocessor for a block of keys: what it takes to read it, but for wide tiles.
double block_us(const DecodeVariant& variant, bool padded) {
  const double kilobytes = variant.block_n * variant.head_dim / 256.0;
  const double us_of_kilobyte = variant.query_rows <= 16 ? 0.022 : variant.head_dim == 128 ? 0.024 : 0.02;
  return kilobytes * us_of_kilobyte * (padded ? 1.35 : 1);  // rows that are no whole lines of L2
}

/// Of a wide tile's parts, which a block reads one after another.
double merge_us(const DecodeVariant& variant, double parts) {
  return parts <= 1
             ? 0
             : (variant.query_rows > 16 ? 4 : 1) + parts * variant.query_rows * variant.head_dim * 4 / 60e3;
}

}  // namespace

std::optional<core::DecodeProblem> step_of(const core::ForwardProblem& p) {
  const bool free =
      p.overlap == TANDEM_OVERLAP_AUTO && p.turn == TANDEM_TURN_AUTO && p.block_m == 0 && p.block_n == 0;
  if (p.varlen.given || p.sinks != nullptr || p.dtype() == TANDEM_E4M3 || p.dtype() == TANDEM_FP32 || !free ||
      p.group() * p.q_len() > most_rows || p.k_len() == 0 ||
      (p.group() * p.q_len() > wide_rows && p.head_dim() > 128 && p.k_len() < fewest_keys_of_wide))
    return std::nullopt;
  core::DecodeProblem step{};
  step.q = p.q, step.k_cache = p.k, step.v_cache = p.v, step.o = p.o, step.lse = p.lse;
  step.mask = p.mask;
  step.scale = p.scale, step.softcap = p.softcap;
  step.kernel = TANDEM_DECODE_AUTO;
  // What TMA takes the forward's checks have seen.
  if (choose_variant(step) == nullptr || p.batch() * p.kv_heads() * p.k_len() > most_keys)
    return std::nullopt;
  return step;
}

double estimated_us(const core::DecodeProblem& step, int sm_count) {
  const DecodeVariant& variant = *choose_variant(step);
  const std::int64_t rows = step.group() * step.q_len(),
                     row_tiles = (rows + variant.query_rows - 1) / variant.query_rows;
  const std::int64_t streams = step.batch() * step.kv_heads() * row_tiles;
  const std::int64_t blocks = streams * ((step.capacity() + variant.block_n - 1) / variant.block_n);
  const std::int64_t share = (blocks + sm_count - 1) / sm_count;
  const double bytes =
      4.0 * static_cast<double>(step.batch() * step.kv_heads() * step.capacity() * step.head_dim());
  const double streams_us = 1.5 * static_cast<double>(streams) / sm_count;
  const double parts = static_cast<double>(sm_count) * variant.resident / static_cast<double>(streams);
  return fixed_us + merge_us(variant, std::min(parts, 16.0)) +
         std::max(
             bytes / memory_rate,
             static_cast<double>(share) * block_us(variant, step.head_dim() < variant.head_dim) + streams_us);
}

}  // namespace tandem::decode
