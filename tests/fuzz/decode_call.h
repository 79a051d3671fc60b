// A step of tandem_decode, and what a fuzzer draws for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tandem/tandem.h>

#include "tests/fuzz/hostile.h"
#include "tests/fuzz/options.h"

namespace tandem::fuzz {

/// All that one step consists of. Arrays are as long as the step needs them, so that sanitizers watch their
/// ends.
struct DecodeCall {
  static constexpr std::size_t most_changes = 2;
  Arena arena = Arena(arena_bytes);
  std::vector<std::int32_t> lengths, page_table, batch_index, cu_prefix_groups, prefix_lengths;
  ScoreOptions options;
  tandem_mask mask{};
  Angles angles;
  tandem_cache cache{};
  tandem_cache_scales scales{};
  tandem_shared_prefixes prefixes{};
  bool planned = false, poisoned = false, inline_scales = false, appends_zeros = false;
  tandem_decode_args args{};

  std::vector<tandem_tensor*> tensors();
  std::int64_t batch() const { return args.q.shape[0]; }
  std::int64_t added() const { return args.k_new.data == nullptr ? 0 : args.k_new.shape[1]; }
  std::int64_t capacity() const {
    return cache.k.shape[1] * (cache.page_table == nullptr ? 1 : cache.pages_per_sequence);
  }
  bool paged() const { return cache.page_table != nullptr; }
  bool eight_bit() const { return is_eight_bit(number(cache.k.dtype)); }
  bool hadamard() const { return args.scales != nullptr && scales.hadamard == 1; }
  bool scales_of_tokens() const { return args.scales != nullptr && scales.per_token == 1; }
  /// Tokens of sequence b before the step.
  std::int64_t length(std::int64_t b) const;
};

/// Where a token lies in a cache: its entry or page, and its row there.
struct TokenPlace {
  bool exists;
  std::int64_t entry, row;
};
TokenPlace place_of(const DecodeCall& call, std::int64_t b, std::int64_t token);

void make_valid(DecodeCall& call, Draws& draws);
/// Spoils one thing, or changes it to another that is right.
void change(DecodeCall& call, Draws& draws);
void run(DecodeCall& call, std::size_t changes);
/// Whether all that the step may touch lies in the arena and in its arrays.
bool may_run(const DecodeCall& call);

}  // namespace tandem::fuzz
