#include "forward/split.h"

#include <algorithm>
#include <cstdint>

#include "core/hopper.h"
#include "core/integers.h"
#include "core/workspace.h"
#include "forward/cost.h"
#include "forward/plan.h"

namespace tandem::forward {
namespace {

using core::ForwardProblem;

constexpr std::int64_t fewest_keys = 256;  ///< of a part, so that it is worth a tile's beginning and end
constexpr std::int64_t most_splits = 128;
constexpr std::int64_t key_unit = 128;
/// Rounds of the grid that parts may take; and tiles that are not split yet. Of more the chip is full: of 24
/// such calls that were measured none was fastest in parts.
constexpr std::int64_t most_rounds = 12, most_tiles = core::hopper_sm_count * 3 / 2;

std::int64_t keys_of_part(const ForwardProblem& p, std::int64_t splits) {
  return core::round_up(core::ceil_div(p.k_len(), splits), key_unit);
}

/// Where the parts of the workspace lie.
struct Layout {
  std::int64_t splits, o_elements, lse_elements;

  Layout(const ForwardProblem& p, int parts)
      : splits(parts),
        o_elements(p.batch() * p.q_len() * p.q_heads() * p.value_dim()),
        lse_elements(p.batch() * p.q_len() * p.q_heads()) {}

  std::size_t lse_offset() const { return bytes_of(splits * o_elements); }
  std::size_t list_offset() const { return lse_offset() + bytes_of(splits * lse_elements); }

 private:
  static std::size_t bytes_of(std::int64_t floats) {
    return core::part_bytes(static_cast<std::size_t>(floats) * sizeof(float));
  }
};

SplitForward split_over(const ForwardProblem& p, int splits, std::byte* memory) {
  const Layout layout(p, splits);
  const std::int64_t b = p.batch(), s = p.q_len(), h = p.q_heads(), d = p.value_dim();
  float* o = reinterpret_cast<float*>(memory);
  float* lse = memory == nullptr ? nullptr : reinterpret_cast<float*>(memory + layout.lse_offset());
  SplitForward both{};
  both.parts = p;
  both.parts.o = core::contiguous(o, TANDEM_FP32, {layout.splits * b, s, h, d});
  both.parts.lse = core::contiguous(lse, TANDEM_FP32, {layout.splits * b, s, h, 1});
  both.parts.varlen = {.given = true,
                       .sequences = layout.splits * b,
                       .max_seqlen_q = s,
                       .max_seqlen_k = p.k_len(),
                       .split_keys = keys_of_part(p, layout.splits),
                       .parts_batch = b};
  both.parts_workspace = memory == nullptr ? nullptr : memory + layout.list_offset();
  both.merge = {layout.splits,
                core::contiguous(o, TANDEM_FP32, {b, s, h, d}),
                core::contiguous(lse, TANDEM_FP32, {b, s, h, 1}),
                layout.o_elements,
                layout.lse_elements,
                p.o,
                p.lse};
  return both;
}

bool can_split(const ForwardProblem& p) {
  return !p.needs_list() && !p.blocks.given() && !core::is_8_bit(p.dtype()) && p.dtype() != TANDEM_FP32 &&
         p.is_free() && p.mask.left == core::Mask::unlimited && p.k_len() >= 2 * fewest_keys;
}

/// Rows that a head's tiles multiply: a warpgroup without any has nothing to do.
std::int64_t rows_at_work(const ForwardProblem& p, const ForwardVariant& variant) {
  constexpr std::int64_t rows_of_warpgroup = 64;
  return std::min<std::int64_t>(variant.block_m, core::round_up(p.q_len() * p.group(), rows_of_warpgroup));
}

/// Of so many parts. Fitted to 1,241 times of 333 shapes (docs/performance/forward.md, Parts of the keys).
double parts_us(const ForwardProblem& p, const ForwardVariant& variant, std::int64_t tiles,
                std::int64_t splits) {
  constexpr double memory_rate = 3.75e6;  // bytes a microsecond
  constexpr double parts_rate = 1.42e6;   // of parts, written and read
  constexpr double lone_rate = 47e3;      // of a multiprocessor in one round of the grid
  constexpr double turned_rate = 54e3;    // and in several, where some begin while others read
  constexpr double fixed_us = 12;         // three kernels, each waiting for the one before
  const double head_part = static_cast<double>(variant.head_dim + variant.value_dim) / 256;
  const double block_us =
      static_cast<double>(rows_at_work(p, variant) * variant.block_n) / (128 * 128) * (0.6 + 0.8 * head_part);
  const double tile_us = 1.2 + head_part;
  const auto rounds = static_cast<double>(core::ceil_div(tiles * splits, core::hopper_sm_count));
  const std::int64_t keys = keys_of_part(p, splits);
  const auto blocks = static_cast<double>(core::ceil_div(keys, variant.block_n));
  const double key_bytes = 2.0 * static_cast<double>(p.kv_columns());
  const double reading_us = static_cast<double>(keys) * key_bytes / (rounds > 1 ? turned_rate : lone_rate);
  const double all_bytes = static_cast<double>(p.batch() * p.k_len() * p.kv_heads()) * key_bytes;
  const double part_bytes =
      8.0 * static_cast<double>(splits * p.batch() * p.q_len() * p.q_heads() * p.value_dim());
  return fixed_us +
         std::max(rounds * (tile_us + std::max(blocks * block_us, reading_us)), all_bytes / memory_rate) +
         part_bytes / parts_rate;
}

}  // namespace

SplitChoice choose_splits(const ForwardProblem& p) {
  if (!can_split(p)) return {};
  // Any two parts: their kernel and its tiles don't depend on how many there are.
  const ForwardProblem parts = split_over(p, 2, nullptr).parts;
  const ForwardVariant* variant = choose_variant(parts);
  if (variant == nullptr) return {};
  const std::int64_t tiles = std::max<std::int64_t>(1, tiling_of(p, *variant).tiles() * p.batch());
  SplitChoice best;
  if (tiles > most_tiles) return best;
  for (std::int64_t round = 1; round <= most_rounds; ++round) {
    const std::int64_t wanted =
        std::min({round * core::hopper_sm_count / tiles, p.k_len() / fewest_keys, most_splits});
    if (wanted < 2) continue;
    const std::int64_t keys = keys_of_part(p, wanted), splits = core::ceil_div(p.k_len(), keys);
    const double us = parts_us(p, *variant, tiles, splits);
    if (splits > 1 && (best.splits == 1 || us < best.us)) best = {static_cast<int>(splits), us};
  }
  return best;
}

std::size_t split_workspace_bytes(const ForwardProblem& p, int splits) {
  return Layout(p, splits).list_offset() + workspace_bytes(split_over(p, splits, nullptr).parts);
}

SplitForward split(const ForwardProblem& p, int splits, void* workspace) {
  return split_over(p, splits, static_cast<std::byte*>(workspace));
}

}  // namespace tandem::forward
