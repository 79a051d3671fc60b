// Variable lengths: sequences of different lengths in one call.
#pragma once

#include <cstdint>

namespace tandem::core {

/// Consecutive rows of a tensor.
struct RowSpan {
  std::int32_t begin, length;
};

constexpr std::int32_t clamp(std::int32_t x, std::int32_t low, std::int32_t high) {
  return x < low ? low : (x > high ? high : x);
}

/// Rows `begin` to `end` of a tensor that has `total`, and of them at most `most`. Lengths that lie in device
/// memory can't be validated, so whatever they are, the span stays inside of the tensor.
constexpr RowSpan span_of(std::int32_t begin, std::int32_t end, std::int32_t total, std::int32_t most) {
  const std::int32_t first = clamp(begin, 0, total), past = clamp(end, first, total);
  return {first, clamp(past - first, 0, most)};
}

/// The lengths of a batch's sequences, in the memory of the backend (tandem.h, tandem_varlen).
struct Varlen {
  bool given = false;  ///< otherwise all sequences have the lengths of the tensors
  std::int64_t sequences = 0;
  const std::int32_t* cu_seqlens_q = nullptr;  ///< sequences + 1; nullptr: each has an entry of q
  const std::int32_t* cu_seqlens_k = nullptr;  ///< the same of k and v
  const std::int32_t* seqused_k = nullptr;     ///< sequences; nullptr: all keys of a sequence are in use
  const std::int32_t* page_table = nullptr;    ///< rows of `pages_per_sequence`; nullptr: keys are not paged
  std::int64_t page_table_stride = 0, pages_per_sequence = 0;
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;
  /// Where keys are split: sequence i is part i / parts_batch of entry i % parts_batch, and a part has so
  /// many keys. The output then is fp32, with an entry for each part. 0: keys are not split.
  std::int64_t split_keys = 0, parts_batch = 0;
};

}  // namespace tandem::core
