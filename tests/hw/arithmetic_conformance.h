// Arithmetic verbs against double precision, within what hw.h promises.
#pragma once

#include <bit>
#include <cmath>
#include <limits>

#include "core/dtype.h"
#include "tests/hw/conformance.h"

namespace tandem::test {

class ArithmeticVerbs : public Conformance {};
INSTANTIATE_TEST_SUITE_P(Machine, ArithmeticVerbs, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

enum class Function { exp2, log2, tanh, reciprocal };

/// y = function(x), one element a thread.
template <Function function>
struct Apply {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const float* x;
  float* y;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    if constexpr (function == Function::exp2) y[i] = hw::exp2(x[i]);
    if constexpr (function == Function::log2) y[i] = hw::log2(x[i]);
    if constexpr (function == Function::tanh) y[i] = hw::tanh(x[i]);
    if constexpr (function == Function::reciprocal) y[i] = hw::reciprocal(x[i]);
  }
};

/// Distance of neighbouring floats around a value.
inline double ulp(double value) { return std::ldexp(1.0, std::max(std::ilogb(value), -126) - 23); }

/// `count` numbers between `low` and `high`, evenly spread with some jitter.
inline std::vector<float> between(double low, double high, int count) {
  std::mt19937 random(3);
  std::vector<float> values;
  for (int i = 0; i < count; ++i) {
    const double jitter = static_cast<double>(random()) / 4294967296.0;
    values.push_back(static_cast<float>(low + (high - low) * (i + jitter) / count));
  }
  return values;
}

inline std::vector<float> joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// Magnitudes from 2^low to 2^high, evenly spread over the exponents.
inline std::vector<float> powers(double low, double high, int count) {
  std::vector<float> values = between(low, high, count);
  for (float& v : values) v = static_cast<float>(std::exp2(static_cast<double>(v)));
  return values;
}

class FunctionTest : public ArithmeticVerbs {
 protected:
  template <Function function>
  std::vector<float> apply(std::vector<float> x) const {
    using Body = Apply<function>;
    const std::size_t count = x.size(), blocks = (count + Body::threads - 1) / Body::threads;
    x.resize(blocks * Body::threads, 1.f);
    const machine::Buffer in(x), out(poisoned<float>(x.size()));
    run(Body{in.data(), out.data()}, static_cast<int>(blocks));
    std::vector<float> y = out.read();
    y.resize(count);
    return y;
  }

  /// `limit(x, true value)`: the largest error allowed.
  template <typename True, typename Limit>
  static void expect_near(const std::vector<float>& x, const std::vector<float>& y, True truth, Limit limit) {
    double worst = 0;
    std::size_t at = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double t = truth(static_cast<double>(x[i]));
      const double excess = std::abs(y[i] - t) / limit(x[i], t);
      if (!(excess <= worst)) worst = excess, at = i;
    }
    EXPECT_LE(worst, 1) << "times the allowed error, at " << x[at] << ": " << y[at] << " instead of "
                        << truth(static_cast<double>(x[at]));
  }
};
INSTANTIATE_TEST_SUITE_P(Machine, FunctionTest, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

TEST_P(FunctionTest, Exp2IsWithinTwoUlp) {
  const std::vector<float> x = joined(between(-126, 127.9, 1500), between(-1, 1, 1500));
  const std::vector<float> y = apply<Function::exp2>(x);
  expect_near(
      x, y, [](double v) { return std::exp2(v); }, [](double, double t) { return 2 * ulp(t); });
  keep_golden("exp2", y);
}

TEST_P(FunctionTest, Exp2OfLimits) {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> y =
      apply<Function::exp2>({-infinity, -400.f, 0.f, -0.f, 10.f, 400.f, infinity, NAN});
  const std::vector<float> expected = {0.f, 0.f, 1.f, 1.f, 1024.f, infinity, infinity};
  for (std::size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(y[i], expected[i]) << "number " << i;
  EXPECT_TRUE(std::isnan(y.back()));
}

// The accuracy of lg2.approx: absolute around 1, where the logarithm vanishes, else relative.
TEST_P(FunctionTest, Log2IsWithinTwoUlpOrClose) {
  const std::vector<float> x = joined(powers(-120, 120, 1500), between(0.5, 2, 1500));
  const std::vector<float> y = apply<Function::log2>(x);
  expect_near(
      x, y, [](double v) { return std::log2(v); },
      [](double, double t) { return std::max(std::exp2(-21.4), 2 * ulp(t)); });
  keep_golden("log2", y);
  EXPECT_EQ(apply<Function::log2>({1.f, 8.f, 0.f}),
            (std::vector<float>{0.f, 3.f, -std::numeric_limits<float>::infinity()}));
}

TEST_P(FunctionTest, TanhIsWithinOneMillionthRelative) {
  std::vector<float> x = joined(powers(-20, 4.5, 1500), between(0.05, 1, 1500));
  for (std::size_t i = 0; i < x.size(); i += 2) x[i] = -x[i];
  const std::vector<float> y = apply<Function::tanh>(x);
  expect_near(
      x, y, [](double v) { return std::tanh(v); }, [](double, double t) { return 1e-6 * std::abs(t); });
  keep_golden("tanh", y);
  EXPECT_EQ(apply<Function::tanh>({0.f, 200.f, -200.f}), (std::vector<float>{0.f, 1.f, -1.f}));
}

TEST_P(FunctionTest, ReciprocalIsWithinOneUlp) {
  std::vector<float> x = joined(powers(-125, 125, 1500), between(1, 2, 1500));
  for (std::size_t i = 0; i < x.size(); i += 2) x[i] = -x[i];
  const std::vector<float> y = apply<Function::reciprocal>(x);
  expect_near(
      x, y, [](double v) { return 1 / v; }, [](double, double t) { return ulp(t); });
  keep_golden("reciprocal", y);
}

/// fma and maxima of three arrays.
struct Combine {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const float *a, *b, *c;
  float *fused, *larger, *largest;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t t = hw::thread_index();
    fused[t] = hw::fma(a[t], b[t], c[t]);
    larger[t] = hw::max(a[t], b[t]);
    largest[t] = hw::max_of_bits(a[t], b[t], c[t]);
  }
};

TEST_P(ArithmeticVerbs, FmaRoundsOnceAndMaximaAreExact) {
  std::mt19937 random(11);
  std::vector<float> a(Combine::threads), b = a, c = a, fused = a, larger = a, largest = a;
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-20f;
    b[i] = static_cast<float>(static_cast<std::int32_t>(random())) * 0x1p-28f;
    c[i] = -a[i] * b[i];  // what is left is the product's rounding error
    if (i % 8 == 0) b[i] = -std::numeric_limits<float>::infinity();
    fused[i] = std::fma(a[i], b[i], c[i]);
    larger[i] = std::max(a[i], b[i]);
    // Of negative floats only, the one of the largest magnitude.
    const bool negative = std::signbit(a[i]) && std::signbit(b[i]) && std::signbit(c[i]);
    largest[i] = negative ? std::min({a[i], b[i], c[i]}) : std::max({a[i], b[i], c[i]});
  }
  const machine::Buffer da(a), db(b), dc(c), out(poisoned<float>(a.size()));
  const machine::Buffer max(poisoned<float>(a.size())), max_of_three(poisoned<float>(a.size()));
  run(Combine{da.data(), db.data(), dc.data(), out.data(), max.data(), max_of_three.data()});
  expect_equal(out.read(), fused, Combine::threads);
  expect_equal(max.read(), larger, Combine::threads);
  expect_equal(max_of_three.read(), largest, Combine::threads);
}

/// Packs the pair (x[i], x[count - 1 - i]).
template <hw::Operand operand>
struct Pack {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const float* x;
  std::uint32_t* words;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    words[i] = hw::pack<operand>(x[i], x[hw::grid_size() * threads - 1 - i]);
  }
};

/// Floats whose rounding to 16 bits is delicate: around ties of both formats, subnormals, the largest finite
/// numbers, infinities, NaNs; then random bit patterns.
inline std::vector<float> delicate_floats(std::size_t count) {
  std::vector<float> values;
  const auto around = [&](std::uint32_t bits) {
    for (std::uint32_t b : {bits - 1, bits, bits + 1}) {
      values.push_back(std::bit_cast<float>(b));
      values.push_back(std::bit_cast<float>(b | 0x80000000u));
    }
  };
  for (std::uint32_t exponent : {1u, 60u, 103u, 108u, 112u, 113u, 127u, 142u, 200u, 253u}) {
    for (std::uint32_t mantissa : {0u, 1u, 0x3ffu, 0x155u}) {
      around(exponent << 23 | mantissa << 13 | 0x1000);        // ties of fp16
      around(exponent << 23 | mantissa % 128 << 16 | 0x8000);  // ties of bf16
      around(exponent << 23 | mantissa << 13 | 0x2000);
    }
  }
  for (std::uint32_t subnormal : {1u, 0x8000u, 0x18000u, 0x7fffffu}) around(subnormal);
  for (float fp16 : {0x1p-24f, 0x1p-25f, 0x1.8p-24f, 0x1.8p-25f, 0x1p-14f, 65504.f, 65520.f, 65536.f}) {
    around(std::bit_cast<std::uint32_t>(fp16));
  }
  for (std::uint32_t limit : {0x7f7f7fffu, 0x7f7f8000u, 0x7f7ffffeu, 0x7f800000u}) around(limit);
  for (std::uint32_t bits : {0u, 0x80000000u, 0x7fc00000u, 0xffc00001u, 0x7fffffffu}) {
    values.push_back(std::bit_cast<float>(bits));
  }
  std::mt19937 random(17);
  while (values.size() < count) values.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  values.resize(count);
  return values;
}

class PackTest : public ArithmeticVerbs {
 protected:
  template <hw::Operand operand, typename Element>
  void check(const char* name) const {
    constexpr std::size_t count = 16 * Pack<operand>::threads;
    const std::vector<float> x = delicate_floats(count);
    const machine::Buffer in(x);
    const machine::Buffer out(poisoned<std::uint32_t>(count));
    run(Pack<operand>{in.data(), out.data()}, count / Pack<operand>::threads);
    const std::vector<std::uint32_t> words = out.read();
    for (std::size_t i = 0; i < count; ++i) {
      expect_rounded<Element>(x[i], static_cast<std::uint16_t>(words[i]));
      expect_rounded<Element>(x[count - 1 - i], static_cast<std::uint16_t>(words[i] >> 16));
    }
    keep_golden(name, words);
  }

  template <typename Element>
  static void expect_rounded(float x, std::uint16_t bits) {
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Element{bits}))) << std::hex << bits;
    } else {
      EXPECT_EQ(bits, Element::from(x).bits) << std::hexfloat << x;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Machine, PackTest, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

TEST_P(PackTest, RoundsToNearestEvenBf16) { check<hw::Operand::bf16, core::Bf16>("pack_bf16"); }
TEST_P(PackTest, RoundsToNearestEvenFp16) { check<hw::Operand::fp16, core::Fp16>("pack_fp16"); }

/// Packs x[i] and its three neighbours, and picks bytes of two words.
struct Bytes {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const float* x;
  std::uint32_t *packed, *even, *odd;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    packed[i] = hw::pack_e4m3(x[i], x[i + 1], x[i + 2], x[i + 3]);
    const std::uint32_t low = 0x04030201u * (1 + i % 16), high = ~low;
    even[i] = hw::select_bytes<0x6420>(low, high);
    odd[i] = hw::select_bytes<0x7531>(low, high);
  }
};

TEST_P(ArithmeticVerbs, FourFloatsRoundToNearestEvenE4m3AndBytesAreSelected) {
  constexpr std::size_t count = 32 * Bytes::threads;
  std::vector<float> x = delicate_floats(count + 3);
  for (std::size_t i = count / 2; i < count; ++i) {  // all ties of the format and their neighbours
    const std::uint32_t bits = 0x3a000000u + static_cast<std::uint32_t>(i - count / 2) % 1024 * 0x40000u;
    x[i] = std::bit_cast<float>((bits + static_cast<std::uint32_t>(i % 3) - 1) | (i % 2 ? 0x80000000u : 0u));
  }
  const machine::Buffer in(x);
  const machine::Buffer packed(poisoned<std::uint32_t>(count)), even(poisoned<std::uint32_t>(count)),
      odd(poisoned<std::uint32_t>(count));
  run(Bytes{in.data(), packed.data(), even.data(), odd.data()}, count / Bytes::threads);
  const std::vector<std::uint32_t> words = packed.read(), evens = even.read(), odds = odd.read();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t c = 0; c < 4; ++c) {
      ASSERT_EQ(words[i] >> 8 * c & 255u, core::E4m3::from(x[i + c]).bits) << std::hexfloat << x[i + c];
    }
    const std::uint32_t low = 0x04030201u * (1 + static_cast<std::uint32_t>(i) % 16), high = ~low;
    const auto byte = [](std::uint32_t word, int at) { return word >> 8 * at & 255u; };
    ASSERT_EQ(evens[i], byte(low, 0) | byte(low, 2) << 8 | byte(high, 0) << 16 | byte(high, 2) << 24);
    ASSERT_EQ(odds[i], byte(low, 1) | byte(low, 3) << 8 | byte(high, 1) << 16 | byte(high, 3) << 24);
  }
}

/// Words of four e4m3 numbers as fp16.
struct EightBitWords {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const std::uint32_t* words;
  std::uint32_t *low, *high;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    std::uint32_t pairs[2];
    hw::unpack_e4m3(pairs, words[i]);
    low[i] = pairs[0], high[i] = pairs[1];
  }
};

TEST_P(ArithmeticVerbs, E4m3BecomesFp16Exactly) {
  constexpr std::size_t count = 2 * EightBitWords::threads;  // every number in every byte
  std::vector<std::uint32_t> words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::uint32_t>(i) * 0x0b060301u;
  const machine::Buffer in(words);
  const machine::Buffer low(poisoned<std::uint32_t>(count)), high(poisoned<std::uint32_t>(count));
  run(EightBitWords{in.data(), low.data(), high.data()}, count / EightBitWords::threads);
  const std::vector<std::uint32_t> lows = low.read(), highs = high.read();
  for (std::size_t i = 0; i < count; ++i) {
    for (int byte = 0; byte < 4; ++byte) {
      const core::E4m3 element{static_cast<std::uint8_t>(words[i] >> 8 * byte)};
      const std::uint32_t pair = byte < 2 ? lows[i] : highs[i];
      const core::Fp16 half{static_cast<std::uint16_t>(byte % 2 == 0 ? pair : pair >> 16)};
      if (std::isnan(static_cast<float>(element))) {
        ASSERT_TRUE(std::isnan(static_cast<float>(half)));
      } else {
        ASSERT_EQ(half.bits, core::Fp16::from(static_cast<float>(element)).bits);
      }
    }
  }
}

/// Words of four int8 numbers as fp16, in two orders.
struct Int8Words {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const std::uint32_t* words;
  std::uint32_t *in_order, *mixed;  ///< two words for each

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    std::uint32_t pairs[2], others[2];
    hw::unpack_int8<0x3210>(pairs, words[i]);
    hw::unpack_int8<0x1302>(others, words[i]);
    in_order[2 * i] = pairs[0], in_order[2 * i + 1] = pairs[1];
    mixed[2 * i] = others[0], mixed[2 * i + 1] = others[1];
  }
};

TEST_P(ArithmeticVerbs, Int8BecomesFp16ExactlyInAnyOrder) {
  constexpr std::size_t count = 2 * Int8Words::threads;  // every number in every byte
  std::vector<std::uint32_t> words(count);
  for (std::size_t i = 0; i < count; ++i) words[i] = static_cast<std::uint32_t>(i) * 0x0b060301u;
  const machine::Buffer in(words);
  const machine::Buffer in_order(poisoned<std::uint32_t>(2 * count)),
      mixed(poisoned<std::uint32_t>(2 * count));
  run(Int8Words{in.data(), in_order.data(), mixed.data()}, count / Int8Words::threads);
  const std::vector<std::uint32_t> plain = in_order.read(), others = mixed.read();
  constexpr std::size_t order[] = {2, 0, 3, 1};
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t at = 0; at < 4; ++at) {
      const auto half = [&](const std::vector<std::uint32_t>& pairs) {
        return static_cast<std::uint16_t>(pairs[2 * i + at / 2] >> 16 * (at % 2));
      };
      const auto number = [&](std::size_t byte) {
        return core::Fp16::from(static_cast<std::int8_t>(words[i] >> 8 * byte)).bits;
      };
      ASSERT_EQ(half(plain), number(at));
      ASSERT_EQ(half(others), number(order[at]));
    }
  }
}

/// Four neighbours rounded to bytes and to integers with a sign, and the larger of two.
struct Codes {
  static constexpr int threads = 128;
  using Shared = NoShared;
  const float* x;
  std::uint32_t *bytes, *integers;
  float* larger;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    bytes[i] = hw::pack_bytes(x[i], x[i + 1], x[i + 2], x[i + 3]);
    integers[i] = hw::pack_int8(x[i], x[i + 1], x[i + 2], x[i + 3]);
    larger[i] = hw::max_or_nan(x[i], x[i + 1]);
  }
};

TEST_P(ArithmeticVerbs, FourFloatsRoundToBytesAndNoMaximumHidesNaN) {
  constexpr std::size_t count = 32 * Codes::threads;
  std::vector<float> x = delicate_floats(count + 3);
  for (std::size_t i = count / 2; i < count; ++i)  // all ties from -144 to 272, and their neighbours
    x[i] = std::nextafter(-144.f + static_cast<float>(i % 833) / 2, i % 3 == 0 ? -1e9f : 1e9f);
  for (std::size_t i = count / 4; i < count / 2; ++i) x[i] = -144.f + static_cast<float>(i % 833) / 2;
  const machine::Buffer in(x);
  const machine::Buffer bytes(poisoned<std::uint32_t>(count)), integers(poisoned<std::uint32_t>(count));
  const machine::Buffer larger(poisoned<float>(count));
  run(Codes{in.data(), bytes.data(), integers.data(), larger.data()}, count / Codes::threads);
  const std::vector<std::uint32_t> words = bytes.read(), with_signs = integers.read();
  const std::vector<float> maxima = larger.read();
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t c = 0; c < 4; ++c) {
      const float value = x[i + c];
      const float byte = std::isnan(value) ? 0.f : std::clamp(std::nearbyint(value), 0.f, 255.f);
      ASSERT_EQ(words[i] >> 8 * c & 255u, static_cast<std::uint32_t>(byte)) << std::hexfloat << value;
      const float integer = std::isnan(value) ? 0.f : std::clamp(std::nearbyint(value), -127.f, 127.f);
      ASSERT_EQ(static_cast<std::int8_t>(with_signs[i] >> 8 * c & 255u), integer) << std::hexfloat << value;
    }
    if (std::isnan(x[i]) || std::isnan(x[i + 1])) {
      ASSERT_TRUE(std::isnan(maxima[i]));
    } else {
      ASSERT_EQ(maxima[i], std::max(x[i], x[i + 1])) << std::hexfloat << x[i] << " " << x[i + 1];
    }
  }
}

/// Unpacks the word that holds the thread's number and its complement.
template <hw::Operand operand>
struct Unpack {
  static constexpr int threads = 128;
  using Shared = NoShared;
  float *low, *high;

  TANDEM_DEVICE void operator()() const {
    const std::uint32_t i = hw::block_index() * threads + hw::thread_index();
    const std::uint32_t word = i | (0xffffu - i) << 16;
    low[i] = hw::unpack_low<operand>(word);
    high[i] = hw::unpack_high<operand>(word);
  }
};

class UnpackTest : public ArithmeticVerbs {
 protected:
  /// All 65536 elements.
  template <hw::Operand operand, typename Element>
  void check() const {
    constexpr std::size_t count = 1 << 16;
    const machine::Buffer low(poisoned<float>(count)), high(poisoned<float>(count));
    run(Unpack<operand>{low.data(), high.data()}, count / Unpack<operand>::threads);
    const std::vector<float> lows = low.read(), highs = high.read();
    for (std::size_t i = 0; i < count; ++i) {
      const auto value = static_cast<float>(Element{static_cast<std::uint16_t>(i)});
      for (const float unpacked : {lows[i], highs[count - 1 - i]}) {
        if (std::isnan(value)) {
          ASSERT_TRUE(std::isnan(unpacked)) << i;
        } else {
          ASSERT_EQ(std::bit_cast<std::uint32_t>(unpacked), std::bit_cast<std::uint32_t>(value)) << i;
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Machine, UnpackTest, testing::ValuesIn(machine::modes()),
                         testing::PrintToStringParamName());

TEST_P(UnpackTest, IsExactForBf16) { check<hw::Operand::bf16, core::Bf16>(); }
TEST_P(UnpackTest, IsExactForFp16) { check<hw::Operand::fp16, core::Fp16>(); }

}  // namespace tandem::test
