// Trees: drafts of several continuations, verified in one call, each of which sees only its own ancestors.
#pragma once

#include <cstdint>

#include "core/tensor_list.h"

namespace tandem::core {

/// Sequences of more queries are no trees: their words are not read.
inline constexpr std::int64_t most_tree_queries = 64;

/// Whether a query's word lets it see key number `bit` of those that its sequence's queries are aligned with.
/// Keys before these have negative numbers. A word of 0 hides nothing.
constexpr bool word_shows(std::uint64_t word, std::int64_t bit) {
  return bit < 0 || word == 0 || (bit < most_tree_queries && (word >> bit & 1) != 0);
}

/// `queries` words in the memory of the backend; nullptr: none.
inline void add_tree(TensorList& list, const std::uint64_t* words, std::int64_t queries) {
  if (words != nullptr) list.add_array("tree", Role::input, Region::of(words, sizeof *words, 1, queries, 0));
}

}  // namespace tandem::core
