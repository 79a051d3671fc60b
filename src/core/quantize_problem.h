// QuantizeProblem: one validated quantisation of a tensor, as every backend sees it.
#pragma once

#include <bit>
#include <cstdint>

#include "core/dtype.h"
#include "core/hadamard.h"
#include "core/problem.h"
#include "core/rotary.h"
#include "core/shift.h"

namespace tandem::core {

/// The scale of a block of e4m3 whose largest magnitude is `largest`: the least power of two that maps it to
/// `amplitude` or less. e4m3 is a floating-point format, so that a block of many elements would gain nothing
/// by others, and this one's inverse is exact. 1 where all is 0.
constexpr float scale_for(float largest, float amplitude = E4m3::largest) {
  constexpr std::uint32_t mantissa = 0x7fffff, least = 0x04000000, most = 0x7e800000;  // 2^-119, 2^126
  if (largest == 0) return 1;
  const auto bits = std::bit_cast<std::uint32_t>(largest * (1 / amplitude));
  const std::uint32_t rounded_up = (bits + mantissa) & ~mantissa;
  return std::bit_cast<float>(rounded_up < least ? least : rounded_up > most ? most : rounded_up);
}
/// A row's error depends on where its elements lie between e4m3's numbers, so that of several scales within
/// an octave one is the best. So many are tried: these times the least power of two.
inline constexpr int scale_choices = 4;
constexpr float scale_choice(int i) {
  return i == 0 ? 1.f : i == 1 ? 1.18920712f : i == 2 ? 1.41421356f : 1.68179283f;  // 2^(i / 4)
}
/// The largest e4m3 number that is no larger: what is scaled to that is no larger when it is rounded, either.
inline float rounded_down_to_e4m3(float x) {
  E4m3 nearest = E4m3::from(x);
  if (static_cast<float>(nearest) > x) --nearest.bits;
  return static_cast<float>(nearest);
}
/// The scale of a block of int8, a fixed-point format: the largest magnitude becomes 127. 1 where all is 0.
constexpr float int8_scale_for(float largest) {
  constexpr float least = 0x1p-119f, most = 0x1p126f;  // that have an inverse
  if (largest == 0) return 1;
  const float scale = largest * (1 / 127.f);
  return scale < least ? least : scale > most ? most : scale;
}
/// Of a scale that is a power of two.
constexpr float inverse_of(float power_of_two) {
  return std::bit_cast<float>(0x7f000000u - std::bit_cast<std::uint32_t>(power_of_two));
}

/// out = e4m3 or int8(rotated x / scale), and of two terms e4m3(rotated x / scale - the first), where rotated
/// x is x - shift, or H diag(signs) (x - shift) / sqrt(d) for each row, H the Hadamard matrix. Built by
/// api::validate_quantize only, so that shapes agree and strides of dimensions of size 1 are 0.
struct QuantizeProblem {
  Tensor x, out;
  bool by_column;                   ///< out is as tandem_value_layout says
  int terms = 1;                    ///< by column, of e4m3: columns head_dim() ... of out are the second
  float amplitude = E4m3::largest;  ///< what scales of e4m3 bring the largest magnitude to
  Scales scale;                     ///< written, or read where it is given
  bool scale_given;
  bool best_scale = false;  ///< of e4m3 by key: of scale_choices the one whose squared error is the least
  bool hadamard;
  std::uint64_t seed;
  Rotary rotary = {};                             ///< ahead of it; by key only
  const std::int32_t* first_positions = nullptr;  ///< of each entry's first token; nullptr: 0
  Shift shift = {};                               ///< behind it, ahead of the matrix
  Shift k_shift = {};         ///< of keys, of whose heads each has as many of x; by key only
  Tensor q_dot_k_shift = {};  ///< fp32, b, s, heads, 1: (x - shift) k_shift^T; data == nullptr: not wanted

  std::int64_t batch() const { return x.shape[0]; }
  std::int64_t length() const { return x.shape[1]; }
  std::int64_t heads() const { return x.shape[2]; }
  std::int64_t head_dim() const { return x.shape[3]; }
  bool to_integers() const { return out.dtype == TANDEM_INT8; }
};

inline TensorList tensors_of(const QuantizeProblem& p) {
  TensorList list;
  list.add("x", Role::input, p.x);
  list.add("out", Role::output, p.out);
  list.add("scale", p.scale_given ? Role::input : Role::output, p.scale.values);
  add_rotary(list, p.rotary, "rotary.cos", "rotary.sin");
  if (p.first_positions != nullptr)
    list.add_array("first_positions", Role::input,
                   Region::of(p.first_positions, sizeof *p.first_positions, 1, p.batch(), 0));
  if (p.shift.given()) list.add("shift", Role::input, p.shift.values);
  if (p.k_shift.given()) list.add("k_shift", Role::input, p.k_shift.values);
  if (p.q_dot_k_shift.data != nullptr) list.add("q_dot_k_shift", Role::output, p.q_dot_k_shift);
  return list;
}

}  // namespace tandem::core
