// What the fuzzers of calls share: what spoils a call, how results are compared, and one input.
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

#include "tests/fuzz/arena.h"
#include "tests/fuzz/features.h"
#include "tests/fuzz/oracle_attention.h"

namespace tandem::fuzz {

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

/// One dimension of all tensors that agree in it, often as one row over and over: the only thing that may be
/// wrong with the call is its size.
inline void change_together(const std::vector<tandem_tensor*>& tensors, Draws& draws) {
  const std::size_t dimension = draws.below(3);
  const std::int64_t old = tensors[draws.below(tensors.size())]->shape[dimension], size = odd_number(draws);
  const bool is_one_row = draws.below(2) == 0;
  for (tandem_tensor* const t : tensors)
    if (t->shape[dimension] == old) {
      t->shape[dimension] = size;
      if (is_one_row) t->stride[dimension] = 0;
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
  constexpr std::size_t others = std::size(parts), common = others + 4;
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
  } else if (what == others + 2) {
    change_together(call.tensors, draws);
  } else {
    store(call.backend, draws.one_of({-1, 0, 1, 3, 4, 17}));
  }
  return is_changed;
}

/// What kind of mask it is, or one of its numbers.
inline void change_mask(tandem_mask& mask, Draws& draws) {
  std::int64_t* const numbers[] = {&mask.window_left, &mask.window_right, &mask.chunk};
  if (draws.below(3) == 0) return store(mask.kind, static_cast<int>(draws.between(-1, 4)));
  *draws.one_of(numbers) = odd_number(draws);
}
template <typename Args>
void change_factor(Args& args, Draws& draws) {
  static constexpr float factors[] = {-1, 1e-45f, 1e-30f, 1e38f, 2e38f, 3e38f, HUGE_VALF, NAN, 1};
  (draws.below(2) == 0 ? args.scale : args.softcap) = draws.one_of(factors);
}
/// Makes elements of fp32 and bf16 so much smaller that beside such a factor scores fit.
inline void shrink(const tandem_tensor& t, const Arena& arena, int exponent) {
  const int dtype = number(t.dtype);
  if ((dtype != TANDEM_FP32 && dtype != TANDEM_BF16) || !lies_within(arena, t)) return;
  const double rows =
      static_cast<double>(t.shape[0]) * static_cast<double>(t.shape[1]) * static_cast<double>(t.shape[2]);
  if (rows > static_cast<double>(arena.size())) return;  // they lie on one another, as many as one likes
  for_each_row(t, [&](std::int64_t, std::int64_t, std::int64_t, std::byte* row) {
    for (std::int64_t e = 0; e < t.shape[3]; ++e) {
      const std::size_t bytes = size_of(dtype), upper = sizeof(float) - bytes;
      std::byte* const at = row + e * static_cast<std::int64_t>(bytes);
      float value = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&value) + upper, at, bytes);
      value = std::ldexp(value, -exponent);
      std::memcpy(at, reinterpret_cast<const std::byte*>(&value) + upper, bytes);
    }
  });
}
/// Of a struct: to one that no header has or will have had, or where `older`, to one that some had.
inline void change_size(std::size_t& struct_size, Draws& draws, bool older) {
  const std::size_t own = struct_size, sizes[] = {0, own + 1, own + 8, SIZE_MAX, own - 1, own - 8};
  struct_size = sizes[draws.below(older ? 6 : 4)];
}

/// Numbers that no length, page or index is.
constexpr std::int32_t wild[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};

/// Often `usual`, sometimes a number that nothing has.
inline std::int32_t mostly(Draws& draws, std::int64_t usual) {
  return draws.below(8) == 0 ? draws.one_of(wild) : static_cast<std::int32_t>(usual);
}

/// A workspace of as many bytes as a call asks for, of which sanitizers watch the ends; of none: NULL. A call
/// may ask for any number: nothing is lent where it is more than calls need that end soon.
class Lent {
 public:
  static constexpr std::size_t most = std::size_t{1} << 30;

  explicit Lent(std::size_t asked)
      : bytes_(asked <= most ? asked : 0),
        is_enough_(asked <= most),
        data_(bytes_ == 0 ? nullptr : ::operator new (bytes_, std::align_val_t{256})) {}
  ~Lent() {
    if (data_ != nullptr) ::operator delete (data_, std::align_val_t{256});
  }
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool is_enough() const { return is_enough_; }

 private:
  std::size_t bytes_;
  bool is_enough_;
  void* data_;
};

/// Of results that are rounded to a dtype.
inline double tolerance_of(tandem_dtype dtype) {
  return dtype == TANDEM_BF16 ? 0x1p-7 : dtype == TANDEM_FP16 ? 0x1p-10 : 1e-5;
}

[[noreturn]] inline void fail(const char* what) {
  std::fprintf(stderr, "fuzz: %s; the library says: %s\n", what, tandem_last_error());
  std::abort();
}

/// The same of a call whose tensors are to be printed.
template <typename Call>
[[noreturn]] void fail(Call& call, const char* what) {
  for (const tandem_tensor* t : call.tensors()) {
    std::fprintf(stderr, "  %p dtype %d", t->data, number(t->dtype));
    for (int i = 0; i < 4; ++i)
      std::fprintf(stderr, " %lld:%lld", static_cast<long long>(t->shape[i]),
                   static_cast<long long>(t->stride[i]));
    std::fprintf(stderr, "\n");
  }
  fail(what);
}

/// `more`: beside the error that follows from the tolerance.
inline bool near(double value, double expected, double tolerance, double more = 0) {
  if (std::isnan(expected)) return std::isnan(value);
  if (std::isinf(expected)) return value == expected || std::isnan(value);  // a weight may round to 0
  return std::abs(value - expected) <= tolerance * std::max(1.0, std::abs(expected)) + more;
}

constexpr double largest_fp16 = 65504;

/// Of results that are rounded to a dtype: what fp16 does not hold is infinite there.
inline bool near_rounded(tandem_dtype dtype, double value, double expected, double more = 0) {
  const double tolerance = tolerance_of(dtype), reach = std::abs(expected) * (1 + tolerance) + more;
  if (dtype == TANDEM_FP16 && std::isinf(value) && reach > largest_fp16) return (value > 0) == (expected > 0);
  return near(value, expected, tolerance, more);
}

/// Of a score in fp32, beside the sum of its terms' magnitudes.
constexpr double error_of_scores = 0x1p-21;

/// Beyond it fp32 may be infinite where float64 is not.
constexpr double largest_sum = 1e30;

/// A call's results, row by row. Scores have a relative error.
struct Compared {
  const tandem_tensor &o, &lse;
  double score_error = error_of_scores;

  void row(std::int64_t b, std::int64_t i, std::int64_t h, const Result& expected) const {
    if (expected.score_reach > largest_sum || expected.value_reach > largest_sum) return;
    const double error = score_error * expected.score_reach;
    for (std::size_t e = 0; e < expected.o.size(); ++e)
      number({o, b, i, h, static_cast<std::int64_t>(e)}, expected.o[e], 2 * error * expected.value_reach,
             "o");
    if (lse.data != nullptr) number({lse, b, i, h, 0}, expected.lse, error, "lse");
  }

 private:
  struct Place {
    const tandem_tensor& tensor;
    std::int64_t b, i, h, e;
  };
  static void number(const Place& at, double expected, double more, const char* name) {
    const double result = value(at.tensor, row_at(at.tensor, at.b, at.i, at.h), at.e);
    if (near_rounded(at.tensor.dtype, result, expected, more)) return;
    std::fprintf(stderr, "fuzz: %s[%lld, %lld, %lld, %lld] is %.9g, not %.9g\n", name,
                 static_cast<long long>(at.b), static_cast<long long>(at.i), static_cast<long long>(at.h),
                 static_cast<long long>(at.e), result, expected);
    fail("a result is wrong");
  }
};

/// What the oracle says of a call, and what came of it.
struct Outcome {
  Verdict verdict;
  tandem_status status;
  const Arena& before;
  bool had_room = true;  ///< all the workspace that it asked for
};

/// Whether it is what had to come of it. `compare` does so with results; what is no output stays as it was.
template <typename Call, typename Compare>
void settle(Call& call, const Outcome& outcome, const Compare& compare) {
  const auto& [verdict, status, before, had_room] = outcome;
  const bool ran = status == TANDEM_OK;
  if (verdict == Verdict::valid && status != (had_room ? TANDEM_OK : TANDEM_WORKSPACE_TOO_SMALL))
    fail(call, ran ? "a call runs without its workspace" : "a valid call is refused");
  if (verdict == Verdict::invalid && ran) fail(call, "an invalid call is accepted");
  if (verdict == Verdict::valid && ran) compare(call);
  for (const tandem_tensor& output : call.outputs())
    if (ran && output.data != nullptr) restore(call.arena, before, output);
  if (call.arena != before) fail(call, "memory was written that is no output's");
}

/// One input: a valid call, in half of all up to Call::most_changes changes, and what comes of it.
/// `make_valid`, `change` and `run`, which is told how many changes there were, are the fuzzer's.
template <typename Call>
int try_input(const std::uint8_t* data, std::size_t size) {
  Draws draws(data, size);
  Call call;
  fill(call.arena, draws);
  make_valid(call, draws);
  const std::size_t changes = draws.below(2) == 0 ? 0 : 1 + draws.below(Call::most_changes);
  for (std::size_t i = 0; i < changes; ++i) change(call, draws);
  run(call, changes);
  return 0;
}

}  // namespace tandem::fuzz
