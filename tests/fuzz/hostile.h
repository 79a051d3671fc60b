// What the fuzzers of calls share: decisions from bytes, an arena of numbers, tensors in it, what spoils
// them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <vector>

#include "tests/fuzz/forward_oracle.h"

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
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(below(static_cast<std::size_t>(high - low + 1)));
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

/// All that a call may touch; sanitizers watch its ends.
using Arena = std::vector<std::byte>;

/// Numbers of moderate size in every dtype, some NaN and infinite.
inline void fill(Arena& arena, Draws& draws) {
  std::uint32_t state = static_cast<std::uint32_t>(draws.below(65536)) + 1;
  for (std::size_t i = 0; i < arena_bytes; i += 2) {
    state = state * 1664525 + 1013904223;
    const auto word = static_cast<std::uint16_t>(0x3c00 | (state >> 16 & 0x83ff));
    std::memcpy(&arena[i], &word, 2);
  }
  for (std::size_t specials = draws.below(8) == 0 ? 3 : 0; specials > 0; --specials) {
    const std::uint16_t word = draws.one_of<std::uint16_t>({0x7fff, 0xffff, 0x7c00, 0x7f80});
    std::memcpy(&arena[2 * draws.below(arena_bytes / 2)], &word, 2);
  }
}

/// Dense in some order of dimensions, with gaps, from `begin` on; moves `begin` behind it.
inline tandem_tensor place(Arena& arena, tandem_dtype dtype, const std::int64_t (&shape)[4], Draws& draws,
                           std::size_t& begin) {
  tandem_tensor t{};
  t.dtype = dtype;
  std::copy_n(shape, 4, t.shape);
  static constexpr int orders[][3] = {{2, 1, 0}, {1, 2, 0}, {0, 1, 2}};
  std::int64_t pitch = shape[3] + draws.one_of<std::int64_t>({0, 0, 1, 8});
  for (const int i : orders[draws.below(3)]) {
    t.stride[i] = pitch;
    pitch *= std::max<std::int64_t>(shape[i], 1);
  }
  t.stride[3] = 1;
  t.data = &arena[std::min(begin, arena_bytes - 16)];
  begin = (begin + static_cast<std::size_t>(pitch) * size_of(dtype) + 15) / 16 * 16;
  return t;
}

inline std::int64_t odd_number(Draws& draws) {
  static constexpr std::int64_t numbers[] = {
      0,         -1,        -2,        1,         2,         3,           7,         8,
      12,        16,        24,        -8,        -24,       264,         INT64_MAX, INT64_MIN,
      1LL << 31, 1LL << 32, 1LL << 40, 1LL << 58, 1LL << 62, -(1LL << 62)};
  return draws.one_of(numbers);
}

/// A number that no enumerator need have.
template <typename Enum>
void store(Enum& field, int number) {
  std::memcpy(&field, &number, sizeof number);
}

/// What can be changed of a tensor.
enum class Part { shape, stride, data, dtype };

/// To anything, valid or not.
inline void change(tandem_tensor& tensor, Part part, Arena& arena, Draws& draws) {
  switch (part) {
    case Part::shape:
      tensor.shape[draws.below(4)] = odd_number(draws);
      break;
    case Part::stride:
      tensor.stride[draws.below(4)] = odd_number(draws);
      break;
    case Part::data:
      tensor.data = draws.below(2) == 0 ? nullptr : &arena[draws.below(arena_bytes)];
      break;
    case Part::dtype:
      store(tensor.dtype, static_cast<int>(draws.between(-1, 5)));
  }
}

/// What every call has.
struct CommonArguments {
  std::vector<tandem_tensor*> tensors;
  tandem_backend& backend;
  Arena& arena;
};

/// Where something else is to be changed, the caller's own.
constexpr std::size_t is_changed = SIZE_MAX;

/// Spoils one thing, or changes it to another that is right; or returns which of `own` other things the
/// caller has to change.
inline std::size_t change_one(const CommonArguments& call, std::size_t own, Draws& draws) {
  static constexpr Part parts[] = {Part::shape, Part::shape, Part::stride, Part::stride, Part::data};
  constexpr std::size_t others = std::size(parts), common = others + 3;
  tandem_tensor& tensor = *call.tensors[draws.below(call.tensors.size())];
  const std::size_t what = draws.below(common + own);
  if (what >= common) return what - common;
  if (what < others) {
    change(tensor, parts[what], call.arena, draws);
  } else if (what == others) {
    if (void* const other = call.tensors[draws.below(call.tensors.size())]->data)
      tensor.data = static_cast<std::byte*>(other) + 2 * draws.below(32);
  } else if (what == others + 1) {
    change(tensor, Part::dtype, call.arena, draws);
  } else {
    store(call.backend, draws.one_of({-1, 0, 1, 3, 4, 17}));
  }
  return is_changed;
}

inline void change_kind(tandem_mask& mask, Draws& draws) {
  store(mask.kind, static_cast<int>(draws.between(-1, 4)));
}
inline void change_window(tandem_mask& mask, Draws& draws) {
  (draws.below(2) == 0 ? mask.window_left : mask.window_right) = odd_number(draws);
}
template <typename Args>
void change_factor(Args& args, Draws& draws) {
  static constexpr float factors[] = {-1, 1e-45f, 1e-30f, 1e38f, 3e38f, HUGE_VALF, NAN, 1};
  (draws.below(2) == 0 ? args.scale : args.softcap) = draws.one_of(factors);
}

/// Numbers that no length, page or index is.
constexpr std::int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};

/// A workspace of so many bytes, of which sanitizers watch the ends; 0: NULL.
class Lent {
 public:
  explicit Lent(std::size_t bytes)
      : data_(bytes == 0 ? nullptr : ::operator new (bytes, std::align_val_t{256})) {}
  ~Lent() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{256});
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  void* data() const { return data_; }

 private:
  void* data_;
};

inline bool lies_within(const Arena& arena, const tandem_tensor& tensor) {
  const auto rows = rows_of(tensor, 100'000);
  const Wide begin = reinterpret_cast<std::uintptr_t>(arena.data());
  return rows && std::all_of(rows->begin(), rows->end(), [&](const Row& row) {
           return row.begin >= begin && row.end <= begin + static_cast<Wide>(arena.size());
         });
}

/// Puts back what stood at the tensor's elements before.
inline void restore(Arena& arena, const Arena& before, const tandem_tensor& tensor) {
  const std::vector<Row> rows = rows_of(tensor, 100'000).value_or(std::vector<Row>());
  for (const Row& row : rows) {
    const auto begin =
        static_cast<std::ptrdiff_t>(row.begin - Wide{reinterpret_cast<std::uintptr_t>(arena.data())});
    std::copy_n(before.begin() + begin, static_cast<std::size_t>(row.end - row.begin), arena.begin() + begin);
  }
}

/// Of results that are rounded to a dtype.
inline double tolerance_of(tandem_dtype dtype) {
  return dtype == TANDEM_BF16 ? 0x1p-7 : dtype == TANDEM_FP16 ? 0x1p-10 : 1e-5;
}

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s; the library says: %s\n", what, tandem_last_error());
  std::abort();
}

inline bool near(double value, double expected, double tolerance) {
  if (std::isnan(expected)) return std::isnan(value);
  if (std::isinf(expected)) return value == expected || std::isnan(value);  // a weight may round to 0
  return std::abs(value - expected) <= tolerance * std::max(1.0, std::abs(expected));
}

/// One input: a valid call, up to Call::most_changes changes, and what comes of it. `make_valid`, `change`
/// and `run`, which is told how many changes there were, are the fuzzer's.
template <typename Call>
int try_input(const std::uint8_t* data, std::size_t size) {
  Draws draws(data, size);
  Call call;
  fill(call.arena, draws);
  make_valid(call, draws);
  const std::size_t changes = draws.below(Call::most_changes + 1);
  for (std::size_t i = 0; i < changes; ++i) change(call, draws);
  run(call, changes);
  return 0;
}

}  // namespace tandem::fuzz
