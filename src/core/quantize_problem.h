// QuantizeProblem: one validated quantisation of a tensor, as every backend sees it.
#pragma once

#include <bit>
#include <cstdint>

#include "core/problem.h"

namespace tandem::core {

/// What scales map the largest magnitude to: the largest finite e4m3 number.
inline constexpr float e4m3_largest = 448;
/// The scale of a block whose largest magnitude is `largest`: the least power of two that maps it to 448 or
/// less. e4m3 is a floating-point format, so that others would gain nothing, and this one's inverse is exact.
/// 1 where all is 0.
constexpr float scale_for(float largest) {
  constexpr std::uint32_t mantissa = 0x7fffff, least = 0x04000000, most = 0x7e800000;  // 2^-119, 2^126
  if (largest == 0) return 1;
  const auto bits = std::bit_cast<std::uint32_t>(largest * (1 / e4m3_largest));
  const std::uint32_t rounded_up = (bits + mantissa) & ~mantissa;
  return std::bit_cast<float>(rounded_up < least ? least : rounded_up > most ? most : rounded_up);
}
/// Of such a scale.
constexpr float inverse_of(float power_of_two) {
  return std::bit_cast<float>(0x7f000000u - std::bit_cast<std::uint32_t>(power_of_two));
}

/// Whether column `column` changes its sign before the Hadamard transform: the top bit of SplitMix64's output
/// number column + 1. Source: Steele, Lea and Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
constexpr bool changes_sign(std::uint64_t seed, int column) {
  std::uint64_t x = seed + 0x9e3779b97f4a7c15u * (static_cast<std::uint64_t>(column) + 1);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return ((x ^ (x >> 31)) >> 63) != 0;
}

/// out = e4m3(rotated x / scale), where rotated x is x, or H diag(signs) x / sqrt(d) for each row, H the
/// Hadamard matrix. Built by api::validate_quantize only, so that shapes agree and strides of dimensions of
/// size 1 are 0.
struct QuantizeProblem {
  Tensor x, out;
  bool by_column;  ///< out is as tandem_value_layout says
  Scales scale;    ///< written, or read where it is given
  bool scale_given;
  bool hadamard;
  std::uint64_t seed;

  std::int64_t batch() const { return x.shape[0]; }
  std::int64_t length() const { return x.shape[1]; }
  std::int64_t heads() const { return x.shape[2]; }
  std::int64_t head_dim() const { return x.shape[3]; }
};

inline TensorList tensors_of(const QuantizeProblem& p) {
  TensorList list;
  list.add("x", Role::input, p.x);
  list.add("out", Role::output, p.out);
  list.add("scale", p.scale_given ? Role::input : Role::output, p.scale.values);
  return list;
}

}  // namespace tandem::core
