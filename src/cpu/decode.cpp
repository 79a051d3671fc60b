// The fast backend's decode: the tiles of the forward over each sequence's keys, which stay where they lie.
#include "cpu/decode.h"

#include <algorithm>
#include <array>

#include "core/dtype.h"
#include "cpu/decode_by_keys.h"
#include "cpu/element.h"
#include "cpu/parallel.h"
#include "cpu/sequence.h"
#include "cpu/tile.h"

namespace tandem::cpu {
namespace {

/// The step of one sequence as a forward problem with its own number of keys; `q` may be rotated.
core::ForwardProblem forward_of(const core::DecodeProblem& p, core::Tensor q, std::int64_t batch,
                                std::int64_t keys) {
  const auto sequence_of = [batch](core::Tensor tensor) {
    tensor.shape[0] = 1;
    if (tensor.data == nullptr) return tensor;
    const std::int64_t offset = batch * tensor.stride[0];
    tensor.data = static_cast<std::byte*>(tensor.data) +
                  offset * static_cast<std::int64_t>(core::size_of(tensor.dtype));
    return tensor;
  };
  core::ForwardProblem one{.q = sequence_of(q),
                           .k = p.k_cache,
                           .v = p.v_cache,
                           .o = sequence_of(p.o),
                           .lse = sequence_of(p.lse),
                           .mask = p.mask,
                           .scale = p.scale,
                           .softcap = p.softcap,
                           .sinks = p.sinks,
                           .slopes = p.slopes.of_sequence(batch),
                           .tree = p.tree == nullptr ? nullptr : p.tree + batch * p.q_len()};
  one.k.shape[1] = one.v.shape[1] = keys;
  return one;
}

/// What tiles do not know.
bool goes_by_keys(const core::DecodeProblem& p) { return p.eight_bit() || p.has_qv(); }

/// How every sequence is cut: by shapes alone, so that a result does not depend on the batch.
Tiling tiling_of(const core::DecodeProblem& p) { return Tiling(forward_of(p, p.q, 0, 0)); }

/// The queries rotated by their positions, in their own dtype, as dense rows at `memory`.
core::Tensor rotated_queries(const core::DecodeProblem& p, void* memory) {
  const std::int64_t d = p.head_dim(), token = p.q_heads() * d;
  core::Tensor rotated = p.q;
  rotated.data = memory;
  const std::int64_t strides[] = {p.q_len() * token, token, d, 1};
  std::copy(strides, strides + 4, rotated.stride);
  for_each_task(p.batch(), [&](std::int64_t b, int) {
    std::array<double, most_columns> buffer;
    const std::span row(buffer.data(), static_cast<std::size_t>(d));
    const Sequence sequence(p, b);
    for (std::int64_t i = 0; i < p.q_len(); ++i)
      for (std::int64_t h = 0; h < p.q_heads(); ++h) {
        load_rotated(p.q, {b, i, h}, p.rotary, sequence.keys - p.q_len() + i, row);
        for (std::int64_t e = 0; e < d; ++e) store(rotated, b, i, h, e, row[static_cast<std::size_t>(e)]);
      }
  });
  return rotated;
}

}  // namespace

std::size_t decode_workspace(const core::DecodeProblem& p) {
  if (goes_by_keys(p)) return decode_by_keys_workspace(p);
  const std::size_t scratch =
      static_cast<std::size_t>(thread_count()) * scratch_floats(p, tiling_of(p)) * sizeof(float);
  const std::int64_t rotated =
      p.rotary.cos == nullptr ? 0 : p.batch() * p.q_len() * p.q_heads() * p.head_dim();
  return scratch + static_cast<std::size_t>(rotated) * core::size_of(p.dtype());
}

void decode(const core::DecodeProblem& p, void* workspace) {
  append(p);
  if (goes_by_keys(p)) return decode_by_keys(p, workspace);
  const Tiling tiling = tiling_of(p);
  const std::size_t floats = scratch_floats(p, tiling);
  float* const scratches = static_cast<float*>(workspace);
  const core::Tensor q =
      p.rotary.cos == nullptr
          ? p.q
          : rotated_queries(p, scratches + static_cast<std::size_t>(thread_count()) * floats);
  const std::int64_t tasks_of_sequence = p.kv_heads() * tiling.tiles;
  for_each_task(p.batch() * tasks_of_sequence, [&](std::int64_t task, int thread) {
    const std::int64_t batch = task / tasks_of_sequence, kv_head = task % tasks_of_sequence / tiling.tiles;
    const std::int64_t begin = task % tiling.tiles * tiling.tile_rows;
    const std::int64_t end = std::min(begin + tiling.tile_rows, tiling.rows);
    const Sequence sequence(p, batch);
    const Scratch scratch(scratches + static_cast<std::size_t>(thread) * floats, widest_row(p),
                          static_cast<std::size_t>(tiling.tile_rows));
    run_tile(forward_of(p, q, batch, sequence.keys), {0, kv_head, begin, end, sequence.places}, scratch);
  });
}

}  // namespace tandem::cpu
