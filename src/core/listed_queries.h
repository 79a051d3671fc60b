// The list of a call's sequences of few queries, which decode's kernels serve beside the forward's: a kernel
// ahead of both writes it on the device, and decode's blocks read it there.
#pragma once

#include <cstdint>

namespace tandem::core {

/// In words: how many sequences are listed, how many blocks of decode's grid share them, for which calls the
/// list is (ListedQueries::key), a gap, and the sequences in the order of the batch.
inline constexpr int listed_header = 4, listed_sequence_words = 8;
constexpr std::int64_t listed_words(std::int64_t most_sequences) {
  return listed_header + listed_sequence_words * most_sequences;
}

/// A listed sequence: the words of its entry in this order. Of paged keys, key_entry is the row of the page
/// table, and first_key is 0.
struct ListedSequence {
  std::int32_t keys, queries;
  std::int32_t key_entry, first_key;      ///< rows of k and v from first_key on
  std::int32_t query_entry, first_query;  ///< the same of q, o and lse
};

/// How many queries are few, by a fixed rule: as many as fill the widest tile that serves every head dim. So
/// a sequence's kernel depends on shapes and its own length alone.
constexpr std::int64_t few_queries(std::int64_t group) {
  constexpr std::int64_t tile_rows = 32;
  return group >= tile_rows ? 1 : tile_rows / group;
}

/// A list as the host knows it.
struct ListedQueries {
  bool given = false;
  const std::int32_t* list = nullptr;
  std::uint32_t key = 0;       ///< of calls that may read the list; those with another one find no sequences
  std::int64_t sequences = 0;  ///< at most
  std::int64_t most_queries = 0, most_keys = 0;  ///< of one
  bool alone = false;  ///< no sequence has more queries than that: no other kernel runs beside decode's
};

}  // namespace tandem::core
