// The gradients of sinks: what each head's has of the statistics of all its rows.
#pragma once

#include <bit>
#include <cstdint>
#include <numbers>

#include "backward/arguments.h"
#include "backward/variant.h"
#include "hw/hw.h"
#include "tile/warp_reduce.h"

namespace tandem::backward {

struct SinksShared {
  float sum[SinksVariant::threads() / hw::warp_size];  ///< of each warp
};

/// The thread's part of sum(exp(sink - lse) D) over `rows` rows of each batch entry. Rows without a part have
/// lse +inf and D 0.
TANDEM_DEVICE float weighted_rows(const SinksArguments& args, const Statistics& statistics, int rows,
                                  float sink_log2) {
  const auto head = static_cast<std::int64_t>(hw::block_index());
  float sum = 0.f;
  for (int batch = 0; batch < args.batch; ++batch) {
    const std::int64_t first = (batch * static_cast<std::int64_t>(args.q_heads) + head) * rows;
    for (int row = 4 * static_cast<int>(hw::thread_index()); row < rows; row += 4 * SinksVariant::threads()) {
      std::uint32_t lse_log2[4], delta[4];
      hw::load_global(lse_log2, statistics.lse_log2 + first + row);
      hw::load_global(delta, statistics.delta + first + row);
      TANDEM_UNROLL
      for (int i = 0; i < 4; ++i)
        sum = hw::fma(hw::exp2(sink_log2 - std::bit_cast<float>(lse_log2[i])), std::bit_cast<float>(delta[i]),
                      sum);
    }
  }
  return sum;
}

/// A block for each head. Who adds what to what is the same in every run.
TANDEM_DEVICE void sinks_kernel(const SinksArguments& args) {
  auto& shared = hw::shared_memory<SinksShared>();
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const auto head = hw::block_index();
  const float sink_log2 = hw::load_global(args.sinks + head) * std::numbers::log2e_v<float>;
  const float sum = tile::warp_sum(weighted_rows(args, args.seeing, args.seeing_rows, sink_log2) +
                                   weighted_rows(args, args.unseeing, args.unseeing_rows, sink_log2));
  const int thread = static_cast<int>(hw::thread_index());
  if (thread % hw::warp_size == 0) shared.sum[thread / hw::warp_size] = sum;
  hw::sync_block();
  if (thread != 0) return;
  float whole = 0.f;
  for (const float part : shared.sum) whole += part;
  hw::store_global(args.dsinks + head, -whole);
}

}  // namespace tandem::backward
