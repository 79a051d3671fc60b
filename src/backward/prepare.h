// What runs beside the products: D and the counters' zeros before them; gradients that are 0.
#pragma once

#include <cstdint>
#include <limits>
#include <numbers>

#include "backward/list.h"
#include "backward/sums.h"
#include "backward/variant.h"
#include "hw/hw.h"
#include "tile/warp_reduce.h"

namespace tandem::backward {

/// 64 rows of the statistics of a head: of queries of a batch entry, from `first` on, of which `count` exist.
struct RowBlock {
  int head, batch, first, count;
  std::int64_t row;  ///< the first of the statistics

  /// Of all lengths the same: block `block` of the grid.
  TANDEM_DEVICE static RowBlock of(const PrepareArguments& args, int block) {
    const auto [rest, number] = args.row_blocks.divide(block);
    const auto [batch, head] = args.q_heads.divide(rest);
    const int first = number * part_rows, left = args.extent.q_len - first;
    return {head, batch, first, left < part_rows ? left : part_rows, row_of(args, rest) + first};
  }
  /// Of the list.
  TANDEM_DEVICE static RowBlock of_list(const PrepareArguments& args, int block) {
    const auto [head, number] = args.row_blocks.divide(block);
    const ListedRows rows = read_rows(args.lists.seeing, number);
    return {head, 0, rows.first, rows.count, row_of(args, head) + number * part_rows};
  }

 private:
  TANDEM_DEVICE static std::int64_t row_of(const PrepareArguments& args, int head) {
    return static_cast<std::int64_t>(head) * args.extent.padded_q_len;
  }
};

/// The sum of the products of eight elements each.
template <hw::Operand operand>
TANDEM_DEVICE float dot(const std::uint32_t (&a)[4], const std::uint32_t (&b)[4]) {
  float sum = 0.f;
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i) {
    sum = hw::fma(hw::unpack_low<operand>(a[i]), hw::unpack_low<operand>(b[i]), sum);
    sum = hw::fma(hw::unpack_high<operand>(a[i]), hw::unpack_high<operand>(b[i]), sum);
  }
  return sum;
}

/// So many lanes share a row, eight columns each: a power of two.
template <int head_dim>
inline constexpr int lanes_of_row = head_dim <= 64    ? 8
                                    : head_dim <= 128 ? 16
                                                      : 32;

/// Line 1: D and L of the block's queries. Rows that have no part in the result are not read.
template <hw::Operand operand, int head_dim>
TANDEM_DEVICE void prepare_statistics(const PrepareArguments& args, const Statistics& statistics,
                                      const RowBlock& block) {
  constexpr int lanes = lanes_of_row<head_dim>, rows_at_once = small_threads / lanes;
  const int lane = static_cast<int>(hw::thread_index()) % lanes, column = 8 * lane;
  for (int row = static_cast<int>(hw::thread_index()) / lanes; row < part_rows; row += rows_at_once) {
    const int query = block.first + row;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const bool exists = row < block.count;
    const float lse =
        exists ? hw::load_global(args.lse.row<const float>(block.batch, query, block.head)) : -infinity;
    const bool counts = lse != -infinity;
    float sum = 0.f;
    if (counts && column < args.extent.head_dim) {
      std::uint32_t o[4], dout[4];
      hw::load_global(o, args.o.row<std::uint16_t>(block.batch, query, block.head) + column);
      hw::load_global(dout, args.dout.row<std::uint16_t>(block.batch, query, block.head) + column);
      sum = dot<operand>(o, dout);
    }
    sum = tile::warp_sum<lanes>(sum);
    if (lane != 0) continue;
    if (counts && args.dlse.data != nullptr)
      sum -= hw::load_global(args.dlse.row<const float>(block.batch, query, block.head));
    const std::int64_t at =
        block.row + row / statistics_group * statistics_group + place_of_query(row % statistics_group);
    hw::store_global(statistics.lse_log2 + at, counts ? lse * std::numbers::log2e_v<float> : infinity);
    hw::store_global(statistics.delta + at, sum);
  }
}

/// Block: zeros for rows of all heads of a gradient.
TANDEM_DEVICE void clear_rows(const core::TensorView& gradient, const ListedRows& rows, int heads,
                              int head_dim) {
  const int column = 8 * static_cast<int>(hw::lane_index());
  if (column >= head_dim) return;
  constexpr std::uint32_t zeros[4] = {};
  const int warp = static_cast<int>(hw::thread_index()) / hw::warp_size;
  for (int i = warp; i < rows.count * heads; i += small_threads / hw::warp_size)
    hw::store_global(
        static_cast<void*>(gradient.row<std::uint16_t>(0, rows.first + i / heads, i % heads) + column),
        zeros);
}

/// Where lengths vary: 64 queries that see no key, which matter to sinks, of all heads.
template <RowsVariant V>
TANDEM_DEVICE void prepare_unseeing(const PrepareArguments& args, int number) {
  const int heads = args.extent.q_heads;
  const ListedRows rows =
      number < list_size(args.lists.unseeing) ? read_rows(args.lists.unseeing, number) : ListedRows{0, 0};
  clear_rows(args.dq, rows, heads, args.extent.head_dim);
  if (args.unseeing.lse_log2 == nullptr) return;
  for (int head = 0; head < heads; ++head) {
    const std::int64_t row = (static_cast<std::int64_t>(head) * args.unseeing_blocks + number) * part_rows;
    prepare_statistics<V.operand, V.head_dim>(args, args.unseeing, {head, 0, rows.first, rows.count, row});
  }
}

/// Where lengths vary. Blocks of the grid for 64 rows of the statistics of a head; then for queries that see
/// no key; then for keys that nobody sees.
template <RowsVariant V>
TANDEM_DEVICE void prepare_listed(const PrepareArguments& args) {
  const int of_rows = args.row_blocks.value() * args.extent.q_heads;
  int block = static_cast<int>(hw::block_index());
  if (block < of_rows)
    return prepare_statistics<V.operand, V.head_dim>(args, args.statistics, RowBlock::of_list(args, block));
  block -= of_rows;
  if (block < args.unseeing_blocks) return prepare_unseeing<V>(args, block);
  block -= args.unseeing_blocks;
  if (block >= list_size(args.lists.unseen)) return;
  const ListedRows rows = read_rows(args.lists.unseen, block);
  clear_rows(args.dk, rows, args.kv_heads, args.extent.head_dim);
  clear_rows(args.dv, rows, args.kv_heads, args.extent.head_dim);
}

/// The kernel before the products. A block of the grid for 64 queries of a head.
template <RowsVariant V>
TANDEM_DEVICE void prepare_kernel(const PrepareArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  if constexpr (V.lengths == Lengths::varlen) {
    prepare_listed<V>(args);
  } else {
    prepare_statistics<V.operand, V.head_dim>(args, args.statistics,
                                              RowBlock::of(args, static_cast<int>(hw::block_index())));
  }
  const int threads = static_cast<int>(hw::grid_size()) * small_threads;
  for (int i = static_cast<int>(hw::block_index()) * small_threads + static_cast<int>(hw::thread_index());
       i < args.counter_count; i += threads) {
    hw::store_global(args.counters + i, std::uint32_t{0});
  }
}

/// Zeros for rows that nobody sees: a warp for each.
TANDEM_DEVICE void clear_kernel(const ClearArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const int row = static_cast<int>(hw::block_index() * (small_threads / hw::warp_size) + hw::warp_index());
  const int column = 8 * static_cast<int>(hw::lane_index());
  if (row >= args.count || column >= args.head_dim) return;
  const auto [rest, head] = args.heads.divide(row);
  const auto [batch, position] = args.rows.divide(rest);
  constexpr std::uint32_t zeros[4] = {};
  hw::store_global(static_cast<void*>(args.tensor.row<std::uint16_t>(batch, position, head) + column), zeros);
}

}  // namespace tandem::backward
