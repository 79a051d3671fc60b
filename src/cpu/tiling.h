// How a problem is cut into tasks, and the scratch memory of one task.
//
// The query heads that share a key/value head are folded into one sequence of rows: row r is query r / group
// of head kv_head * group + r % group. Keys and values are then converted once for all of them, a decoding
// step fills whole vectors, and the visible ranges still grow with the row.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "core/integers.h"
#include "core/problem.h"
#include "core/workspace.h"

namespace tandem::cpu {

/// Rows that a vector register pair may hold at most; tiles are multiples of it.
constexpr std::int64_t max_panel_rows = 32;
/// Keys of a block: scores of one panel stay in the first-level cache, its keys and values in the second.
constexpr int block_keys = 128;
/// Of a row of any tensor: latent attention's keys have them.
constexpr std::int64_t most_columns = 576;

/// A function of the problem alone, never of the machine, so that results are reproducible.
struct Tiling {
  static constexpr std::int64_t most_forward_rows = 256;  ///< of a task of the forward

  std::int64_t rows;       ///< of one key/value head
  std::int64_t tile_rows;  ///< of one task
  std::int64_t tiles;      ///< per key/value head

  /// `heads` key/value heads in all. Tall tiles convert what streams past them less often; shorter ones keep
  /// many cores busy.
  Tiling(std::int64_t heads, std::int64_t head_rows, std::int64_t tallest)
      : rows(head_rows), tile_rows(tallest) {
    constexpr std::int64_t enough_tasks = 128;
    while (tile_rows > 64 && heads * core::ceil_div(rows, tile_rows) < enough_tasks) {
      tile_rows /= 2;
    }
    tiles = core::ceil_div(rows, tile_rows);
  }
  explicit Tiling(const core::ForwardProblem& p)
      : Tiling(p.batch() * p.kv_heads(), p.q_len() * p.group(), most_forward_rows) {}
};

/// A row of every head in k and v; `entry` in the batch dimension.
struct KeyPlace {
  std::int64_t entry, row;
};

/// Where the keys and values of one sequence lie in k and v.
struct KeyPlaces {
  const std::int32_t* pages;  ///< in which entry keys i * page_size ... are; nullptr: all in `entry`
  std::int64_t page_size, entry;

  KeyPlace operator[](std::int64_t key) const {
    if (pages == nullptr) return {entry, key};
    return {pages[key / page_size], key % page_size};
  }
};

inline bool exists(const core::Tensor& tensor, const KeyPlace& place) {
  return 0 <= place.entry && place.entry < tensor.shape[0];
}

/// The row of one head in k or v; zeros where its entry does not exist.
template <typename Element>
const Element* row_at(const core::Tensor& tensor, const KeyPlace& place, std::int64_t head) {
  static constexpr Element zeros[most_columns] = {};
  return exists(tensor, place) ? core::row_of<Element>(tensor, place.entry, place.row, head) : zeros;
}

/// Blocks of keys that all rows of a tile see, ascending.
struct ListedKeys {
  std::span<const std::int32_t> blocks;
  std::int64_t block = 0;  ///< keys of one; 0: there is no list, all keys are seen
};

/// One task: some rows of one key/value head.
struct Tile {
  std::int64_t batch, kv_head, row_begin, row_end;
  KeyPlaces keys;
  ListedKeys listed = {};
};

/// Floats up to whole blocks of the 256 bytes to which workspaces are aligned. Unsigned, since a tensor may
/// have as many elements as fit 63 bits.
constexpr std::size_t whole_blocks(std::size_t floats) {
  constexpr std::size_t block = core::workspace_alignment / sizeof(float);
  return (floats + block - 1) / block * block;
}

/// The scratch of one task, cut out of the workspace. Sizes in floats.
struct Scratch {
  float* keys;       ///< block_keys rows of key_stride
  float* values;     ///< block_keys rows of key_stride
  float* queries;    ///< per panel of rows: head_dim x panel, transposed
  float* outputs;    ///< the same shape, not yet divided by the row sum
  float* reference;  ///< tile_rows: subtracted from exponents of 2
  float* row_sum;    ///< tile_rows
  float* scores;     ///< block_keys x panel, transposed

  /// A cache line more than the head dim, so that rows do not fall on the same cache sets.
  static std::size_t key_stride(std::size_t head_dim) { return head_dim + 16; }

  static std::size_t size(std::size_t head_dim, std::size_t tile_rows) {
    const std::size_t floats = 2 * block_keys * key_stride(head_dim) + 2 * tile_rows * head_dim +
                               2 * tile_rows + block_keys * max_panel_rows;
    return whole_blocks(floats);
  }

  Scratch(float* memory, std::size_t head_dim, std::size_t tile_rows) {
    const auto take = [&memory](std::size_t floats) { return std::exchange(memory, memory + floats); };
    keys = take(block_keys * key_stride(head_dim));
    values = take(block_keys * key_stride(head_dim));
    queries = take(tile_rows * head_dim);
    outputs = take(tile_rows * head_dim);
    reference = take(tile_rows);
    row_sum = take(tile_rows);
    scores = take(block_keys * max_panel_rows);
  }
};

/// Columns of the widest rows, of a forward or a decoding step.
template <typename Problem>
std::size_t widest_row(const Problem& p) {
  return static_cast<std::size_t>(std::max(p.head_dim(), p.value_dim()));
}

template <typename Problem>
std::size_t scratch_floats(const Problem& p, const Tiling& tiling) {
  return Scratch::size(widest_row(p), static_cast<std::size_t>(tiling.tile_rows));
}

}  // namespace tandem::cpu
