// Variable lengths: sequences of different lengths in one call.
#pragma once

#include <cstdint>

#include "core/integers.h"
#include "core/rotary.h"
#include "core/tensor_list.h"

namespace tandem::core {

/// Whose lengths a kernel knows.
enum class Lengths {
  uniform,  ///< all sequences have the tensors' lengths
  varlen,   ///< each has its own, which are read on the device
};

/// Consecutive rows of a tensor.
struct RowSpan {
  std::int32_t begin, length;
};

/// Rows `begin` to `end` of a tensor that has `total`, and of them at most `most`. Lengths that lie in device
/// memory can't be validated, so whatever they are, the span stays inside of the tensor.
constexpr RowSpan span_of(std::int32_t begin, std::int32_t end, std::int32_t total, std::int32_t most) {
  const std::int32_t first = clamp(begin, 0, total), past = clamp(end, first, total);
  return {first, clamp(past - first, 0, most)};
}

/// A sequence's rows of its entry, or of its pages: keys are [begin, past), of which those from `before` on
/// are appended by the call.
struct CacheRows {
  std::int32_t begin, before, past;

  /// The keys, of which at most `most` count.
  constexpr RowSpan keys(std::int32_t most) const { return {begin, clamp(past - begin, 0, most)}; }
};

/// Of a cache with room for `room` rows, whatever the numbers are: `used` rows are in use, `added` are to
/// come behind them, and of all these the first `padding` are no keys.
constexpr CacheRows cache_rows(std::int32_t used, std::int32_t added, std::int32_t padding,
                               std::int32_t room) {
  const std::int32_t fitting = clamp(added, 0, room), before = clamp(used, 0, room - fitting);
  return {clamp(padding, 0, before + fitting), before, before + fitting};
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
  Tensor k_new = {}, v_new = {};  ///< data == nullptr: nothing is appended
  const std::int32_t* cu_seqlens_k_new =
      nullptr;  ///< sequences + 1; nullptr: each appends the tensors' tokens
  Rotary rotary = {};
  const std::int32_t* leftpad_k = nullptr;    ///< sequences; nullptr: no padding
  const std::int32_t* batch_index = nullptr;  ///< sequences; nullptr: sequence i has entry i
  /// Where keys are split: sequence i is part i / parts_batch of entry i % parts_batch, and a part has so
  /// many keys. The output then is fp32, with an entry for each part. 0: keys are not split.
  std::int64_t split_keys = 0, parts_batch = 0;
  /// Keys of a part of a sequence of few queries (listed_queries.h). No kernel is chosen by the batch then.
  /// 0: both are as the library likes.
  std::int64_t split_size = 0;

  bool appends() const { return k_new.data != nullptr; }  ///< maybe 0 tokens
  bool rotates() const { return rotary.cos != nullptr; }
  bool keeps_bits() const { return split_size > 0; }  ///< whatever the batch
};

/// Adds numbers that a call reads, where there are any.
inline void add_words(TensorList& list, const char* name, const std::int32_t* words, std::int64_t count) {
  if (words != nullptr) list.add_array(name, Role::input, Region::of(words, sizeof *words, 1, count, 0));
}
/// cu_seqlens_q, cu_seqlens_k and seqused_k.
inline void add_lengths(TensorList& list, const Varlen& varlen) {
  add_words(list, "varlen.cu_seqlens_q", varlen.cu_seqlens_q, varlen.sequences + 1);
  add_words(list, "varlen.cu_seqlens_k", varlen.cu_seqlens_k, varlen.sequences + 1);
  add_words(list, "varlen.seqused_k", varlen.seqused_k, varlen.sequences);
}
/// All arrays that say which rows are a sequence's.
inline void add_all_lengths(TensorList& list, const Varlen& varlen) {
  add_lengths(list, varlen);
  add_words(list, "varlen.leftpad_k", varlen.leftpad_k, varlen.sequences);
  add_words(list, "varlen.batch_index", varlen.batch_index, varlen.sequences);
  if (varlen.appends())
    add_words(list, "varlen.cu_seqlens_k_new", varlen.cu_seqlens_k_new, varlen.sequences + 1);
}

}  // namespace tandem::core
