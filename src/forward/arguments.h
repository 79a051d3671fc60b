// What a forward kernel is told at run time.
#pragma once

#include <cstdint>

#include "core/mask.h"
#include "core/schedule.h"
#include "forward/packing.h"
#include "hw/types.h"

namespace tandem::forward {

/// A tensor that is written with ordinary stores; strides in elements.
struct OutputView {
  void* data;
  std::int64_t batch_stride, row_stride, head_stride;
};

/// Rows of the output that one warp holds.
inline constexpr int output_rows = 16;

struct ForwardArguments {
  hw::TensorMap q, k, v;  ///< boxes of 64 columns: 64 rows of a tile, block_n keys
  hw::TensorMap o_boxes;  ///< 64 columns x output_rows; where the variant stages its output
  OutputView o;           ///< 16-bit
  OutputView lse;         ///< fp32; data == nullptr: not wanted
  core::BasicMask<std::int32_t> mask;
  core::Schedule schedule;  ///< its heads are packs of query heads
  Packing packing;
  int q_len, k_len;
  int head_dim;         ///< columns that exist, at most the variant's
  core::Divisor group;  ///< packs per key/value head
  float scale_log2;     ///< scores (after the cap) times this are exponents of 2
  float score_to_cap;   ///< softcap: scores become tanh(score_to_cap * score)
};

}  // namespace tandem::forward
