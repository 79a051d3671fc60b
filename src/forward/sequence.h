// Where the queries and keys of one sequence lie in the tensors.
#pragma once

#include <cstdint>

#include "core/varlen.h"
#include "forward/arguments.h"
#include "hw/hw.h"

namespace tandem::forward {

/// Rows [q_begin, q_begin + q_len) of entry q_batch of q, of o_batch of o and lse, and the same of k and v.
/// Of paged keys, k_batch is the row of the page table.
struct Sequence {
  int q_batch, o_batch, q_begin, q_len;
  int k_batch, k_begin, k_len;
  int mask_q_len;  ///< as many queries as the mask counts: the last of them is aligned with the last key
};

/// The rows that one tensor has of a sequence.
struct SequenceRows {
  int batch;
  core::RowSpan span;
};
TANDEM_DEVICE SequenceRows rows_of_sequence(const std::int32_t* cu_seqlens, int index, int rows, int most) {
  if (cu_seqlens == nullptr) return {index, core::span_of(0, rows, rows, most)};
  return {0, core::span_of(hw::load_global(cu_seqlens + index), hw::load_global(cu_seqlens + index + 1), rows,
                           most)};
}

/// Part of the keys of a sequence. Its mask stands where the whole one's does.
TANDEM_DEVICE Sequence part_of(const Sequence& whole, int first_key, int keys) {
  Sequence part = whole;
  const int first = core::clamp(first_key, 0, whole.k_len);
  part.k_begin += first;
  part.k_len = core::clamp(whole.k_len - first, 0, keys);
  part.mask_q_len += first + part.k_len - whole.k_len;
  return part;
}

/// Of variable lengths; the kernel and the one that lists its tiles read them alike.
TANDEM_DEVICE Sequence read_sequence(const VarlenArguments& varlen, int listed) {
  const auto [part, entry] = varlen.parts_batch.divide(listed);
  const int index = varlen.split_keys > 0 ? entry : listed;
  const SequenceRows q = rows_of_sequence(varlen.cu_seqlens_q, index, varlen.q_rows, varlen.max_seqlen_q);
  SequenceRows k = rows_of_sequence(varlen.cu_seqlens_k, index, varlen.k_rows, varlen.max_seqlen_k);
  if (varlen.seqused_k != nullptr)
    k.span.length = core::clamp(hw::load_global(varlen.seqused_k + index), 0, k.span.length);
  const Sequence whole{q.batch, q.batch,      q.span.begin,  q.span.length,
                       k.batch, k.span.begin, k.span.length, q.span.length};
  if (varlen.split_keys == 0) return whole;
  Sequence own = part_of(whole, part * varlen.split_keys, varlen.split_keys);
  own.o_batch = listed;
  return own;
}

}  // namespace tandem::forward
