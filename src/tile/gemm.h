// The two products of attention, as chains of WGMMAs over tiles.
#pragma once

#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::tile {

/// Rows that one warpgroup works on.
inline constexpr int warpgroup_rows = 64;

/// The probabilities of 64 x block_n scores as A fragments, one per K step of 16 keys.
template <int block_n>
struct Probabilities {
  std::uint32_t fragment[block_n / k_step][4];
};

/// Starts S = Q K^T for 64 queries (SS-GEMM); S is complete after a wait.
template <hw::Operand operand, int block_n, int head_dim>
TANDEM_DEVICE void start_scores(float (&scores)[block_n / 2], const SharedTile<warpgroup_rows, head_dim>& q,
                                const SharedTile<block_n, head_dim>& k) {
  TANDEM_UNROLL
  for (int step = 0; step < head_dim / k_step; ++step) {
    hw::wgmma_ss<operand, block_n, hw::Major::k>(scores, q.k_major(step), k.k_major(step),
                                                 step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
  }
}

/// Starts O += P V (RS-GEMM).
template <hw::Operand operand, int block_n, int head_dim>
TANDEM_DEVICE void start_output(float (&output)[head_dim / 2], const Probabilities<block_n>& p,
                                const SharedTile<block_n, head_dim>& v) {
  TANDEM_UNROLL
  for (int step = 0; step < block_n / k_step; ++step) {
    hw::wgmma_rs<operand, head_dim, hw::Major::mn>(output, p.fragment[step], v.mn_major(step),
                                                   hw::Accumulate::add);
  }
}

/// Rounds probabilities to 16 bits. The accumulator layout of two neighbouring 8-column groups is the layout
/// of one A fragment, so nothing moves between threads.
template <hw::Operand operand, int block_n>
TANDEM_DEVICE void round_probabilities(Probabilities<block_n>& p, const float (&scores)[block_n / 2]) {
  TANDEM_UNROLL
  for (int step = 0; step < block_n / k_step; ++step) {
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      p.fragment[step][r] = hw::pack<operand>(scores[8 * step + 2 * r], scores[8 * step + 2 * r + 1]);
    }
  }
}

}  // namespace tandem::tile
