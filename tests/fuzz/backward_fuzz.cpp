// Hostile calls of tandem_backward, compared with an oracle of their own (backward_oracle.h): what is valid
// gives its gradients and touches nothing else, what is not is refused and touches nothing.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/fuzz/backward_oracle.h"
#include "tests/fuzz/hostile.h"

namespace tandem::fuzz {
namespace {

struct Call {
  static constexpr std::size_t most_changes = 3;
  Arena arena = Arena(arena_bytes);
  tandem_mask mask{};
  tandem_backward_args args{};

  std::vector<tandem_tensor*> inputs() {
    return {&args.q, &args.k, &args.v, &args.o, &args.lse, &args.dout, &args.dlse};
  }
  std::vector<tandem_tensor*> outputs() { return {&args.dq, &args.dk, &args.dv}; }
  std::vector<tandem_tensor*> tensors() {
    std::vector<tandem_tensor*> all = inputs();
    for (tandem_tensor* t : outputs()) all.push_back(t);
    return all;
  }
};

void make_valid(Call& call, Draws& draws) {
  const std::int64_t b = draws.between(0, 2), kv_heads = draws.between(0, 2), group = draws.between(1, 2);
  const std::int64_t sq = draws.below(4) == 0 ? draws.between(0, 70) : draws.between(0, 5),
                     sk = draws.below(4) == 0 ? draws.between(0, 70) : draws.between(0, 6);
  const std::int64_t d = 8 * draws.between(1, sq + sk > 40 ? 1 : 3), heads = kv_heads * group;
  const tandem_dtype dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  tandem_backward_args& args = call.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  args.deterministic = static_cast<std::int32_t>(draws.below(2));
  std::size_t begin = 16 * draws.below(4);
  const auto queries = [&] { return place(call.arena, dtype, {b, sq, heads, d}, draws, begin); };
  const auto keys = [&] { return place(call.arena, dtype, {b, sk, kv_heads, d}, draws, begin); };
  const auto statistic = [&] { return place(call.arena, TANDEM_FP32, {b, sq, heads, 1}, draws, begin); };
  args.q = queries(), args.k = keys(), args.v = keys(), args.o = queries(), args.dout = queries();
  args.lse = statistic();
  if (draws.below(2) == 0) args.dlse = statistic();
  args.dq = queries(), args.dk = keys(), args.dv = keys();
  args.scale = draws.one_of({0.0f, 0.0f, 0.3f, 2.0f});
  args.softcap = draws.one_of({0.0f, 0.0f, 0.5f, 20.0f});
  call.mask = {sizeof(tandem_mask), TANDEM_MASK_WINDOW, draws.between(-1, 80), draws.between(-1, 5)};
  if (draws.below(2) == 0) call.mask = {sizeof(tandem_mask), TANDEM_MASK_CAUSAL, 0, 0};
  args.mask = draws.below(3) == 0 ? nullptr : &call.mask;
}

void change(Call& call, Draws& draws) {
  switch (change_one({call.tensors(), call.args.backend, call.arena}, 3, draws)) {
    case 0:
      return change_kind(call.mask, draws);
    case 1:
      return change_window(call.mask, draws);
    case 2:
      change_factor(call.args, draws);
      if (draws.below(4) == 0) call.args.deterministic = static_cast<std::int32_t>(draws.between(-1, 2));
  }
}

bool may_run(Call& call) {
  for (const tandem_tensor* t : call.tensors())
    if (!(t == &call.args.dlse && t->data == nullptr) && !lies_within(call.arena, *t)) return false;
  Wide products = 1;
  for (const std::int64_t n : call.args.q.shape) products *= n;
  return products * call.args.k.shape[1] < 2'000'000;
}

/// Where the forward's o and lse go, if memory lets them be so: p is a probability then.
void write_forward(Call& call) {
  const tandem_backward_args& args = call.args;
  tandem_forward_args forward{};
  forward.q = args.q, forward.k = args.k, forward.v = args.v;
  forward.mask = args.mask, forward.scale = args.scale, forward.softcap = args.softcap;
  for (std::int64_t b = 0; b < args.q.shape[0]; ++b)
    for (std::int64_t i = 0; i < args.q.shape[1]; ++i)
      for (std::int64_t h = 0; h < args.q.shape[2]; ++h) {
        const float lse = static_cast<float>(attend(forward, b, i, h).lse);
        std::memcpy(const_cast<std::byte*>(row_at(args.lse, b, i, h)), &lse, sizeof lse);
      }
}

void compare(const tandem_tensor& result, const Gradient& expected, const char* what) {
  const double rounding = tolerance_of(result.dtype);
  std::size_t e = 0;
  for (std::int64_t b = 0; b < result.shape[0]; ++b)
    for (std::int64_t s = 0; s < result.shape[1]; ++s)
      for (std::int64_t h = 0; h < result.shape[2]; ++h)
        for (std::int64_t column = 0; column < result.shape[3]; ++column, ++e) {
          const double right = expected.values[e], magnitude = expected.magnitudes[e];
          if (magnitude > 1e4) continue;  // beyond what fp16 holds, and bounds
          const double error = std::abs(value(result, row_at(result, b, s, h), column) - right);
          if (!(error <= rounding * std::abs(right) + 1e-5 * magnitude + 1e-7)) fail(what);
        }
}

void run(Call& call, std::size_t /*changes*/) {
  const Verdict verdict = judge(call.args);
  if (verdict == Verdict::unknown || (verdict == Verdict::valid && !may_run(call))) return;
  if (verdict == Verdict::valid) write_forward(call);
  const Arena before = call.arena;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_backward_workspace(&call.args, &bytes);
  if (verdict == Verdict::valid && asked != TANDEM_OK) fail("the workspace of a valid call is refused");
  const Lent workspace(bytes);
  const tandem_status status = tandem_backward(&call.args, workspace.data(), bytes, nullptr);
  if (verdict == Verdict::valid) {
    if (status != TANDEM_OK) fail("a valid call is refused");
    const Gradients expected = differentiate(call.args);  // inputs are apart from outputs
    if (expected.comparable) {
      compare(call.args.dq, expected.dq, "dq is wrong");
      compare(call.args.dk, expected.dk, "dk is wrong");
      compare(call.args.dv, expected.dv, "dv is wrong");
    }
    for (const tandem_tensor* output : call.outputs()) restore(call.arena, before, *output);
  } else if (status == TANDEM_OK) {
    fail("an invalid call is accepted");
  }
  if (call.arena != before) fail("memory was written that is no output's");
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
