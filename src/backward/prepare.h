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
/// Blocks of the grid that follow one another have the same queries of different heads, for these lie
/// together.
struct RowBlock {
  int head, batch, first, count;
  std::int64_t row;  ///< the first of the statistics

  /// Of all lengths the same: block `block` of the grid.
  TANDEM_DEVICE static RowBlock of(const PrepareArguments& args, int block) {
    const auto [rest, head] = args.q_heads.divide(block);
    const auto [batch, number] = args.row_blocks.divide(rest);
    const int first = number * part_rows, left = args.extent.q_len - first;
    return {head, batch, first, left < part_rows ? left : part_rows,
            row_of(args, batch * args.extent.q_heads + head) + first};
  }
  /// Of the list.
  TANDEM_DEVICE static RowBlock of_list(const PrepareArguments& args, int block) {
    const auto [number, head] = args.q_heads.divide(block);
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

/// What D and L of a row come from: eight columns of it, as a lane has them.
struct RowColumns {
  float lse;
  std::uint32_t o[4], dout[4];
};

/// The rows of a block, as a lane reads them.
struct RowReader {
  const std::uint16_t *o, *dout;
  const float* lse;
  std::int64_t o_stride, dout_stride, lse_stride;

  TANDEM_DEVICE static RowReader of(const PrepareArguments& args, const RowBlock& block, int column) {
    return {args.o.row<const std::uint16_t>(block.batch, block.first, block.head) + column,
            args.dout.row<const std::uint16_t>(block.batch, block.first, block.head) + column,
            args.lse.row<const float>(block.batch, block.first, block.head),
            args.o.row_stride,
            args.dout.row_stride,
            args.lse.row_stride};
  }
  TANDEM_DEVICE RowColumns read(int row) const {
    RowColumns own;
    hw::load_global(own.o, o + row * o_stride);
    hw::load_global(own.dout, dout + row * dout_stride);
    own.lse = hw::load_global(lse + row * lse_stride);
    return own;
  }
};

/// What stands for 64 rows of which none has a part in the result.
TANDEM_DEVICE void store_no_statistics(const Statistics& statistics, std::int64_t row) {
  const auto thread = static_cast<int>(hw::thread_index());
  if (thread >= part_rows) return;
  hw::store_global(statistics.lse_log2 + row + thread, std::numeric_limits<float>::infinity());
  hw::store_global(statistics.delta + row + thread, 0.f);
}

/// Line 1: D and L of the block's queries. Some rows are read at once, for nothing else hides how long that
/// takes, and without conditions, or the compiler finds each one's address anew: behind the last row that one
/// again. A row that sees no key has no part in the result, whatever its o and dO are.
template <hw::Operand operand, int head_dim>
TANDEM_DEVICE void prepare_statistics(const PrepareArguments& args, const Statistics& statistics,
                                      const RowBlock& block) {
  if (block.count <= 0) return store_no_statistics(statistics, block.row);
  constexpr int lanes = lanes_of_row<head_dim>, rows_apart = small_threads / lanes, at_once = 4;
  const int lane = static_cast<int>(hw::thread_index() % lanes),
            own_row = static_cast<int>(hw::thread_index() / lanes), last_row = block.count - 1;
  const bool has_columns = 8 * lane < args.extent.head_dim;
  const auto reader = RowReader::of(args, block, has_columns ? 8 * lane : 0);
  const std::int64_t own_place = block.row + place_of_row(own_row);
  for (int first = 0; first < part_rows; first += at_once * rows_apart) {
    RowColumns columns[at_once];
    float sums[at_once];
    TANDEM_UNROLL
    for (int i = 0; i < at_once; ++i) {
      const int row = own_row + first + i * rows_apart;
      columns[i] = reader.read(row < last_row ? row : last_row);
    }
    TANDEM_UNROLL
    for (int i = 0; i < at_once; ++i)
      sums[i] = tile::warp_sum<lanes>(has_columns ? dot<operand>(columns[i].o, columns[i].dout) : 0.f);
    if (lane != 0) continue;
    TANDEM_UNROLL
    for (int i = 0; i < at_once; ++i) {
      constexpr float infinity = std::numeric_limits<float>::infinity();
      const int ahead = first + i * rows_apart, row = own_row + ahead;
      const float lse = columns[i].lse;
      const bool counts = row <= last_row && lse != -infinity;
      if (counts && args.dlse.data != nullptr)
        sums[i] -= hw::load_global(args.dlse.row<const float>(block.batch, block.first + row, block.head));
      const std::int64_t at = own_place + place_of_row(ahead);
      hw::store_global(statistics.lse_log2 + at, counts ? lse * std::numbers::log2e_v<float> : infinity);
      hw::store_global(statistics.delta + at, counts ? sums[i] : 0.f);
    }
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
  if constexpr (V.lengths == Lengths::varlen) {
    hw::wait_for_prior_grid();
    prepare_listed<V>(args);
  } else {
    const RowBlock block = RowBlock::of(args, static_cast<int>(hw::block_index()));
    hw::wait_for_prior_grid();
    prepare_statistics<V.operand, V.head_dim>(args, args.statistics, block);
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
