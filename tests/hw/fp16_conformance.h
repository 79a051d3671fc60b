// Verbs of fp16 numbers in pairs: arithmetic, and sums of e4m3 products that come out so.
#pragma once

#include <algorithm>
#include <cmath>
#include <random>

#include "tests/hw/conformance.h"
#include "tests/hw/wgmma_conformance.h"

namespace tandem::test {

class Fp16Verbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, Fp16Verbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

/// Each verb of three words.
struct PairsOfFp16 {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const std::uint32_t *a, *b, *c;
  std::uint32_t *integers, *floats, *sums, *saturated;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    integers[i] = hw::max_of_int16(a[i], b[i], c[i]);
    floats[i] = hw::max_or_nan_fp16(a[i], b[i]);
    sums[i] = hw::fma_fp16(a[i], b[i], c[i]);
    saturated[i] = hw::fma_fp16_saturated(a[i], b[i], c[i]);
  }
};

/// x * y + z of three encodings, rounded once, to the nearest number that is found by trying all, ties to
/// even.
inline std::uint16_t rounded_sum(std::uint16_t x, std::uint16_t y, std::uint16_t z) {
  const auto value = [](std::uint16_t bits) { return double{static_cast<float>(core::Fp16{bits})}; };
  const double sum = value(x) * value(y) + value(z);
  if (std::isnan(sum)) return 0x7fff;
  const std::uint16_t sign = std::signbit(sum) ? 0x8000 : 0;
  std::uint16_t low = 0, high = 0x7c00;  // encodings of magnitudes ascend
  const auto magnitude = [&](std::uint16_t bits) { return bits == 0x7c00 ? 65536. : value(bits); };
  if (std::abs(sum) >= 65536) return static_cast<std::uint16_t>(sign | 0x7c00);
  while (high - low > 1) {
    const auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (magnitude(middle) <= std::abs(sum) ? low : high) = middle;
  }
  const double below = std::abs(sum) - magnitude(low), above = magnitude(high) - std::abs(sum);
  const bool up = above < below || (above == below && low % 2 == 1);
  return static_cast<std::uint16_t>(sign | (up ? high : low));
}

/// Halves of all kinds: any bits, and numbers about 1, whose sums have exponents close to one another.
inline std::vector<std::uint32_t> words_of_fp16(std::size_t count, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::uint32_t> words(count);
  for (std::size_t i = 0; i < count; ++i) {
    words[i] = static_cast<std::uint32_t>(random());
    if (i % 3 == 1) words[i] = (words[i] & 0x87ff87ffu) | 0x38003800u;
    if (i % 64 == 0) words[i] = (words[i] & 0x80008000u) | 0x7c007c00u;
  }
  return words;
}

TEST_P(Fp16Verbs, PairsAreRoundedOnceClampedAndCompared) {
  constexpr std::size_t count = 64 * PairsOfFp16::threads;
  const std::vector<std::uint32_t> a = words_of_fp16(count, 1), b = words_of_fp16(count, 2),
                                   c = words_of_fp16(count, 3);
  const machine::Buffer da(a), db(b), dc(c);
  const auto output = [] { return machine::Buffer(poisoned<std::uint32_t>(count)); };
  const auto integers = output(), floats = output(), sums = output(), saturated = output();
  run(PairsOfFp16{da.data(), db.data(), dc.data(), integers.data(), floats.data(), sums.data(),
                  saturated.data()},
      count / PairsOfFp16::threads);
  const auto i32 = integers.read(), f32 = floats.read(), s32 = sums.read(), t32 = saturated.read();
  for (std::size_t i = 0; i < 2 * count; ++i) {
    const auto half = [i](const std::vector<std::uint32_t>& words) {
      return static_cast<std::uint16_t>(words[i / 2] >> 16 * (i % 2));
    };
    const auto value = [](std::uint16_t bits) { return static_cast<float>(core::Fp16{bits}); };
    const std::uint16_t x = half(a), y = half(b), z = half(c);
    SCOPED_TRACE(testing::Message() << std::hex << x << " " << y << " " << z);
    const auto largest =
        std::max({static_cast<std::int16_t>(x), static_cast<std::int16_t>(y), static_cast<std::int16_t>(z)});
    ASSERT_EQ(half(i32), static_cast<std::uint16_t>(largest));
    const bool has_nan = std::isnan(value(x)) || std::isnan(value(y));
    ASSERT_EQ(std::isnan(value(half(f32))), has_nan);
    if (!has_nan) {
      ASSERT_EQ(value(half(f32)), std::max(value(x), value(y)));
    }
    const std::uint16_t sum = rounded_sum(x, y, z);
    ASSERT_EQ(half(s32), sum);
    const float clamped = value(sum) > 0 ? std::min(value(sum), 1.f) : 0.f;  // NaN: 0
    ASSERT_EQ(value(half(t32)), clamped);
  }
}

/// D = A B + D of one warpgroup, e4m3, D in fp16.
struct MultiplyToFp16 {
  static constexpr int threads = hw::warpgroup_size, n = 128;
  using Operands = Multiply<e4m3, n, hw::Major::k, SourceOfA::shared>;
  using Shared = Operands::Shared;

  Operands operands;
  std::uint16_t* d;  ///< 64 x n

  TANDEM_DEVICE void operator()() const {
    auto& shared = hw::shared_memory<Shared>();
    operands.load(shared);
    std::uint32_t sums[n / 4];
    TANDEM_UNROLL
    for (int j = 0; j < n / 4; ++j) {
      const std::uint16_t* pair = d + place_of_accumulator<n>(2 * j);
      sums[j] = pair[0] | static_cast<std::uint32_t>(pair[1]) << 16;
    }
    hw::wgmma_fence();
    TANDEM_UNROLL
    for (int step = 0; step < wgmma_steps; ++step) {
      hw::wgmma_ss_fp16<n>(sums, shared.a.k_major(step), shared.b.k_major(step),
                           step == 0 ? operands.first : hw::Accumulate::add);
    }
    hw::wgmma_commit();
    hw::wgmma_wait<0>();
    TANDEM_UNROLL
    for (int j = 0; j < n / 4; ++j) {
      std::uint16_t* pair = d + place_of_accumulator<n>(2 * j);
      pair[0] = static_cast<std::uint16_t>(sums[j]);
      pair[1] = static_cast<std::uint16_t>(sums[j] >> 16);
    }
  }
};

TEST_P(Fp16Verbs, SumsOfE4m3ProductsAreRoundedToFp16Once) {
  constexpr int n = MultiplyToFp16::n;
  std::mt19937 random(7);
  const std::vector<std::uint16_t> a = draw_e4m3(random, wgmma_m), b = draw_e4m3(random, n);
  std::vector<std::uint16_t> d(wgmma_m * n);
  for (std::uint16_t& bits : d) bits = static_cast<std::uint16_t>(random() % 0x7000 | random() % 2 << 15);
  const machine::Buffer device_a(a), device_b(b);
  for (const hw::Accumulate first : {hw::Accumulate::add, hw::Accumulate::overwrite}) {
    const machine::Buffer sums(d);
    run(MultiplyToFp16{{machine::encode(matrix_request(device_a.data(), wgmma_m, wgmma_k, wgmma_m)),
                        machine::encode(matrix_request(device_b.data(), n, wgmma_k, n)), nullptr, nullptr,
                        first},
                       sums.data()},
        1);
    const std::vector<std::uint16_t> result = sums.read();
    for (std::size_t i = 0; i < d.size(); ++i) {
      const std::size_t row = i / n * wgmma_k, column = i % n * wgmma_k;
      auto sum = first == hw::Accumulate::add ? static_cast<float>(core::Fp16{d[i]}) : 0.f;
      for (std::size_t step = 0; step < wgmma_steps; ++step)
        sum = static_cast<float>(
            core::Fp16::from(sum_of_e4m3(sum, &a[row + 16 * step], &b[column + 16 * step], true)));
      if (std::isnan(sum)) {
        ASSERT_TRUE(std::isnan(static_cast<float>(core::Fp16{result[i]}))) << i;
      } else {
        ASSERT_EQ(static_cast<float>(core::Fp16{result[i]}), sum) << "row " << i / n << ", column " << i % n;
      }
    }
  }
}

}  // namespace tandem::test
