// The two products of attention, as chains of WGMMAs over tiles. Tiles and fragments count words of 16 bits;
// of 8-bit operands a word is two neighbouring elements.
#pragma once

#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::tile {

/// Rows that one warpgroup works on.
inline constexpr int warpgroup_rows = 64;

/// Of an accumulator of that many rows: the upper one of a thread's two, of lane `lane` of the warpgroup's
/// warp number `warp`; the other is 8 further down.
constexpr int upper_row(int warp, int lane) { return 16 * warp + lane / 4; }
/// Of the warpgroup's thread number `thread`.
constexpr int upper_row(int thread) { return upper_row(thread / hw::warp_size, thread % hw::warp_size); }

/// The probabilities of 64 x block_n scores as A fragments, one per K step of 16 keys.
template <int block_n>
struct Probabilities {
  std::uint32_t fragment[block_n / k_step][4];
};

/// Where sums of integer products start: in the bits of this float, whose unit in the last place is 1. So a
/// sum s, read as a float, is base_of_sums + s, and needs no conversion: of 256 products s is at most 2^22.
inline constexpr float base_of_sums = 0x1.8p23f;

/// Before issue_scores, as early as registers are free.
template <hw::Operand operand, int count>
TANDEM_DEVICE void begin_scores(float (&scores)[count]) {
  if constexpr (operand == hw::Operand::int8) {
    TANDEM_UNROLL
    for (float& score : scores) score = base_of_sums;
  }
}

/// Starts S = Q K^T for 64 queries (SS-GEMM); S is complete after a wait.
template <hw::Operand operand, int block_n, int head_dim>
TANDEM_DEVICE void issue_scores(float (&scores)[block_n / 2], const SharedTile<warpgroup_rows, head_dim>& q,
                                const SharedTile<block_n, head_dim>& k) {
  TANDEM_UNROLL
  for (int step = 0; step < head_dim / k_step; ++step) {
    hw::wgmma_ss<operand, block_n, hw::Major::k>(
        scores, q.k_major(step), k.k_major(step),
        step == 0 && operand != hw::Operand::int8 ? hw::Accumulate::overwrite : hw::Accumulate::add);
  }
}

/// The same, in fp16 (hw::wgmma_ss_fp16).
template <int block_n, int head_dim>
TANDEM_DEVICE void issue_scores_fp16(std::uint32_t (&scores)[block_n / 4],
                                     const SharedTile<warpgroup_rows, head_dim>& q,
                                     const SharedTile<block_n, head_dim>& k) {
  TANDEM_UNROLL
  for (int step = 0; step < head_dim / k_step; ++step) {
    hw::wgmma_ss_fp16<block_n>(scores, q.k_major(step), k.k_major(step),
                               step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
  }
}

/// Starts O += P V (RS-GEMM). `instruction_columns`: of the output, that one instruction computes; 0: all.
template <hw::Operand operand, int instruction_columns = 0, int block_n, int columns>
TANDEM_DEVICE void start_output(float (&output)[columns / 2], const Probabilities<block_n>& p,
                                const SharedTile<block_n, columns>& v) {
  constexpr int n = instruction_columns == 0 ? columns : instruction_columns;
  auto& parts = reinterpret_cast<float(&)[columns / n][n / 2]>(output);
  TANDEM_UNROLL
  for (int step = 0; step < block_n / k_step; ++step) {
    TANDEM_UNROLL
    for (int i = 0; i < columns / n; ++i) {
      hw::wgmma_rs<operand, n, hw::Major::mn>(parts[i], p.fragment[step],
                                              v.mn_major(step, i * n / panel_columns), hw::Accumulate::add);
    }
  }
}

/// Starts P V of one block by itself, of e4m3 operands: for `count` rows of V^T (columns of the output) from
/// `first` on. `then`: what becomes of what the registers hold.
template <int count, hw::Accumulate then = hw::Accumulate::overwrite, int rows, int words, int registers>
TANDEM_DEVICE void start_product(float (&all)[registers], const Probabilities<words>& p,
                                 const SharedTile<rows, words>& v_transposed, int first) {
  static_assert(words <= panel_columns && count / 2 <= registers);
  auto& product = reinterpret_cast<float(&)[count / 2]>(all);
  TANDEM_UNROLL
  for (int step = 0; step < words / k_step; ++step) {
    hw::wgmma_rs<hw::Operand::e4m3, count, hw::Major::k>(
        product, p.fragment[step], v_transposed.k_major(step).advanced(first * row_bytes),
        step == 0 ? then : hw::Accumulate::add);
  }
}

/// Rounds probabilities to e4m3. Nothing moves between threads here either, where V^T has its keys in the
/// order of core::key_of_position: a thread's columns of two neighbouring 8-column groups are its four of an
/// A register.
/// codes: `scores` are codes already, but for rounding.
template <bool codes, int words>
TANDEM_DEVICE void quantise_probabilities(Probabilities<words>& p, const float (&scores)[words]) {
  TANDEM_UNROLL
  for (int step = 0; step < words / k_step; ++step) {
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {  // register 2 * h + i: row i of the groups 2 * h and 2 * h + 1
      const float* group = &scores[16 * step + 8 * (r / 2) + 2 * (r % 2)];
      p.fragment[step][r] = codes ? hw::pack_bytes(group[0], group[1], group[4], group[5])
                                  : hw::pack_e4m3(group[0], group[1], group[4], group[5]);
    }
  }
}

/// The same of codes in the low bytes of halves.
template <int words>
TANDEM_DEVICE void gather_codes(Probabilities<words>& p, const std::uint32_t (&codes)[words / 2]) {
  TANDEM_UNROLL
  for (int step = 0; step < words / k_step; ++step) {
    TANDEM_UNROLL
    for (int r = 0; r < 4; ++r) {
      const std::uint32_t* group = &codes[8 * step + 4 * (r / 2) + r % 2];
      p.fragment[step][r] = hw::select_bytes<0x6420>(group[0], group[2]);
    }
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
