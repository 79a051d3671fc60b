// A call of tandem_forward over sequences of different lengths, and what a fuzzer draws for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tandem/tandem.h>

#include "tests/fuzz/block_lists.h"
#include "tests/fuzz/hostile.h"
#include "tests/fuzz/lengths.h"
#include "tests/fuzz/options.h"

namespace tandem::fuzz {

/// All that one call consists of. Arrays are as long as the call needs them, so that sanitizers watch their
/// ends.
struct VarlenCall {
  static constexpr std::size_t most_changes = 2;
  Arena arena = Arena(arena_bytes);
  Table cu_seqlens_q, cu_seqlens_k, cu_seqlens_k_new, used, page_table, leftpad, batch_index;
  ScoreOptions options;
  BlockLists lists;
  Angles angles;
  bool poisoned = false;
  tandem_mask mask{};
  tandem_varlen varlen{};
  tandem_forward_args args{};

  std::vector<tandem_tensor*> tensors();
  bool appends() const { return varlen.k_new.data != nullptr; }
  bool paged() const { return varlen.page_table != nullptr; }
  bool packed() const { return varlen.cu_seqlens_k != nullptr; }
  /// What a list has to have rows for.
  ListedSizes listed_sizes() const {
    return {varlen.batch, args.q.shape[2], bounded(args.q.shape[1], varlen.max_seqlen_q), 40};
  }
};

/// Where a sequence's rows are. Rows of keys count from the first of the sequence, padding included.
struct Extent {
  Rows queries, added;
  std::int64_t padding;  ///< rows before the first key
  std::int64_t before;   ///< rows before those that are appended
  std::int64_t keys;
};
Extent extent_of(const VarlenCall& call, std::int64_t sequence);

/// Where a row of a sequence's keys lies in k and v.
struct KeyPlace {
  bool exists;
  std::int64_t entry, row;
};
KeyPlace place_of(const VarlenCall& call, std::int64_t sequence, std::int64_t row);

void make_valid(VarlenCall& call, Draws& draws);
/// Spoils one thing, or changes it to another that is right.
void change(VarlenCall& call, Draws& draws);
void run(VarlenCall& call, std::size_t changes);
/// Whether all that the call may touch lies in the arena and in its arrays, and it ends soon.
bool may_run(const VarlenCall& call);

}  // namespace tandem::fuzz
