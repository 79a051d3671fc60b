// Block lists, as the fuzzers of forward calls draw and read them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tests/fuzz/arena.h"
#include "tests/fuzz/lengths.h"

namespace tandem::fuzz {

/// What lists are made for: entries, or sequences, with as many queries and keys as one may have.
struct ListedSizes {
  std::int64_t entries, heads, queries, keys;
};

/// Lists of some of the key blocks for each block of queries, shared by entries or heads or not, in arrays as
/// long as the call needs them.
struct BlockLists {
  Table counts, blocks;
  tandem_block_list list{};

  void draw(tandem_forward_args& args, Draws& draws, Noise& noise, const ListedSizes& s) {
    list.q_block = draws.between(1, s.queries + 1), list.k_block = draws.between(1, 40);
    const std::int64_t rows = rows_of(s), key_blocks = (s.keys + list.k_block - 1) / list.k_block;
    list.slots = draws.between(0, key_blocks);
    list.head_stride = draws.below(3) == 0 ? 0 : rows + draws.between(0, 2);
    list.batch_stride = draws.below(3) == 0 ? 0 : std::max(s.heads * list.head_stride, rows);
    const auto all = static_cast<std::int64_t>(needed(s));
    for (std::int64_t row = 0; row < all; ++row) {
      counts.push_back(static_cast<std::int32_t>(noise.below(static_cast<std::uint32_t>(list.slots + 3))) -
                       1);
      std::int64_t to_take = list.slots;
      for (std::int64_t block = 0; block < key_blocks; ++block)
        if (noise.below(static_cast<std::uint32_t>(key_blocks - block)) < to_take)
          blocks.push_back(static_cast<std::int32_t>(block)), --to_take;
    }
    list.counts = counts.data(), list.blocks = blocks.data();
    args.block_list = &list;
  }

  /// Whether the lists of a call, if there are any, lie in these arrays.
  bool fit(const tandem_forward_args& args, const ListedSizes& s) const {
    if (args.block_list == nullptr) return true;
    if (list.q_block < 1 || list.slots < 0 || list.batch_stride < 0 || list.head_stride < 0) return true;
    if (s.entries <= 0 || s.heads <= 0 || s.queries <= 0) return true;
    const Wide rows = needed(s);
    return list.counts == counts.data() && rows <= static_cast<Wide>(counts.size()) &&
           (list.slots == 0 ||
            (list.blocks == blocks.data() && rows * list.slots <= static_cast<Wide>(blocks.size())));
  }

  /// Whether the blocks listed for a query have a key.
  bool show(std::int64_t entry, std::int64_t query, std::int64_t head, std::int64_t key) const {
    const std::int64_t row = entry * list.batch_stride + head * list.head_stride + query / list.q_block;
    const std::int32_t* const own = list.blocks + row * list.slots;
    return std::count(own, own + std::clamp<std::int64_t>(list.counts[row], 0, list.slots),
                      key / list.k_block) > 0;
  }

 private:
  /// Of one entry and head.
  std::int64_t rows_of(const ListedSizes& s) const {
    return s.queries / list.q_block + (s.queries % list.q_block != 0 ? 1 : 0);
  }
  /// Up to the last one that is read.
  Wide needed(const ListedSizes& s) const {
    return Wide{std::max<std::int64_t>(s.entries - 1, 0)} * list.batch_stride +
           Wide{std::max<std::int64_t>(s.heads - 1, 0)} * list.head_stride + rows_of(s);
  }
};

}  // namespace tandem::fuzz
