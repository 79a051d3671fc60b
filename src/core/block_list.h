// Block lists: attention over some blocks of the keys only, listed for each block of queries.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "core/tensor_list.h"

namespace tandem::core {

/// As tandem_block_list says it. Strides are in rows: those of the lists of one block of queries. Of variable
/// lengths a sequence is an entry, and its blocks are counted from its first query and key.
struct BlockList {
  std::int64_t q_block = 0, k_block = 0;  ///< tokens of a block; 0: there is no list, all keys are seen
  const std::int32_t* counts = nullptr;   ///< of each row
  const std::int32_t* blocks = nullptr;   ///< `slots` of each row
  std::int64_t slots = 0, batch_stride = 0, head_stride = 0;

  bool given() const { return q_block > 0; }
  /// Those of one sequence, as a call of its own has them.
  BlockList of_sequence(std::int64_t index) const {
    BlockList own = *this;
    if (given()) own.counts += index * batch_stride, own.blocks += index * batch_stride * slots;
    own.batch_stride = 0;
    return own;
  }
  /// The key blocks that a query of a query head sees keys in.
  std::span<const std::int32_t> of_query(std::int64_t b, std::int64_t h, std::int64_t query) const {
    const std::int64_t row = b * batch_stride + h * head_stride + query / q_block;
    return {blocks + row * slots, static_cast<std::size_t>(std::clamp<std::int64_t>(counts[row], 0, slots))};
  }
  /// Whether a key is in one of them.
  bool shows(std::int64_t b, std::int64_t h, std::int64_t query, std::int64_t key) const {
    const auto listed = of_query(b, h, query);
    return std::find(listed.begin(), listed.end(), key / k_block) != listed.end();
  }
};

/// Of `batch` entries with `heads` query heads and at most `queries` queries each.
inline void add_block_list(TensorList& list, const BlockList& own, std::int64_t batch, std::int64_t heads,
                           std::int64_t queries) {
  if (!own.given()) return;
  const std::int64_t rows = queries / own.q_block + (queries % own.q_block != 0 ? 1 : 0);
  const std::int64_t entries = own.batch_stride == 0 ? 1 : batch, lists = own.head_stride == 0 ? 1 : heads;
  const auto region = [&](const std::int32_t* data, std::int64_t columns) {
    return Region{const_cast<std::int32_t*>(data),
                  {1, entries, lists, rows, columns},
                  {0, own.batch_stride * columns, own.head_stride * columns, columns, 1},
                  sizeof *data};
  };
  list.add_array("block_list.counts", Role::input, region(own.counts, 1));
  list.add_array("block_list.blocks", Role::input, region(own.blocks, own.slots));
}

}  // namespace tandem::core
