// Arithmetic that has an instruction of its own.
#pragma once

#include "hw/hw.h"

namespace tandem::hw {

TANDEM_DEVICE float exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

TANDEM_DEVICE float log2(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

TANDEM_DEVICE float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// tanh.approx is good to 11 bits only, which would show in fp16 outputs; tanh(x) = 1 - 2 / (e^2x + 1) is
// exact enough except near 0, where it cancels and the odd polynomial takes over: below 0.3, where the errors
// of exp2 and reciprocal would grow to more than 1e-6 of the result.
TANDEM_DEVICE float tanh(float x) {
  const float square = x * x;
  const float series = fmaf(square, fmaf(square, fmaf(square, 62.f / 2835, -17.f / 315), 2.f / 15), -1.f / 3);
  const float small = x * fmaf(square, series, 1.f);
  const float large = 1.f - 2.f * reciprocal(exp2(x * 2.885390081777927f) + 1.f);
  return square < 0.09f ? small : large;
}

TANDEM_DEVICE float fma(float a, float b, float c) { return fmaf(a, b, c); }
TANDEM_DEVICE float max(float a, float b) { return fmaxf(a, b); }
TANDEM_DEVICE float max_or_nan(float a, float b) {
  float result;
  asm("max.NaN.f32 %0, %1, %2;\n" : "=f"(result) : "f"(a), "f"(b));
  return result;
}
TANDEM_DEVICE float max_of_bits(float a, float b, float c) {
  // In one piece: as an intrinsic its moves between register types get in front of a wait for WGMMAs.
  float top;
  asm("{\n"
      ".reg .b32 x, y, z;\n"
      "mov.b32 x, %1;\n"
      "mov.b32 y, %2;\n"
      "mov.b32 z, %3;\n"
      "max.s32 x, x, y;\n"
      "max.s32 x, x, z;\n"
      "mov.b32 %0, x;\n"
      "}\n"
      : "=f"(top)
      : "f"(a), "f"(b), "f"(c));
  return top;
}

TANDEM_DEVICE std::uint32_t max_of_int16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t top;
  asm("{\n.reg .b32 x;\nmax.s16x2 x, %1, %2;\nmax.s16x2 %0, x, %3;\n}\n"
      : "=r"(top)
      : "r"(a), "r"(b), "r"(c));
  return top;
}
TANDEM_DEVICE std::uint32_t max_or_nan_fp16(std::uint32_t a, std::uint32_t b) {
  std::uint32_t top;
  asm("max.NaN.f16x2 %0, %1, %2;\n" : "=r"(top) : "r"(a), "r"(b));
  return top;
}
TANDEM_DEVICE std::uint32_t fma_fp16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  asm("fma.rn.f16x2 %0, %1, %2, %3;\n" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}
TANDEM_DEVICE std::uint32_t fma_fp16_saturated(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  std::uint32_t result;
  asm("fma.rn.sat.f16x2 %0, %1, %2, %3;\n" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

template <Operand operand>
TANDEM_DEVICE std::uint32_t pack(float low, float high) {
  static_assert(is_16_bit(operand));
  std::uint32_t word;
  if constexpr (operand == Operand::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(word) : "f"(high), "f"(low));
  }
  return word;
}

TANDEM_DEVICE std::uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  std::uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(low) : "f"(x1), "f"(x0));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;\n" : "=h"(high) : "f"(x3), "f"(x2));
  return low | static_cast<std::uint32_t>(high) << 16;
}

TANDEM_DEVICE void unpack_e4m3(std::uint32_t (&pairs)[2], std::uint32_t word) {
  asm("{\n.reg .b16 low, high;\n"
      "mov.b32 {low, high}, %2;\n"
      "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}\n"
      : "=r"(pairs[0]), "=r"(pairs[1])
      : "r"(word));
}

TANDEM_DEVICE std::uint32_t pack_bytes(float x0, float x1, float x2, float x3) {
  std::uint32_t word;
  asm("{\n.reg .s32 a, b, c, d;\n.reg .b32 upper;\n"
      "cvt.rni.s32.f32 a, %1;\ncvt.rni.s32.f32 b, %2;\ncvt.rni.s32.f32 c, %3;\ncvt.rni.s32.f32 d, %4;\n"
      "cvt.pack.sat.u8.s32.b32 upper, d, c, 0;\n"
      "cvt.pack.sat.u8.s32.b32 %0, b, a, upper;\n}\n"
      : "=r"(word)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return word;
}

TANDEM_DEVICE std::uint32_t pack_int8(float x0, float x1, float x2, float x3) {
  std::uint32_t word;
  asm("{\n.reg .s32 a, b, c, d;\n.reg .b32 upper;\n"
      "cvt.rni.s32.f32 a, %1;\ncvt.rni.s32.f32 b, %2;\ncvt.rni.s32.f32 c, %3;\ncvt.rni.s32.f32 d, %4;\n"
      "max.s32 a, a, -127;\nmax.s32 b, b, -127;\nmax.s32 c, c, -127;\nmax.s32 d, d, -127;\n"
      "cvt.pack.sat.s8.s32.b32 upper, d, c, 0;\n"
      "cvt.pack.sat.s8.s32.b32 %0, b, a, upper;\n}\n"
      : "=r"(word)
      : "f"(x0), "f"(x1), "f"(x2), "f"(x3));
  return word;
}

template <std::uint32_t order>
TANDEM_DEVICE void unpack_int8(std::uint32_t (&pairs)[2], std::uint32_t word) {
  // As the low half of the mantissa of 1024 + 128 + the number, less 1152 in both halves of a word.
  constexpr std::uint32_t thousands = 0x64646464, bias = 0xe480e480;
  const std::uint32_t biased = word ^ 0x80808080u;
  TANDEM_UNROLL
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t selector = 0x4040 | (order >> 8 * i & 15u) | (order >> (8 * i + 4) & 15u) << 8;
    asm("add.rn.f16x2 %0, %1, %2;\n"
        : "=r"(pairs[i])
        : "r"(__byte_perm(biased, thousands, selector)), "r"(bias));
  }
}

template <std::uint32_t selector>
TANDEM_DEVICE std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high) {
  return __byte_perm(low, high, selector);
}

template <Operand operand>
TANDEM_DEVICE float unpack_low(std::uint32_t word) {
  if constexpr (operand == Operand::bf16) {
    return __uint_as_float(word << 16);
  } else {
    float value;
    asm("cvt.f32.f16 %0, %1;\n" : "=f"(value) : "h"(static_cast<std::uint16_t>(word)));
    return value;
  }
}
template <Operand operand>
TANDEM_DEVICE float unpack_high(std::uint32_t word) {
  if constexpr (operand == Operand::bf16) {
    return __uint_as_float(word & 0xffff0000u);
  } else {
    return unpack_low<operand>(word >> 16);
  }
}

}  // namespace tandem::hw
