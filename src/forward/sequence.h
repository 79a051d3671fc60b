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

/// Rows of the sequence's entry, or pages.
TANDEM_DEVICE core::CacheRows cache_rows_of(const VarlenArguments& varlen, const CacheArguments& cache,
                                            int index) {
  const int used = varlen.seqused_k == nullptr ? varlen.k_rows : hw::load_global(varlen.seqused_k + index);
  const int padding = cache.leftpad_k == nullptr ? 0 : hw::load_global(cache.leftpad_k + index);
  const int added = rows_of_sequence(cache.cu_seqlens_new, index, cache.new_rows, cache.new_rows).span.length;
  return core::cache_rows(used, added, padding, varlen.k_rows);
}

/// Which entry has the sequence; one behind the last where it does not exist.
TANDEM_DEVICE int entry_of(const CacheArguments& cache, int index) {
  if (cache.batch_index == nullptr) return index;
  const int entry = hw::load_global(cache.batch_index + index);
  return entry < 0 || entry > cache.entries ? cache.entries : entry;
}

TANDEM_DEVICE SequenceRows keys_of_sequence(const VarlenArguments& varlen, const CacheArguments& cache,
                                            int index) {
  if (varlen.cu_seqlens_k == nullptr)
    return {entry_of(cache, index), cache_rows_of(varlen, cache, index).keys(varlen.max_seqlen_k)};
  SequenceRows k = rows_of_sequence(varlen.cu_seqlens_k, index, varlen.k_rows, varlen.max_seqlen_k);
  if (varlen.seqused_k != nullptr)
    k.span.length = core::clamp(hw::load_global(varlen.seqused_k + index), 0, k.span.length);
  return k;
}

/// Of variable lengths. All kernels that read them do so here.
TANDEM_DEVICE Sequence read_sequence(const VarlenArguments& varlen, const CacheArguments& cache, int listed) {
  const auto [part, entry] = varlen.parts_batch.divide(listed);
  const int index = varlen.split_keys > 0 ? entry : listed;
  const SequenceRows q = rows_of_sequence(varlen.cu_seqlens_q, index, varlen.q_rows, varlen.max_seqlen_q);
  const SequenceRows k = keys_of_sequence(varlen, cache, index);
  const Sequence whole{q.batch, q.batch,      q.span.begin,  q.span.length,
                       k.batch, k.span.begin, k.span.length, q.span.length};
  if (varlen.split_keys == 0) return whole;
  Sequence own = part_of(whole, part * varlen.split_keys, varlen.split_keys);
  own.o_batch = listed;
  return own;
}

}  // namespace tandem::forward
