// SPDX-License-Identifier: Apache-2.0
//
// What the calls of attention.hpp can be told beside their tensors: lengths, pages, rotary embedding, block
// lists. Include attention.hpp.
#ifndef TANDEM_OPTIONS_HPP
#define TANDEM_OPTIONS_HPP

#include <cstdint>
#include <optional>
#include <type_traits>

#include <tandem/tandem.h>
#include <tandem/tensor.hpp>

namespace tandem {

/// Which page holds tokens i * page_size ... of a sequence: slot i of its row.
struct PageTable {
  const std::int32_t* pages = nullptr;
  std::int64_t pages_per_sequence = 0;  ///< slots of a row
  std::int64_t stride = 0;              ///< elements from row to row
};

/// How queries and appended keys are rotated by their positions.
class Rotary {
 public:
  /// Pairs of columns i and i + dim / 2. Tables are positions x dim / 2, of fp32 or of q's type.
  template <Element E>
  static Rotary halves(const E* cos, const E* sin, std::int64_t positions, std::int64_t dim) {
    return Rotary({sizeof(tandem_rotary), cos, sin, dtype_of<std::remove_const_t<E>>, positions, dim, 0});
  }
  /// Pairs of columns 2i and 2i + 1.
  template <Element E>
  static Rotary interleaved(const E* cos, const E* sin, std::int64_t positions, std::int64_t dim) {
    return Rotary({sizeof(tandem_rotary), cos, sin, dtype_of<std::remove_const_t<E>>, positions, dim, 1});
  }
  const tandem_rotary& c_rotary() const { return rotary_; }

 private:
  explicit Rotary(const tandem_rotary& rotary) : rotary_(rotary) {}
  tandem_rotary rotary_;
};

/// Which sequences of a decoding step begin with the same tokens: tandem_shared_prefixes in tandem.h.
class SharedPrefixes {
 public:
  /// Group g has sequences cu_sequences[g] ... cu_sequences[g + 1] - 1, which share their first lengths[g]
  /// tokens. groups + 1 and groups numbers, in the memory of the backend.
  SharedPrefixes(std::int64_t groups, const std::int32_t* cu_sequences, const std::int32_t* lengths)
      : prefixes_{sizeof(tandem_shared_prefixes), groups, cu_sequences, lengths} {}
  const tandem_shared_prefixes& c_prefixes() const { return prefixes_; }

 private:
  tandem_shared_prefixes prefixes_;
};

/// Sequences of different lengths: tandem_varlen in types.h says what each part means. All pointers lead to
/// the memory of the backend.
struct Varlen {
  std::int64_t batch = 0;                              ///< sequences
  const std::int32_t* cu_seqlens_q = nullptr;          ///< batch + 1; without, q has `batch` entries
  const std::int32_t* cu_seqlens_k = nullptr;          ///< batch + 1; without, k and v have `batch` or pages
  const std::int32_t* seqused_k = nullptr;             ///< batch; without, all keys are in use
  std::optional<PageTable> page_table = std::nullopt;  ///< k, v: pages, page_size, kv_heads, d
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;     ///< 0: not known
  std::optional<Rotary> rotary = std::nullopt;         ///< of q, and of what is appended
  const std::int32_t* leftpad_k = nullptr;             ///< batch; rows of an entry before its first key
  const std::int32_t* batch_index = nullptr;           ///< batch; without, sequence i has entry i
  std::int64_t split_size = 0;  ///< keys; 0: for speed. Else the same bits in any batch

  /// Points to `rotary`.
  tandem_varlen c_varlen() const {
    tandem_varlen varlen{};
    varlen.struct_size = sizeof(varlen);
    varlen.batch = batch;
    varlen.cu_seqlens_q = cu_seqlens_q;
    varlen.cu_seqlens_k = cu_seqlens_k;
    varlen.seqused_k = seqused_k;
    if (page_table) {
      varlen.page_table = page_table->pages;
      varlen.page_table_stride = page_table->stride;
      varlen.pages_per_sequence = page_table->pages_per_sequence;
    }
    varlen.max_seqlen_q = max_seqlen_q;
    varlen.max_seqlen_k = max_seqlen_k;
    if (rotary) varlen.rotary = &rotary->c_rotary();
    varlen.leftpad_k = leftpad_k;
    varlen.batch_index = batch_index;
    varlen.split_size = split_size;
    return varlen;
  }
};

/// Block-sparse attention: tandem_block_list in types.h says what each part means. Both arrays are in
/// the memory of the backend.
struct BlockList {
  std::int64_t q_block = 128, k_block = 128;  ///< tokens of a block
  const std::int32_t* counts = nullptr;       ///< of each row: of each block of queries
  const std::int32_t* blocks = nullptr;       ///< `slots` key blocks of each row, ascending
  std::int64_t slots = 0;
  /// Rows to the next entry (of variable lengths: sequence) and query head; 0: shared.
  std::int64_t batch_stride = 0, head_stride = 0;

  tandem_block_list c_block_list() const {
    return {sizeof(tandem_block_list), q_block, k_block, counts, blocks, slots, batch_stride, head_stride};
  }
};

}  // namespace tandem

#endif  // TANDEM_OPTIONS_HPP
