#include "forward/split.h"

#include <algorithm>
#include <cstdint>

#include "forward/plan.h"

namespace tandem::forward {
namespace {

using core::ForwardProblem;
using core::Tensor;

/// Multiprocessors of an H100 or H200: the workspace is asked for where there may be no device.
constexpr std::int64_t multiprocessors = 132;
constexpr std::int64_t fewest_keys = 512;  ///< of a part, so that it is worth a tile's beginning and end
constexpr std::int64_t most_splits = 128;
constexpr std::int64_t key_unit = 128;
constexpr std::size_t alignment = 256;

std::int64_t round_up(std::int64_t n, std::int64_t unit) { return (n + unit - 1) / unit * unit; }

std::int64_t keys_of_part(const ForwardProblem& p, std::int64_t splits) {
  return round_up((p.k_len() + splits - 1) / splits, key_unit);
}

/// Where the parts of the workspace lie.
struct Layout {
  std::int64_t splits, o_elements, lse_elements;

  explicit Layout(const ForwardProblem& p)
      : splits(num_splits(p)),
        o_elements(p.batch() * p.q_len() * p.q_heads() * p.head_dim()),
        lse_elements(p.batch() * p.q_len() * p.q_heads()) {}

  std::size_t lse_offset() const { return bytes_of(splits * o_elements); }
  std::size_t list_offset() const { return lse_offset() + bytes_of(splits * lse_elements); }

 private:
  static std::size_t bytes_of(std::int64_t floats) {
    const auto bytes = static_cast<std::size_t>(floats) * sizeof(float);
    return (bytes + alignment - 1) / alignment * alignment;
  }
};

Tensor contiguous(void* data, std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t d) {
  return {data, TANDEM_FP32, {b, s, h, d}, {s * h * d, h * d, d, 1}};
}

SplitForward split_over(const ForwardProblem& p, std::byte* memory) {
  const Layout layout(p);
  const std::int64_t b = p.batch(), s = p.q_len(), h = p.q_heads(), d = p.head_dim();
  float* o = reinterpret_cast<float*>(memory);
  float* lse = memory == nullptr ? nullptr : reinterpret_cast<float*>(memory + layout.lse_offset());
  SplitForward both{};
  both.parts = p;
  both.parts.o = contiguous(o, layout.splits * b, s, h, d);
  both.parts.lse = contiguous(lse, layout.splits * b, s, h, 1);
  both.parts.varlen = {.given = true,
                       .sequences = layout.splits * b,
                       .max_seqlen_q = s,
                       .max_seqlen_k = p.k_len(),
                       .split_keys = keys_of_part(p, layout.splits),
                       .parts_batch = b};
  both.parts_workspace = memory == nullptr ? nullptr : memory + layout.list_offset();
  both.merge = {layout.splits,
                contiguous(o, b, s, h, d),
                contiguous(lse, b, s, h, 1),
                layout.o_elements,
                layout.lse_elements,
                p.o,
                p.lse};
  return both;
}

}  // namespace

int num_splits(const ForwardProblem& p) {
  const bool by_name = p.overlap != TANDEM_OVERLAP_AUTO || p.turn != TANDEM_TURN_AUTO;
  const bool windowed = p.mask.left != core::Mask::unlimited;
  const ForwardVariant* variant = choose_variant(p);
  if (p.varlen.given || p.dtype() == TANDEM_E4M3 || by_name || windowed || variant == nullptr ||
      p.k_len() < 2 * fewest_keys)
    return 1;
  const std::int64_t tiles = std::max<std::int64_t>(1, tile_count(p, *variant));
  const std::int64_t wanted = std::min({multiprocessors / tiles, p.k_len() / fewest_keys, most_splits});
  if (wanted < 2) return 1;
  return static_cast<int>((p.k_len() + keys_of_part(p, wanted) - 1) / keys_of_part(p, wanted));
}

std::size_t split_workspace_bytes(const ForwardProblem& p) {
  return Layout(p).list_offset() + workspace_bytes(split_over(p, nullptr).parts);
}

SplitForward split(const ForwardProblem& p, void* workspace) {
  return split_over(p, static_cast<std::byte*>(workspace));
}

}  // namespace tandem::forward
