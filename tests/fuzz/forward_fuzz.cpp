// Hostile calls of tandem_forward, compared with an oracle of their own (forward_oracle.h): what is valid
// gives its result and touches nothing else, what is not is refused and touches nothing.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <vector>

#include <tandem/tandem.h>

#include "tests/fuzz/forward_oracle.h"
#include "tests/fuzz/hostile.h"

namespace tandem::fuzz {
namespace {

/// A call whose tensors lie in one arena.
struct Call {
  static constexpr std::size_t most_changes = 3;
  Arena arena = Arena(arena_bytes);
  tandem_mask mask{};
  tandem_forward_args args{};
};

/// A valid call, mostly: the arena may be too small for all of it.
void make_valid(Call& call, Draws& draws) {
  const std::int64_t b = draws.between(0, 2), kv_heads = draws.between(0, 2), group = draws.between(1, 3);
  const std::int64_t sq = draws.between(0, 4), d = 8 * draws.between(1, 3);
  const std::int64_t sk = draws.below(4) == 0 ? draws.between(0, 140) : draws.between(0, 6);
  const tandem_dtype dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  tandem_forward_args& args = call.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  std::size_t begin = 16 * draws.below(4);
  args.q = place(call.arena, dtype, {b, sq, kv_heads * group, d}, draws, begin);
  args.k = place(call.arena, dtype, {b, sk, kv_heads, d}, draws, begin);
  args.v = place(call.arena, dtype, {b, sk, kv_heads, d}, draws, begin);
  args.o = place(call.arena, dtype, {b, sq, kv_heads * group, d}, draws, begin);
  if (draws.below(3) != 0)
    args.lse = place(call.arena, TANDEM_FP32, {b, sq, kv_heads * group, 1}, draws, begin);
  args.scale = draws.one_of({0.0f, 0.0f, 0.3f, 2.0f});
  args.softcap = draws.one_of({0.0f, 0.0f, 0.5f, 20.0f});
  call.mask = {sizeof(tandem_mask), TANDEM_MASK_WINDOW, draws.between(-1, 150), draws.between(-1, 5)};
  const tandem_mask masks[] = {call.mask, {sizeof(tandem_mask), TANDEM_MASK_CAUSAL, 0, 0}};
  call.mask = masks[draws.below(2)];
  args.mask = draws.below(3) == 0 ? nullptr : &call.mask;
}

void change(Call& call, Draws& draws) {
  tandem_forward_args& args = call.args;
  switch (change_one({{&args.q, &args.k, &args.v, &args.o, &args.lse}, args.backend, call.arena}, 4, draws)) {
    case 0:
      return change_kind(call.mask, draws);
    case 1:
      return change_window(call.mask, draws);
    case 2:
      return change_factor(args, draws);
    case 3:  // keys that are all one row, as many as one likes
      args.k.shape[1] = args.v.shape[1] = odd_number(draws);
      args.k.stride[1] = args.v.stride[1] = 0;
  }
}

/// Whether the call stays in its arena and ends soon.
bool may_run(const Call& call) {
  const tandem_forward_args& args = call.args;
  for (const tandem_tensor* t : {&args.q, &args.k, &args.v, &args.o})
    if (!lies_within(call.arena, *t)) return false;
  if (args.lse.data != nullptr && !lies_within(call.arena, args.lse)) return false;
  if (args.backend == TANDEM_BACKEND_REFERENCE && args.k.shape[1] > 100'000)
    return false;  // room for its scores
  Wide pairs = 0;
  for (std::int64_t i = 0; i < std::min<std::int64_t>(args.q.shape[1], 1000); ++i)
    pairs += Wide{keys_of(args, i).end} - keys_of(args, i).begin;
  return pairs * args.q.shape[0] * args.q.shape[2] * args.q.shape[3] < 2'000'000;
}

[[noreturn]] void fail(const Call& call, const char* what) {
  std::fprintf(stderr, "fuzz: %s; the library says: %s\n", what, tandem_last_error());
  const tandem_forward_args& args = call.args;
  for (const tandem_tensor* t : {&args.q, &args.k, &args.v, &args.o, &args.lse})
    std::fprintf(stderr, "  %p %lld:%lld %lld:%lld %lld:%lld %lld:%lld\n", t->data,
                 static_cast<long long>(t->shape[0]), static_cast<long long>(t->stride[0]),
                 static_cast<long long>(t->shape[1]), static_cast<long long>(t->stride[1]),
                 static_cast<long long>(t->shape[2]), static_cast<long long>(t->stride[2]),
                 static_cast<long long>(t->shape[3]), static_cast<long long>(t->stride[3]));
  std::abort();
}

/// Whether the scores are of a size that fp32 sums get right.
bool is_comparable(const tandem_forward_args& args) { return args.scale <= 4; }

/// Compares every output with the oracle's on the inputs as they were, and puts the bytes that were there
/// back.
void compare_outputs(Call& call, const Call& before, tandem_forward_args inputs) {
  const tandem_forward_args& args = call.args;
  const auto in_before = [&](const void* address) {
    return const_cast<std::byte*>(before.arena.data()) +
           (static_cast<const std::byte*>(address) - call.arena.data());
  };
  for (tandem_tensor* t : {&inputs.q, &inputs.k, &inputs.v})
    if (t->data != nullptr) t->data = in_before(t->data);
  const double tolerance = tolerance_of(args.o.dtype);
  const std::int64_t* shape = args.o.shape;
  const auto address = [](const tandem_tensor& t, std::int64_t b, std::int64_t i, std::int64_t h) {
    const auto step = [&t](int n, std::int64_t index) { return t.shape[n] == 1 ? 0 : index * t.stride[n]; };
    return static_cast<std::byte*>(t.data) +
           (step(0, b) + step(1, i) + step(2, h)) * static_cast<std::int64_t>(size_of(t.dtype));
  };
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t i = 0; i < shape[1]; ++i)
      for (std::int64_t h = 0; h < shape[2]; ++h) {
        const Result expected = attend(inputs, b, i, h);
        std::byte* row = address(args.o, b, i, h);
        const std::size_t size = size_of(args.o.dtype);
        for (std::size_t e = 0; e < expected.o.size() && is_comparable(args); ++e)
          if (!near(element(args.o.dtype, row + e * size), expected.o[e], tolerance))
            fail(call, "o is wrong");
        std::memcpy(row, in_before(row), expected.o.size() * size);
        if (args.lse.data == nullptr) continue;
        std::byte* lse = address(args.lse, b, i, h);
        if (is_comparable(args) && !near(element(TANDEM_FP32, lse), expected.lse, 1e-5))
          fail(call, "lse is wrong");
        std::memcpy(lse, in_before(lse), sizeof(float));
      }
}

void run(Call& call, std::size_t /*changes*/) {
  const Verdict verdict = judge(call.args);
  if (verdict == Verdict::unknown || (verdict == Verdict::valid && !may_run(call))) return;
  const Call before = call;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_forward_workspace(&call.args, &bytes);
  if (verdict == Verdict::valid && asked != TANDEM_OK) fail(call, "the workspace of a valid call is refused");
  const Lent workspace(bytes);
  const tandem_status status = tandem_forward(&call.args, workspace.data(), bytes, nullptr);
  if (verdict == Verdict::valid) {
    if (status != TANDEM_OK) fail(call, "a valid call is refused");
    compare_outputs(call, before, call.args);
  } else if (status == TANDEM_OK) {
    fail(call, "an invalid call is accepted");
  }
  if (call.arena != before.arena) fail(call, "memory was written that is no output's");
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
