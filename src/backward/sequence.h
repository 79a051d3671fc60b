// One sequence where lengths vary, without the queries that see no key and the keys that nobody sees.
#pragma once

#include <cstdint>

#include "backward/arguments.h"
#include "core/varlen.h"
#include "hw/hw.h"

namespace tandem::backward {

/// Rows [q_begin, q_begin + q_len) of q and [k_begin, k_begin + k_len) of k.
struct Sequence {
  std::int32_t q_begin, q_len, k_begin, k_len;
  std::int32_t first_row;   ///< of its statistics
  std::int32_t first_part;  ///< of its dQ (ring.h), where tiles of keys add it
};

/// The same, and how many queries and keys ahead of these are left out.
struct CroppedSequence {
  Sequence seeing;
  int unseeing, unseen;
};

TANDEM_DEVICE core::RowSpan rows_of_sequence(const PackedRows& rows, int index) {
  if (rows.cu_seqlens == nullptr)
    return core::span_of(index * rows.entry, (index + 1) * rows.entry, rows.total, rows.most);
  return core::span_of(hw::load_global(rows.cu_seqlens + index), hw::load_global(rows.cu_seqlens + index + 1),
                       rows.total, rows.most);
}

/// How many of the first queries see none of `other` keys, or of the first keys are seen by no query, where
/// the mask has this limit: 0 or more, so the last query sees the last key, and from the first that sees one
/// on all do.
template <typename Int>
constexpr Int hidden_rows(Int length, Int other, Int limit) {
  if (other == 0) return length;
  if (limit == core::BasicMask<Int>::unlimited) return 0;
  const Int hidden = length - other - limit;
  return hidden < 0 ? 0 : (hidden > length ? length : hidden);
}

TANDEM_DEVICE CroppedSequence read_sequence(const ListArguments& args, int index) {
  const core::RowSpan q = rows_of_sequence(args.q, index);
  core::RowSpan k = rows_of_sequence(args.k, index);
  if (args.seqused_k != nullptr) k.length = core::clamp(hw::load_global(args.seqused_k + index), 0, k.length);
  const int unseeing = hidden_rows(q.length, k.length, args.mask.right),
            unseen = hidden_rows(k.length, q.length, args.mask.left);
  return {
      {q.begin + unseeing, q.length - unseeing, k.begin + unseen, k.length - unseen, 0, 0}, unseeing, unseen};
}

}  // namespace tandem::backward
