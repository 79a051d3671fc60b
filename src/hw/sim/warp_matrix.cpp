// Matrices of a warp: mma.sync, ldmatrix, stmatrix, movmatrix.
#include <cstring>

#include "hw/sim/machine_state.h"
#include "hw/sim/matrix.h"

namespace tandem::hw::sim {

namespace {

/// The two 16-bit elements of a register.
struct Pair {
  std::uint16_t element[2];
  static Pair of(std::uint32_t word) {
    return {{static_cast<std::uint16_t>(word), static_cast<std::uint16_t>(word >> 16)}};
  }
  std::uint32_t word() const { return element[0] | static_cast<std::uint32_t>(element[1]) << 16; }
};

/// What a lane asks of all lanes alike.
std::uint64_t argument_of(MatrixMove move) {
  return static_cast<std::uint64_t>(2 * move.count + move.transposed);
}

/// A row's place in the shared window, as a word that lanes can exchange; lanes that give no address pass 0.
std::uint32_t row_of(const Thread& thread, MatrixMove move, const void* row) {
  if (thread.lane() >= 8 * move.count) return 0;
  const std::uint32_t offset = offset_of(row, 16, "a matrix row");
  if (offset % 16 != 0) {
    fail(Rule::bad_argument,
         "gives a matrix row at shared offset " + std::to_string(offset) + ", which is not aligned to 16");
  }
  return offset;
}

/// Calls `visit(element, offset, bytes)` for the parts of matrix i in memory that the lane's register holds:
/// both elements at once, or each on its own where the matrix is transposed.
template <typename Visit>
void for_each_part(const Thread& thread, MatrixMove move, const LaneWords* rows, int i, Visit&& visit) {
  const int row = thread.lane() / 4, column = 2 * (thread.lane() % 4);
  if (!move.transposed) return visit(0, rows[8 * i + row][0] + 2 * column, 4);
  for (int c = 0; c < 2; ++c) visit(c, rows[8 * i + column + c][0] + 2 * row, 2);
}

}  // namespace

void mma_sync(Operand operand, float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  Thread& thread = TANDEM_SIM_ENTER();
  const LaneWords* lanes =
      exchange(thread, {a[0], a[1], a[2], a[3], b[0], b[1]}, "mma_sync", static_cast<std::uint64_t>(operand));
  const auto element = [&](int lane, int word, int c) {
    const std::uint16_t bits = Pair::of(lanes[lane][word]).element[c];
    return operand == Operand::bf16 ? from_bf16(bits) : from_fp16(bits);
  };
  const int row = thread.lane() / 4, quad = thread.lane() % 4;
  for (int at = 0; at < 4; ++at) {
    const int i = at / 2, column = 2 * quad + at % 2;
    // As WGMMA here: ascending k, each product added in fp32.
    for (int k = 0; k < 16; ++k) {
      const int holder = k % 8 / 2, half = k / 8, c = k % 2;
      d[at] += element(4 * row + holder, 2 * half + i, c) * element(4 * column + holder, 4 + half, c);
    }
  }
}

void load_matrices(MatrixMove move, std::uint32_t* matrices, const void* row) {
  Thread& thread = TANDEM_SIM_ENTER();
  const void* code = thread.code;
  const LaneWords rows_own = {row_of(thread, move, row)};
  const LaneWords* rows = exchange(thread, rows_own, "load_matrices", argument_of(move));
  for (int i = 0; i < move.count; ++i) {
    Pair pair{};
    for_each_part(thread, move, rows, i, [&](int first, std::uint32_t offset, std::size_t bytes) {
      access_shared(machine.window + offset, bytes, false, code);
      std::memcpy(&pair.element[first], machine.window + offset, bytes);
    });
    matrices[i] = pair.word();
  }
}

void store_matrices(MatrixMove move, void* row, const std::uint32_t* matrices) {
  Thread& thread = TANDEM_SIM_ENTER();
  const void* code = thread.code;
  const LaneWords rows_own = {row_of(thread, move, row)};
  const LaneWords* rows = exchange(thread, rows_own, "store_matrices", argument_of(move));
  for (int i = 0; i < move.count; ++i) {
    const Pair pair = Pair::of(matrices[i]);
    for_each_part(thread, move, rows, i, [&](int first, std::uint32_t offset, std::size_t bytes) {
      access_shared(machine.window + offset, bytes, true, code);
      std::memcpy(machine.window + offset, &pair.element[first], bytes);
    });
  }
}

std::uint32_t transpose_matrix(std::uint32_t matrix) {
  Thread& thread = TANDEM_SIM_ENTER();
  const LaneWords* lanes = exchange(thread, {matrix}, "transpose_matrix");
  const int row = thread.lane() / 4, column = 2 * (thread.lane() % 4);
  Pair pair{};
  for (int c = 0; c < 2; ++c)
    pair.element[c] = Pair::of(lanes[4 * (column + c) + row / 2][0]).element[row % 2];
  return pair.word();
}

}  // namespace tandem::hw::sim
