// Sequences of a decoding step that begin with the same keys and values.
#pragma once

#include <cstdint>

namespace tandem::core {

/// Groups of sequences, next to one another in the batch, as the caller says them. What they say may lie in
/// device memory, and be anything.
struct SharedPrefixes {
  std::int64_t groups = 0;                     ///< 0: none
  const std::int32_t* cu_sequences = nullptr;  ///< groups + 1: where each group's sequences begin, and end
  const std::int32_t* lengths = nullptr;       ///< of each group's prefix, in tokens

  bool given() const { return groups > 0; }
};

/// Where a list says what sequences share (decode/prefix_list.h), a listed sequence's first_key has another
/// meaning: the keys before it are another entry's, and `shared_prefix`: all its queries, of several
/// sequences, see all its keys. And query_entry is the part of the results.
inline constexpr std::int32_t shared_prefix = -1;
enum class ResultPart : std::int32_t { prefix = 0, own = 1 };

}  // namespace tandem::core
