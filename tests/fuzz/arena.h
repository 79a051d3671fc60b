// What the fuzzers of calls draw with: decisions from bytes, and an arena of numbers that tensors lie in.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/fuzz/oracle_memory.h"

namespace tandem::fuzz {

constexpr std::size_t arena_bytes = 1 << 16;

/// The fuzzer's bytes as decisions; zeros when they are used up.
class Draws {
 public:
  Draws(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::size_t below(std::size_t bound) {
    std::size_t value = take();
    if (bound > 256) value = value << 8 | take();
    return value % bound;
  }
  /// From low to high, or low where that is more.
  std::int64_t between(std::int64_t low, std::int64_t high) {
    const std::size_t others =
        high > low ? static_cast<std::size_t>(high) - static_cast<std::size_t>(low) : 0;
    return low + static_cast<std::int64_t>(below(others == SIZE_MAX ? others : others + 1));
  }
  template <typename T, std::size_t n>
  T one_of(const T (&values)[n]) {
    return values[below(n)];
  }

 private:
  std::uint8_t take() { return size_ == 0 ? 0 : (--size_, *data_++); }

  const std::uint8_t* data_;
  std::size_t size_;
};

/// Numbers that follow from one draw.
class Noise {
 public:
  explicit Noise(Draws& draws) : state_(static_cast<std::uint32_t>(draws.below(65536)) + 1) {}
  std::uint32_t below(std::uint32_t bound) { return next() % bound; }
  std::uint32_t next() {
    state_ = state_ * 1664525 + 1013904223;
    return state_ >> 16;
  }
  /// A power of two from 0.25 to 4.
  float power() { return std::ldexp(1.f, static_cast<int>(below(5)) - 2); }

 private:
  std::uint32_t state_;
};

/// All that a call may touch; sanitizers watch its ends.
using Arena = std::vector<std::byte>;

/// Numbers of moderate size in every dtype of 16 bits and more.
inline void fill(Arena& arena, Draws& draws) {
  Noise noise(draws);
  for (std::size_t i = 0; i < arena_bytes; i += 2) {
    const auto word = static_cast<std::uint16_t>(0x3c00 | (noise.next() & 0x83ff));
    std::memcpy(&arena[i], &word, 2);
  }
}

inline bool lies_within(const Arena& arena, const tandem_tensor& tensor) {
  const auto rows = rows_of(tensor, 100'000);
  const Wide begin = reinterpret_cast<std::uintptr_t>(arena.data());
  return rows && std::all_of(rows->begin(), rows->end(), [&](const Row& row) {
           return row.begin >= begin && row.end <= begin + static_cast<Wide>(arena.size());
         });
}

/// Visits the rows of a tensor as (b, s, h, row). Where there is no element there is none, however many their
/// shape says.
template <typename Visit>
void for_each_row(const tandem_tensor& tensor, const Visit& visit) {
  if (!has_elements(tensor)) return;
  for (std::int64_t b = 0; b < tensor.shape[0]; ++b)
    for (std::int64_t s = 0; s < tensor.shape[1]; ++s)
      for (std::int64_t h = 0; h < tensor.shape[2]; ++h) visit(b, s, h, row_at(tensor, b, s, h));
}

/// A number of 0.25 to 2 of either sign, a whole one of -3 to 3; `anything`: any bits.
inline void store_number(std::byte* at, tandem_dtype dtype, Noise& noise, bool anything) {
  const std::uint32_t sign = noise.below(2), high = noise.next(), low = noise.next();
  std::uint32_t bits = high << 16 | low;
  if (anything) {
  } else if (dtype == TANDEM_FP32) {
    bits = sign << 31 | (0x3e800000u + bits % 0x1800000u);
  } else if (dtype == TANDEM_BF16) {
    bits = sign << 15 | (0x3e80u + low % 0x180u);
  } else if (dtype == TANDEM_FP16) {
    bits = sign << 15 | (0x3400u + low % 0xc00u);
  } else if (dtype == TANDEM_INT8) {
    bits = low % 7 - 3;
  } else {
    bits = sign << 7 | (0x28u + low % 0x18u);
  }
  std::memcpy(at, &bits, size_of(dtype));
}

/// Places a call's tensors behind one another: dense in some order of dimensions, with gaps. Of those that
/// have numbers some elements may be anything, infinite or NaN too.
class Placer {
 public:
  Placer(Arena& arena, Draws& draws)
      : arena_(arena),
        draws_(draws),
        noise_(draws),
        begin_(16 * draws.below(4)),
        wild_(draws.below(8) == 0) {}

  tandem_tensor output(tandem_dtype dtype, const std::int64_t (&shape)[4]) {
    tandem_tensor t{};
    t.dtype = dtype;
    std::copy_n(shape, 4, t.shape);
    static constexpr int orders[][3] = {{2, 1, 0}, {1, 2, 0}, {0, 1, 2}};
    std::int64_t pitch = shape[3] + draws_.one_of<std::int64_t>({0, 0, 1, 8});
    for (const int i : orders[draws_.below(3)]) {
      t.stride[i] = pitch;
      pitch *= std::max<std::int64_t>(shape[i], 1);
    }
    t.stride[3] = 1;
    t.data = &arena_[std::min(begin_, arena_bytes - 16)];
    begin_ = (begin_ + static_cast<std::size_t>(pitch) * size_of(dtype) + 15) / 16 * 16;
    return t;
  }
  tandem_tensor input(tandem_dtype dtype, const std::int64_t (&shape)[4]) {
    const tandem_tensor t = output(dtype, shape);
    fill_numbers(t);
    return t;
  }
  /// 0.25 to 4, many of them no powers of two.
  tandem_tensor scales(const std::int64_t (&shape)[4]) {
    const tandem_tensor t = output(TANDEM_FP32, shape);
    fill_scales(t);
    return t;
  }
  void fill_numbers(const tandem_tensor& t) {
    if (!lies_within(arena_, t)) return;
    for_each_row(t, [&](std::int64_t, std::int64_t, std::int64_t, std::byte* row) {
      for (std::int64_t e = 0; e < t.shape[3]; ++e)
        store_number(row + e * static_cast<std::int64_t>(size_of(t.dtype)), t.dtype, noise_,
                     wild_ && noise_.below(256) == 0);
    });
  }
  void fill_scales(const tandem_tensor& t) {
    if (!lies_within(arena_, t)) return;
    for_each_row(t, [&](std::int64_t, std::int64_t, std::int64_t, std::byte* row) {
      const float scale = noise_.power() * (noise_.below(2) == 0 ? 1.f : 0.7f);
      std::memcpy(row, &scale, sizeof scale);
    });
  }
  Noise& noise() { return noise_; }
  bool fits(const tandem_tensor& t) const { return lies_within(arena_, t); }

 private:
  Arena& arena_;
  Draws& draws_;
  Noise noise_;
  std::size_t begin_;
  bool wild_;
};

/// Puts back what stood at some bytes before.
inline void put_back(Arena& arena, const Arena& before, const std::byte* at, std::size_t bytes) {
  const auto begin = at - arena.data();
  std::copy_n(before.begin() + begin, bytes, arena.begin() + begin);
}

/// Puts back what stood at the tensor's elements before.
inline void restore(Arena& arena, const Arena& before, const tandem_tensor& tensor) {
  const std::vector<Row> rows = rows_of(tensor, 100'000).value_or(std::vector<Row>());
  for (const Row& row : rows) {
    const Wide begin = row.begin - Wide{reinterpret_cast<std::uintptr_t>(arena.data())};
    put_back(arena, before, arena.data() + static_cast<std::ptrdiff_t>(begin),
             static_cast<std::size_t>(row.end - row.begin));
  }
}

}  // namespace tandem::fuzz
