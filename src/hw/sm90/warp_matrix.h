// Matrices of a warp: mma.sync and what brings its fragments.
#pragma once

#include "hw/hw.h"

namespace tandem::hw {

// Volatile, though it has no effect but its result: all lanes have to come, so it must not move into a
// branch.
template <Operand operand>
TANDEM_DEVICE void mma_sync(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  static_assert(is_16_bit(operand));
  if constexpr (operand == Operand::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9},"
        " {%0, %1, %2, %3};\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// The instructions for one count of matrices. `order` is "" or ".trans", which "C" pastes.
template <int count>
struct MatrixMoves;

template <>
struct MatrixMoves<1> {
  template <const auto& order>
  TANDEM_DEVICE static void load(std::uint32_t (&m)[1], std::uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x1%2.shared.b16 {%0}, [%1];\n"
                 : "=r"(m[0])
                 : "r"(row), "C"(order)
                 : "memory");
  }
  template <const auto& order>
  TANDEM_DEVICE static void store(std::uint32_t row, const std::uint32_t (&m)[1]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x1%2.shared.b16 [%0], {%1};\n" ::"r"(row), "r"(m[0]), "C"(order)
                 : "memory");
  }
};

template <>
struct MatrixMoves<2> {
  template <const auto& order>
  TANDEM_DEVICE static void load(std::uint32_t (&m)[2], std::uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2%3.shared.b16 {%0, %1}, [%2];\n"
                 : "=r"(m[0]), "=r"(m[1])
                 : "r"(row), "C"(order)
                 : "memory");
  }
  template <const auto& order>
  TANDEM_DEVICE static void store(std::uint32_t row, const std::uint32_t (&m)[2]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x2%3.shared.b16 [%0], {%1, %2};\n" ::"r"(row), "r"(m[0]),
                 "r"(m[1]), "C"(order)
                 : "memory");
  }
};

template <>
struct MatrixMoves<4> {
  template <const auto& order>
  TANDEM_DEVICE static void load(std::uint32_t (&m)[4], std::uint32_t row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4%5.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3])
                 : "r"(row), "C"(order)
                 : "memory");
  }
  template <const auto& order>
  TANDEM_DEVICE static void store(std::uint32_t row, const std::uint32_t (&m)[4]) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4%5.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(row), "r"(m[0]),
                 "r"(m[1]), "r"(m[2]), "r"(m[3]), "C"(order)
                 : "memory");
  }
};

inline constexpr char as_stored[] = "";
inline constexpr char transposed[] = ".trans";

template <int count>
TANDEM_DEVICE void load_matrices(std::uint32_t (&matrices)[count], const void* row) {
  MatrixMoves<count>::template load<as_stored>(matrices, shared_address(row));
}
template <int count>
TANDEM_DEVICE void load_matrices_transposed(std::uint32_t (&matrices)[count], const void* row) {
  MatrixMoves<count>::template load<transposed>(matrices, shared_address(row));
}
template <int count>
TANDEM_DEVICE void store_matrices(void* row, const std::uint32_t (&matrices)[count]) {
  MatrixMoves<count>::template store<as_stored>(shared_address(row), matrices);
}
template <int count>
TANDEM_DEVICE void store_matrices_transposed(void* row, const std::uint32_t (&matrices)[count]) {
  MatrixMoves<count>::template store<transposed>(shared_address(row), matrices);
}

TANDEM_DEVICE std::uint32_t transpose_matrix(std::uint32_t matrix) {
  std::uint32_t result;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;\n" : "=r"(result) : "r"(matrix));
  return result;
}

}  // namespace tandem::hw
