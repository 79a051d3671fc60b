// Where rows of a case's sequences lie in its tensors.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/varlen_case.h"

namespace tandem::test {

struct Place {
  std::int64_t entry, row;
};
inline Place q_place(const VarlenTensors& t, std::int64_t sequence, std::int64_t row) {
  if (!t.setup.q_packed) return {sequence, row};
  return {0, t.cu_seqlens_q[static_cast<std::size_t>(sequence)] + row};
}
inline Place k_place(const VarlenTensors& t, std::int64_t sequence, std::int64_t row) {
  if (t.setup.keys == KeyLayout::packed) return {0, t.cu_seqlens_k[static_cast<std::size_t>(sequence)] + row};
  const auto i = static_cast<std::size_t>(sequence);
  if (t.setup.keys == KeyLayout::entries)
    return {t.setup.batch_index ? t.batch_index[i] : sequence, t.setup.padding_of(i) + row};
  const std::int64_t slot = sequence * t.pages_per_sequence + row / t.setup.page_size;
  return {t.page_table[static_cast<std::size_t>(slot)], row % t.setup.page_size};
}

/// Of the sequence's own new tokens.
inline Place new_place(const VarlenTensors& t, std::int64_t sequence, std::int64_t row) {
  if (!t.setup.new_packed) return {sequence, row};
  return {0, t.cu_seqlens_new[static_cast<std::size_t>(sequence)] + row};
}

/// visit(sequence, row) for all rows of sequences that have so many.
template <typename Visit>
void for_each_row(const std::vector<std::int64_t>& lengths, Visit visit) {
  for (std::size_t i = 0; i < lengths.size(); ++i)
    for (std::int64_t row = 0; row < lengths[i]; ++row) visit(static_cast<std::int64_t>(i), row);
}

}  // namespace tandem::test
