// The kernel that merges partial results: memory bound, so that all it has to do is to read each part once,
// many bytes in flight. A few neighbouring threads have a row together, 8 columns each at a time.
//
// Source: Rabe and Staats, "Self-attention Does Not Need O(n^2) Memory", arXiv 2112.05682; Dao et al.,
// "Flash-Decoding", 2023.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>
#include <numbers>

#include "core/dtype.h"
#include "hw/hw.h"
#include "hw/operand.h"
#include "merge/arguments.h"
#include "merge/table.h"

namespace tandem::merge {

/// The logarithms of one row's parts, and what each part counts for.
struct PartWeights {
  const float* lse;  ///< of part 0
  std::int64_t stride;
  float base = 0, sum = 0;  ///< the largest lse, unless that is -inf; sum of the weights

  TANDEM_DEVICE PartWeights(const float* first, std::int64_t part_stride, int parts)
      : lse(first), stride(part_stride) {
    float row_max = -std::numeric_limits<float>::infinity();
    for (int part = 0; part < parts; ++part) row_max = hw::max(row_max, hw::load_global(lse + part * stride));
    if (row_max > -std::numeric_limits<float>::infinity()) base = row_max;
    for (int part = 0; part < parts; ++part) sum += of(part);
  }
  TANDEM_DEVICE float of(int part) const {
    return hw::exp2((hw::load_global(lse + part * stride) - base) * std::numbers::log2e_v<float>);
  }
  TANDEM_DEVICE float merged_lse() const {
    return sum == 0.f ? -std::numeric_limits<float>::infinity()
                      : base + hw::log2(sum) * std::numbers::ln2_v<float>;
  }
};

/// Eight neighbouring elements of a part; zeros until they are loaded.
template <tandem_dtype dtype>
struct Chunk {
  static constexpr int quads = chunk_columns * static_cast<int>(core::size_of(dtype)) / 16;
  std::uint32_t words[quads][4] = {};

  TANDEM_DEVICE void load(const char* from) {
    TANDEM_UNROLL
    for (int i = 0; i < quads; ++i) hw::load_global(words[i], from + 16 * i);
  }
  /// sums += weight * elements.
  TANDEM_DEVICE void add_to(float (&sums)[chunk_columns], float weight) const {
    TANDEM_UNROLL
    for (int i = 0; i < 4 * quads; ++i) {
      const std::uint32_t word = words[i / 4][i % 4];
      if constexpr (dtype == TANDEM_FP32) {
        sums[i] = hw::fma(weight, std::bit_cast<float>(word), sums[i]);
      } else {
        sums[2 * i] = hw::fma(weight, hw::unpack_low<hw::operand_of(dtype)>(word), sums[2 * i]);
        sums[2 * i + 1] = hw::fma(weight, hw::unpack_high<hw::operand_of(dtype)>(word), sums[2 * i + 1]);
      }
    }
  }
};

/// sums = weighted sum of the chunk's parts, whose first is at `from`. Parts without weight are not read:
/// they may hold anything.
template <tandem_dtype dtype>
TANDEM_DEVICE void sum_parts(float (&sums)[chunk_columns], const PartWeights& weights, const char* from,
                             const MergeArguments& args) {
  constexpr int together = 4;  // loads in flight
  for (int first = 0; first < args.parts; first += together) {
    Chunk<dtype> chunks[together];
    float weight[together];
    TANDEM_UNROLL
    for (int i = 0; i < together; ++i) weight[i] = first + i < args.parts ? weights.of(first + i) : 0.f;
    TANDEM_UNROLL
    for (int i = 0; i < together; ++i)
      if (weight[i] != 0.f)
        chunks[i].load(from + (first + i) * args.o_parts.part_stride *
                                  static_cast<std::int64_t>(core::size_of(dtype)));
    TANDEM_UNROLL
    for (int i = 0; i < together; ++i) chunks[i].add_to(sums, weight[i]);
  }
}

template <tandem_dtype dtype>
TANDEM_DEVICE void store_chunk(void* to, float factor, const float (&sums)[chunk_columns]) {
  std::uint32_t words[4];
  if constexpr (dtype == TANDEM_FP32) {
    TANDEM_UNROLL
    for (int half = 0; half < 2; ++half) {
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i) words[i] = std::bit_cast<std::uint32_t>(factor * sums[4 * half + i]);
      hw::store_global(static_cast<float*>(to) + 4 * half, words);
    }
  } else {
    TANDEM_UNROLL
    for (int i = 0; i < 4; ++i)
      words[i] = hw::pack<hw::operand_of(dtype)>(factor * sums[2 * i], factor * sums[2 * i + 1]);
    hw::store_global(to, words);
  }
}

/// The address of an element.
template <tandem_dtype dtype>
TANDEM_DEVICE char* address(const PartsView& view, std::int64_t offset) {
  return static_cast<char*>(view.data) + offset * static_cast<std::int64_t>(core::size_of(dtype));
}

template <MergeVariant V>
TANDEM_DEVICE void merge_kernel(const MergeArguments& args) {
  const int thread = static_cast<int>(hw::block_index() * threads + hw::thread_index());
  const int index = thread >> args.lanes_shift, lanes = 1 << args.lanes_shift, lane = thread & (lanes - 1);
  if (index >= args.rows) return;
  const auto [above, head] = args.heads.divide(index);
  const auto [batch, row] = args.length.divide(above);
  const std::int64_t from = args.o_parts.at(batch, row, head), to = args.o.at(batch, row, head);

  const PartWeights weights(
      static_cast<const float*>(args.lse_parts.data) + args.lse_parts.at(batch, row, head),
      args.lse_parts.part_stride, args.parts);
  const float factor = weights.sum == 0.f ? 0.f : hw::reciprocal(weights.sum);
  for (int chunk = lane; chunk < args.chunks; chunk += lanes) {
    float sums[chunk_columns] = {};
    sum_parts<V.in>(sums, weights, address<V.in>(args.o_parts, from + chunk * chunk_columns), args);
    store_chunk<V.out>(address<V.out>(args.o, to + chunk * chunk_columns), factor, sums);
  }
  if (lane == 0 && args.lse.data != nullptr)
    hw::store_global(static_cast<float*>(args.lse.data) + args.lse.at(batch, row, head),
                     weights.merged_lse());
}

/// As the launcher finds it.
template <MergeVariant V>
struct KernelBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const MergeArguments& args) { merge_kernel<V>(args); }
};

}  // namespace tandem::merge
