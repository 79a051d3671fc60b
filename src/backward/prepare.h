// What runs beside the products: D and the counters' zeros before them; gradients that are 0.
#pragma once

#include <cstdint>
#include <limits>
#include <numbers>

#include "backward/arguments.h"
#include "backward/sums.h"
#include "backward/variant.h"
#include "hw/hw.h"
#include "tile/warp_reduce.h"

namespace tandem::backward {

/// 64 queries of a head.
struct RowBlock {
  int number, head, batch;

  TANDEM_DEVICE static RowBlock of(const core::Divisor& row_blocks, const core::Divisor& heads) {
    const auto [rest, number] = row_blocks.divide(static_cast<int>(hw::block_index()));
    const auto [batch, head] = heads.divide(rest);
    return {number, head, batch};
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
TANDEM_DEVICE void prepare_statistics(const PrepareArguments& args, const RowBlock& block) {
  constexpr int lanes = lanes_of_row<head_dim>, rows_at_once = small_threads / lanes;
  const Extent& extent = args.extent;
  const int lane = static_cast<int>(hw::thread_index()) % lanes, column = 8 * lane;
  const std::int64_t first =
      (static_cast<std::int64_t>(block.batch) * extent.q_heads + block.head) * extent.padded_q_len +
      block.number * part_rows;
  for (int row = static_cast<int>(hw::thread_index()) / lanes; row < part_rows; row += rows_at_once) {
    const int query = block.number * part_rows + row;
    constexpr float infinity = std::numeric_limits<float>::infinity();
    const bool exists = query < extent.q_len;
    const float lse =
        exists ? hw::load_global(args.lse.row<const float>(block.batch, query, block.head)) : -infinity;
    const bool counts = lse != -infinity;
    float sum = 0.f;
    if (counts && column < extent.head_dim) {
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
        first + row / statistics_group * statistics_group + place_of_query(row % statistics_group);
    hw::store_global(args.statistics.lse_log2 + at, counts ? lse * std::numbers::log2e_v<float> : infinity);
    hw::store_global(args.statistics.delta + at, sum);
  }
}

/// The kernel before the products. A block of the grid for 64 queries of a head.
template <hw::Operand operand, int head_dim>
TANDEM_DEVICE void prepare_kernel(const PrepareArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  prepare_statistics<operand, head_dim>(args, RowBlock::of(args.row_blocks, args.q_heads));
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
