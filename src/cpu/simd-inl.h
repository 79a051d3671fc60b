// The arithmetic of the fast backend in Highway's vectors: conversion, exp2, and the product micro-kernel.
//
// Compiled once per instruction set: a file that includes this defines HWY_TARGET_INCLUDE and includes
// hwy/foreach_target.h first. Vectors stand in arrays here, so targets of unknown vector length are left out.
#if defined(TANDEM_CPU_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TANDEM_CPU_SIMD_INL_H_
#undef TANDEM_CPU_SIMD_INL_H_
#else
#define TANDEM_CPU_SIMD_INL_H_
#endif

#include <cstddef>
#include <cstring>
#include <hwy/highway.h>

#include "core/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

constexpr std::size_t lanes = HWY_LANES(float);
/// Query rows that are worked on at once: two vectors.
constexpr std::size_t panel_rows = 2 * lanes;
/// Rows of the micro-kernel: two accumulators each, a broadcast and two loads have to fit in the registers.
constexpr int kernel_rows = (HWY_ARCH_X86 && HWY_TARGET > HWY_AVX3) ? 6 : 8;

/// Two vectors side by side: one value per row of a panel.
struct Pair {
  Vector low, high;
};

HWY_INLINE Pair load(const float* from) {
  return {hn::Load(Floats(), from), hn::Load(Floats(), from + lanes)};
}

HWY_INLINE void store(Pair pair, float* to) {
  hn::Store(pair.low, Floats(), to);
  hn::Store(pair.high, Floats(), to + lanes);
}

HWY_INLINE Pair splat(float value) { return {hn::Set(Floats(), value), hn::Set(Floats(), value)}; }

/// 2^x to about one unit in the last place; 0 below 2^-126; NaN stays NaN. x is at most 0 up to rounding.
HWY_INLINE Vector exp2(Vector x) {
  const Floats f;
  const hn::RebindToSigned<Floats> i;
  // Adding 1.5 * 2^23 rounds to an integer, which then stands in the lowest bits.
  const Vector magic = hn::Set(f, 12582912.0f);
  const Vector shifted = hn::Add(x, magic);
  const Vector fraction = hn::Sub(x, hn::Sub(shifted, magic));  // in [-0.5, 0.5]
  // (2^t - 1) / t interpolated at Chebyshev nodes of [-0.5, 0.5]; relative error of the whole 5e-9.
  Vector p = hn::Set(f, 1.54531629e-4f);
  p = hn::MulAdd(p, fraction, hn::Set(f, 1.33908634e-3f));
  p = hn::MulAdd(p, fraction, hn::Set(f, 9.61808256e-3f));
  p = hn::MulAdd(p, fraction, hn::Set(f, 5.55035711e-2f));
  p = hn::MulAdd(p, fraction, hn::Set(f, 2.40226508e-1f));
  p = hn::MulAdd(p, fraction, hn::Set(f, 6.93147188e-1f));
  p = hn::MulAdd(p, fraction, hn::Set(f, 1.0f));
  const auto exponent = hn::Add(hn::BitCast(i, shifted), hn::Set(i, 127));
  const Vector power = hn::BitCast(f, hn::ShiftLeft<23>(exponent));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(f, -126.0f)), hn::Mul(p, power));
}

HWY_INLINE Pair exp2(Pair x) { return {exp2(x.low), exp2(x.high)}; }

/// Converts a row of a multiple of 8 elements to fp32.
template <typename Storage>
HWY_INLINE void widen_as(const void* from, std::size_t size, float* to) {
  const hn::CappedTag<float, 8> f;
  const hn::Rebind<Storage, decltype(f)> storage;
  for (std::size_t at = 0; at < size; at += hn::Lanes(f)) {
    hn::StoreU(hn::PromoteTo(f, hn::LoadU(storage, static_cast<const Storage*>(from) + at)), f, to + at);
  }
}

HWY_INLINE void widen(const core::Bf16* from, std::size_t size, float* to) {
  widen_as<hwy::bfloat16_t>(from, size, to);
}
HWY_INLINE void widen(const core::Fp16* from, std::size_t size, float* to) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2  // which have no instruction for it; Highway's own takes no NaN
  const hn::CappedTag<float, 8> f;
  const hn::RebindToUnsigned<decltype(f)> u;
  const hn::Rebind<std::uint16_t, decltype(f)> storage;
  for (std::size_t at = 0; at < size; at += hn::Lanes(f)) {
    const auto bits = hn::PromoteTo(u, hn::LoadU(storage, &from[at].bits));
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(u, 0x7fffu)));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(u, 0x8000u)));
    // The exponent's bias is 112 less; subnormals get theirs by the multiplication.
    const auto value = hn::BitCast(u, hn::Mul(hn::BitCast(f, magnitude), hn::Set(f, 0x1p112f)));
    const auto special = hn::VecFromMask(u, hn::Gt(magnitude, hn::Set(u, 0x0f7fffffu)));
    const auto exponent = hn::And(special, hn::Set(u, 0x7f800000u));  // of infinities and NaN
    hn::StoreU(hn::BitCast(f, hn::Or3(value, exponent, sign)), f, to + at);
  }
#else
  widen_as<hwy::float16_t>(from, size, to);
#endif
}
HWY_INLINE void widen(const float* from, std::size_t size, float* to) {
  std::memcpy(to, from, size * sizeof(float));
}

/// Whether none of a row of a multiple of 8 elements is infinite or NaN.
HWY_INLINE bool all_finite(const float* row, std::size_t size) {
  const hn::CappedTag<float, 8> f;
  auto zeros = hn::Zero(f);  // 0 times what is not finite is NaN, which stays
  for (std::size_t at = 0; at < size; at += hn::Lanes(f))
    zeros = hn::MulAdd(hn::LoadU(f, row + at), hn::Zero(f), zeros);
  return hn::AllTrue(f, hn::Eq(zeros, zeros));
}

/// A matrix whose elements are broadcast one by one; one of its strides is 1.
struct Broadcast {
  const float* data;
  std::size_t row_stride, depth_stride;
};

/// sums[rows][panel_rows] += a[rows][depth] * b[depth][panel_rows], all of it in registers.
template <int rows>
HWY_INLINE void multiply_add(const Broadcast& a, const float* HWY_RESTRICT b, std::size_t depth,
                             Pair (&sums)[rows]) {
  const Floats f;
  for (std::size_t k = 0; k < depth; ++k) {
    const Pair right = load(b + k * panel_rows);
#pragma GCC unroll 8
    for (int r = 0; r < rows; ++r) {
      const Vector left = hn::Set(f, a.data[static_cast<std::size_t>(r) * a.row_stride + k * a.depth_stride]);
      sums[r].low = hn::MulAdd(left, right.low, sums[r].low);
      sums[r].high = hn::MulAdd(left, right.high, sums[r].high);
    }
  }
}

}  // namespace tandem::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
