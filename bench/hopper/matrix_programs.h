// The kernels of matrix_rates.h: nothing but one instruction, many in flight.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "hw/hw.h"
#include "tile/shared_tile.h"

namespace tandem::bench {

enum class Form { ss, rs, registers, load_a, load_ab };

/// One kernel: an instruction, its form, and how many warpgroups of a multiprocessor run it.
struct MatrixProgram {
  Form form;
  hw::Operand operand;
  int n;
  int warpgroups;

  constexpr bool is_wgmma() const { return form == Form::ss || form == Form::rs; }
  constexpr int m() const { return is_wgmma() ? 64 : 16; }
  constexpr int k() const { return hw::is_16_bit(operand) ? 16 : 32; }
  constexpr int threads() const { return warpgroups * hw::warpgroup_size; }
  /// Of one instruction.
  constexpr double flops() const { return 2.0 * m() * n * k(); }
  /// Instructions that one agent (a warpgroup, or a warp) starts before it waits.
  static constexpr int unrolled = 8;
  /// Agents of a multiprocessor.
  constexpr int agents() const { return is_wgmma() ? warpgroups : 4 * warpgroups; }
};

/// What is measured, in the order of the table.
constexpr auto matrix_programs() {
  using enum Form;
  constexpr int sizes[] = {8, 16, 32, 64, 128, 256};
  constexpr int most = 2 * 2 * 6 * 3 + 9;
  struct Table {
    std::array<MatrixProgram, most> programs{};
    std::size_t count = 0;
    constexpr void add(const MatrixProgram& program) { programs[count++] = program; }
  } table;
  for (const hw::Operand operand : {hw::Operand::bf16, hw::Operand::e4m3})
    for (const Form form : {ss, rs})
      for (const int n : sizes)
        for (const int warpgroups : {1, 2, 4})
          // 512 threads have 128 registers each, which 256 columns need for the sums alone.
          if (n <= 128 || warpgroups <= 2) table.add({form, operand, n, warpgroups});
  for (const Form form : {registers, load_a, load_ab})
    for (const int warpgroups : {1, 2, 4}) table.add({form, hw::Operand::bf16, 8, warpgroups});
  return table;
}

/// What a launch says: how long, and what WGMMA does with its sums. The latter is no constant, because ptxas
/// leaves out a product that the next one overwrites.
struct MatrixRun {
  int rounds;
  hw::Accumulate accumulate;
  float* results;  ///< one a thread
};

/// Operands of WGMMA: 64 rows for each warpgroup, four K steps (128 bytes a row, whatever the type).
template <MatrixProgram P, bool is_wgmma = P.is_wgmma()>
struct MatrixStorage {
  tile::SharedTile<64, 64> a[P.warpgroups];
  tile::SharedTile<P.n, 64> b;
};
/// Rows for ldmatrix: each warp has its own, 8 x 16 bytes together, free of bank conflicts.
template <MatrixProgram P>
struct MatrixStorage<P, false> {
  static constexpr int matrices = 4 * MatrixProgram::unrolled;
  std::uint16_t matrix[P.agents()][matrices][8][8];
};

/// Numbers of either sign between 0.5 and 2: zeros would let the chip clock higher.
template <hw::Operand operand>
TANDEM_DEVICE std::uint32_t some_numbers(std::uint32_t seed) {
  const std::uint32_t bits = (seed + 1) * 2654435761u ^ (seed + 1) * 40503u << 7;
  return hw::is_16_bit(operand) ? (bits & 0x807f807fu) | 0x3f003f00u : (bits & 0x87878787u) | 0x38383838u;
}

template <MatrixProgram P>
TANDEM_DEVICE void fill(MatrixStorage<P>& storage) {
  auto* words = reinterpret_cast<std::uint32_t*>(&storage);
  for (std::uint32_t i = hw::thread_index(); i < sizeof(storage) / 4; i += P.threads()) {
    words[i] = some_numbers<P.operand>(i);
  }
  hw::fence_async_proxy();
  hw::sync_block();
}

/// A group of WGMMAs is started while the one before is still in flight.
template <MatrixProgram P>
TANDEM_DEVICE float run_wgmma(MatrixStorage<P>& storage, const MatrixRun& run) {
  const tile::SharedTile<64, 64>& a = storage.a[hw::warpgroup_index()];
  float d[P.n / 2];
  TANDEM_UNROLL
  for (int j = 0; j < P.n / 2; ++j) d[j] = 0.f;
  std::uint32_t fragment[4];
  TANDEM_UNROLL
  for (std::uint32_t i = 0; i < 4; ++i) fragment[i] = some_numbers<P.operand>(4 * hw::thread_index() + i);
  int rounds = run.rounds;
  do {  // at least once: ptxas serialises the products of a loop that may be skipped
    hw::wgmma_fence();
    TANDEM_UNROLL
    for (int i = 0; i < P.unrolled; ++i) {
      if constexpr (P.form == Form::ss) {
        hw::wgmma_ss<P.operand, P.n, hw::Major::k>(d, a.k_major(i % 4), storage.b.k_major(i % 4),
                                                   run.accumulate);
      } else {
        hw::wgmma_rs<P.operand, P.n, hw::Major::k>(d, fragment, storage.b.k_major(i % 4), run.accumulate);
      }
    }
    hw::wgmma_commit();
    hw::wgmma_wait<1>();
  } while (--rounds > 0);
  hw::wgmma_wait<0>();
  float sum = 0;
  TANDEM_UNROLL
  for (int j = 0; j < P.n / 2; ++j) sum += d[j];
  return sum;
}

/// mma.sync on independent sums, which hide its latency; A, or A and B, from shared memory for each product,
/// as where nothing is used twice.
template <MatrixProgram P>
TANDEM_DEVICE float run_mma(MatrixStorage<P>& storage, int rounds) {
  constexpr int sums = P.unrolled;
  const auto& matrix = storage.matrix[hw::warp_index()];
  const std::uint32_t lane = hw::lane_index();
  float d[sums][4];
  std::uint32_t a[sums][4], b[sums][2];
  TANDEM_UNROLL
  for (std::uint32_t i = 0; i < sums; ++i) {
    TANDEM_UNROLL
    for (std::uint32_t r = 0; r < 4; ++r) {
      d[i][r] = 0.f;
      a[i][r] = some_numbers<P.operand>(64 * lane + 8 * r + i);
      if (r < 2) b[i][r] = some_numbers<P.operand>(64 * lane + 32 + 8 * r + i);
    }
  }
#pragma unroll 1
  for (int round = 0; round < rounds; ++round) {
    TANDEM_UNROLL
    for (int i = 0; i < sums; ++i) {
      if constexpr (P.form != Form::registers) {
        hw::load_matrices(a[i], &matrix[4 * i + static_cast<int>(lane) / 8][lane % 8]);
      }
      if constexpr (P.form == Form::load_ab) {
        hw::load_matrices(b[i], &matrix[4 * i + static_cast<int>(lane) / 8 % 2][lane % 8]);
      }
      hw::mma_sync<P.operand>(d[i], a[i], b[i]);
    }
  }
  float sum = 0;
  TANDEM_UNROLL
  for (int i = 0; i < sums; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  return sum;
}

/// The kernel: `rounds` times `unrolled` instructions of each agent; a number for each thread, so that
/// nothing is left out.
template <MatrixProgram P>
TANDEM_DEVICE void run_program(const MatrixRun& run) {
  auto& storage = hw::shared_memory<MatrixStorage<P>>();
  fill<P>(storage);
  float result;
  if constexpr (P.is_wgmma()) {
    result = run_wgmma<P>(storage, run);
  } else {
    result = run_mma<P>(storage, run.rounds);
  }
  hw::store_global(run.results + hw::block_index() * P.threads() + hw::thread_index(), result);
}

}  // namespace tandem::bench
