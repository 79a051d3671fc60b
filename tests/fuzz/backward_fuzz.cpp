// Hostile calls of tandem_backward, compared with an oracle of their own (oracle_backward.h): what is valid
// gives its gradients and touches nothing else, what is not is refused and touches nothing.
#include <algorithm>
#include <cstring>

#include "tests/fuzz/backward_results.h"
#include "tests/fuzz/hostile.h"
#include "tests/fuzz/options.h"
#include "tests/fuzz/oracle_backward.h"

namespace tandem::fuzz {
namespace {

struct Call {
  static constexpr std::size_t most_changes = 3;
  Arena arena = Arena(arena_bytes);
  std::vector<float> sinks;
  bool poisoned = false;
  tandem_mask mask{};
  tandem_backward_args args{};

  std::vector<tandem_tensor*> tensors() {
    return {&args.q,    &args.k,    &args.v,  &args.o,  &args.lse,
            &args.dout, &args.dlse, &args.dq, &args.dk, &args.dv};
  }
  std::vector<tandem_tensor> outputs() const { return {args.dq, args.dk, args.dv, dsinks_of(args)}; }
};

bool may_run(Call& call) {
  for (const tandem_tensor* t : call.tensors())
    if (!(t == &call.args.dlse && t->data == nullptr) && !lies_within(call.arena, *t)) return false;
  if (call.args.dsinks != nullptr && !lies_within(call.arena, dsinks_of(call.args))) return false;
  if (call.args.dsinks != nullptr && call.args.q.shape[2] > static_cast<std::int64_t>(call.sinks.size()))
    return false;
  Wide products = 1;
  for (const std::int64_t n : call.args.q.shape) products *= n;
  return products * call.args.k.shape[1] < 2'000'000;
}

/// NaN in what the mask hides altogether; in o, dout and dlse only where no sinks' gradients are wanted.
void poison(Call& call) {
  tandem_backward_args& args = call.args;
  const std::int64_t queries = args.q.shape[1], keys = args.k.shape[1];
  const auto poison_rows = [&](const std::vector<const tandem_tensor*>& tensors, std::int64_t s) {
    for (const tandem_tensor* t : tensors)
      for (std::int64_t b = 0; b < t->shape[0]; ++b)
        for (std::int64_t h = 0; h < t->shape[2]; ++h) std::memset(row_at(*t, b, s, h), 0xff, row_bytes(*t));
  };
  std::vector<const tandem_tensor*> of_queries = {&args.q};
  if (args.dsinks == nullptr) of_queries.push_back(&args.o), of_queries.push_back(&args.dout);
  if (args.dsinks == nullptr && args.dlse.data != nullptr) of_queries.push_back(&args.dlse);
  std::vector<bool> seen(static_cast<std::size_t>(keys));
  for (std::int64_t i = 0; i < queries; ++i) {
    const Keys band = keys_of(args.mask, queries, keys, i);
    if (band.begin == band.end) poison_rows(of_queries, i);
    std::fill(seen.begin() + band.begin, seen.begin() + band.end, true);
  }
  for (std::int64_t j = 0; j < keys; ++j)
    if (!seen[static_cast<std::size_t>(j)]) poison_rows({&args.k, &args.v}, j);
}

void make_valid(Call& call, Draws& draws) {
  const bool large = draws.below(4) == 0;
  const std::int64_t b = draws.between(0, large ? 1 : 2), kv_heads = draws.between(0, 2),
                     group = draws.one_of<std::int64_t>({0, 1, 1, 1, 2, 2, 2});
  const std::int64_t sq = large ? draws.between(0, 70) : draws.between(0, 5),
                     sk = large || draws.below(8) == 0 ? draws.between(0, 70) : draws.between(0, 6);
  const std::int64_t d = 8 * draws.between(1, sq + sk > 40 ? 1 : 3), heads = kv_heads * group;
  const tandem_dtype dtype = draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32});
  tandem_backward_args& args = call.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  args.deterministic = static_cast<std::int32_t>(draws.below(2));
  Placer placer(call.arena, draws);
  const auto queries = [&] { return placer.input(dtype, {b, sq, heads, d}); };
  const auto keys = [&] { return placer.input(dtype, {b, sk, kv_heads, d}); };
  const auto statistic = [&] { return placer.input(TANDEM_FP32, {b, sq, heads, 1}); };
  args.q = queries(), args.k = keys(), args.v = keys(), args.o = queries(), args.dout = queries();
  args.lse = statistic();
  if (draws.below(2) == 0) args.dlse = statistic();
  args.dq = queries(), args.dk = keys(), args.dv = keys();
  args.scale = draws.one_of({0.0f, 0.0f, 0.3f, 1.0f});
  args.softcap = draws.one_of({0.0f, 0.0f, 0.5f, 20.0f});
  call.mask = draw_mask(draws, 80);
  args.mask = draws.below(3) == 0 ? nullptr : &call.mask;
  if (draws.below(2) == 0) call.sinks = draw_sinks(heads, placer.noise()), args.sinks = call.sinks.data();
  if (!call.sinks.empty() && draws.below(4) != 0)
    args.dsinks = static_cast<float*>(placer.output(TANDEM_FP32, {1, 1, 1, heads}).data);
  poison_some(call, draws, poison);
}

void change(Call& call, Draws& draws) {
  switch (change_one({call.tensors(), call.args.backend, call.arena}, 4, draws)) {
    case 0:
      return change_mask(call.mask, draws);
    case 1:
      change_factor(call.args, draws);
      if (draws.below(4) == 0) call.args.deterministic = static_cast<std::int32_t>(draws.between(-1, 2));
      break;
    case 2:
      return change_size(draws.below(2) == 0 ? call.args.struct_size : call.mask.struct_size, draws, false);
    case 3:
      if (draws.below(2) == 0)
        call.args.sinks = nullptr;
      else
        call.args.dsinks = reinterpret_cast<float*>(&call.arena[draws.below(arena_bytes)]);
  }
}

void count_features(const Call& call) {
  const tandem_backward_args& args = call.args;
  const bool masked = args.mask != nullptr;
  bool blind = false;
  for (std::int64_t i = 0; has_elements(args.q) && i < args.q.shape[1]; ++i) {
    const Keys keys = keys_of(args.mask, args.q.shape[1], args.k.shape[1], i);
    blind |= keys.begin == keys.end;
  }
  count_feature("rows", has_elements(args.q) && has_elements(args.k));
  count_feature("many rows", has_elements(args.q) && args.q.shape[1] > 16 && args.k.shape[1] > 16);
  count_feature("keys without query heads", args.q.shape[2] == 0 && has_elements(args.k));
  count_feature("dlse", args.dlse.data != nullptr);
  count_feature("sinks without gradients", args.sinks != nullptr && args.dsinks == nullptr);
  count_feature("dsinks", args.dsinks != nullptr);
  count_feature("dsinks of queries that see no key", args.dsinks != nullptr && blind);
  count_feature("queries that see no key", blind);
  count_feature("NaN in what the mask hides", call.poisoned);
  count_feature("causal", masked && args.mask->kind == TANDEM_MASK_CAUSAL);
  count_feature("window", masked && args.mask->kind == TANDEM_MASK_WINDOW);
  count_feature("softcap", args.softcap > 0);
  count_feature("deterministic", args.deterministic == 1);
}

void compare(const Call& call) {
  const tandem_backward_args& args = call.args;
  const Gradients expected = differentiate(args);  // inputs are apart from outputs
  if (!expected.comparable) return;
  compare(args.dq, expected.dq, "dq is wrong");
  compare(args.dk, expected.dk, "dk is wrong");
  compare(args.dv, expected.dv, "dv is wrong");
  if (args.dsinks != nullptr) compare(dsinks_of(args), expected.dsinks, "dsinks are wrong");
  count_features(call);
}

void run(Call& call, std::size_t /*changes*/) {
  const Verdict verdict = judge(call.args);
  if (verdict == Verdict::unknown || (verdict == Verdict::valid && !may_run(call))) return;
  if (verdict == Verdict::valid) write_forward(call.args);
  const Arena before = call.arena;
  std::size_t bytes = 0;
  const tandem_status asked = tandem_backward_workspace(&call.args, &bytes);
  if (verdict == Verdict::valid && asked != TANDEM_OK) fail(call, "the workspace of a valid call is refused");
  const Lent workspace(bytes);
  const tandem_status status = tandem_backward(&call.args, workspace.data(), workspace.bytes(), nullptr);
  settle(call, {verdict, status, before, workspace.is_enough()}, [](const Call& all) { compare(all); });
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
