// Block lists for tests: drawn, and the arrays that belong to them.
#pragma once

#include <ostream>
#include <span>
#include <vector>

#include "core/block_list.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {

/// What a list depends on but its numbers, which `seed` draws.
struct BlockListCase {
  std::int64_t q_block = 0, k_block = 0;  ///< 0: there is no list
  bool each_entry = false, each_head = false;
  std::uint64_t seed = 1;

  bool given() const { return q_block > 0; }
};

std::ostream& operator<<(std::ostream& out, const BlockListCase& c);

/// Blocks of multiples of `unit` tokens, for lengths up to a few of them.
BlockListCase draw_block_list(Random& random, std::int64_t unit);

/// Lengths and heads that a list is made for.
struct ListedShape {
  std::int64_t batch, heads, q_len, k_len;
};

/// Rows that list none, some or all blocks of keys. Behind a row's count stands the last block, which would
/// show.
class BlockListArrays {
 public:
  BlockListArrays() = default;
  BlockListArrays(const BlockListCase& c, const ListedShape& shape);

  core::BlockList view() const;
  /// Of a batch of other sequences, or fewer: those of the entries that are named, in that order.
  BlockListArrays of_entries(std::span<const std::size_t> which) const;
  std::span<const std::int32_t> counts() const { return counts_; }
  std::span<const std::int32_t> numbers() const { return blocks_; }

 private:
  BlockListCase setup_;
  std::int64_t slots_ = 0, rows_of_list_ = 0, heads_ = 0;
  std::vector<std::int32_t> counts_, blocks_;
};

}  // namespace tandem::test
