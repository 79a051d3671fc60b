// Hostile calls of tandem_merge, compared with an oracle of their own: what is valid gives its result and
// touches nothing else, what is not is refused and touches nothing.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tandem/tandem.h>

#include "tests/fuzz/forward_oracle.h"
#include "tests/fuzz/hostile.h"

namespace tandem::fuzz {
namespace {

struct Call {
  static constexpr std::size_t most_changes = 3;
  Arena arena = Arena(arena_bytes);
  tandem_merge_args args{};

  bool wants_lse() const { return args.lse.data != nullptr; }
};

void make_valid(Call& call, Draws& draws) {
  const std::int64_t b = draws.between(0, 2), s = draws.between(0, 4), heads = draws.between(0, 3),
                     d = 8 * draws.between(1, 5), parts = draws.between(0, 5);
  const auto any_dtype = [&] { return draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}); };
  tandem_merge_args& args = call.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  args.parts = parts;
  // Parts lie behind one another, as entries of a larger batch.
  std::size_t begin = 16 * draws.below(4);
  args.o_parts = place(call.arena, any_dtype(), {b * parts, s, heads, d}, draws, begin);
  args.lse_parts = place(call.arena, TANDEM_FP32, {b * parts, s, heads, 1}, draws, begin);
  args.o_parts.shape[0] = args.lse_parts.shape[0] = b;
  args.o_part_stride = b * args.o_parts.stride[0];
  args.lse_part_stride = b * args.lse_parts.stride[0];
  args.o = place(call.arena, any_dtype(), {b, s, heads, d}, draws, begin);
  if (draws.below(3) != 0) args.lse = place(call.arena, TANDEM_FP32, {b, s, heads, 1}, draws, begin);
}

void change(Call& call, Draws& draws) {
  tandem_merge_args& args = call.args;
  switch (change_one({{&args.o_parts, &args.lse_parts, &args.o, &args.lse}, args.backend, call.arena}, 2,
                     draws)) {
    case 0:
      args.parts = odd_number(draws);
      break;
    case 1:
      (draws.below(2) == 0 ? args.o_part_stride : args.lse_part_stride) = odd_number(draws);
  }
}

/// Part `index` of a tensor, or nothing where its address leaves the address space.
bool part_of(const tandem_tensor& first, std::int64_t stride, std::int64_t index, tandem_tensor* part) {
  *part = first;
  const Wide offset = Wide{index} * stride * static_cast<Wide>(size_of(first.dtype));
  const Wide address = Wide{reinterpret_cast<std::uintptr_t>(first.data)} + offset;
  constexpr Wide limit = Wide{1} << 63;
  if (offset >= limit || offset < -limit || address < 0 || address >= limit * 2) return false;
  part->data = reinterpret_cast<void*>(static_cast<std::uintptr_t>(address));
  return true;
}

constexpr std::int64_t most_parts = 1000;

Verdict judge(const Call& call) {
  const tandem_merge_args& args = call.args;
  if (args.struct_size != sizeof args || !is_host_backend(args.backend)) return Verdict::invalid;
  std::vector<const tandem_tensor*> outputs = {&args.o}, numbers = {&args.lse_parts};
  if (call.wants_lse()) outputs.push_back(&args.lse), numbers.push_back(&args.lse);
  if (!is_dtype(args.o.dtype) || !is_dtype(args.o_parts.dtype) || args.parts < 0) return Verdict::invalid;
  for (const std::int64_t size : args.o.shape)
    if (size < 0) return Verdict::invalid;
  if (args.o.shape[3] == 0 || args.o.shape[3] % 8 != 0 || !same_shape(args.o_parts, args.o, 4))
    return Verdict::invalid;
  for (const tandem_tensor* t : numbers)
    if (!is_fp32(*t) || !same_shape(*t, args.o, 3) || t->shape[3] != 1) return Verdict::invalid;
  for (const tandem_tensor* t : outputs)
    if (!memory_holds(*t)) return Verdict::invalid;
  // What is no part is not looked at, and what has no elements has no memory.
  if (args.parts > most_parts || args.parts == 0 || !has_elements(args.o)) return Verdict::unknown;
  std::vector<tandem_tensor> parts;
  for (std::int64_t i = 0; i < args.parts; ++i)
    for (const auto& [first, stride] :
         {std::pair{&args.o_parts, args.o_part_stride}, {&args.lse_parts, args.lse_part_stride}}) {
      parts.emplace_back();
      if (!part_of(*first, args.parts == 1 ? 0 : stride, i, &parts.back()) || !memory_holds(parts.back()))
        return Verdict::invalid;
    }
  std::vector<const tandem_tensor*> inputs;
  for (const tandem_tensor& part : parts) inputs.push_back(&part);
  return overlaps_hold(inputs, outputs);
}

bool may_run(const Call& call) {
  const tandem_merge_args& args = call.args;
  if (!lies_within(call.arena, args.o) || (call.wants_lse() && !lies_within(call.arena, args.lse)))
    return false;
  if (!has_elements(args.o)) return true;  // however many parts it has
  if (args.parts > most_parts) return false;
  for (std::int64_t i = 0; i < args.parts; ++i) {
    tandem_tensor o, lse;
    if (!part_of(args.o_parts, args.o_part_stride, i, &o) || !lies_within(call.arena, o)) return false;
    if (!part_of(args.lse_parts, args.lse_part_stride, i, &lse) || !lies_within(call.arena, lse))
      return false;
  }
  return true;
}

/// Row [b, s, h] merged in float64.
Result merge(const tandem_merge_args& args, std::int64_t b, std::int64_t s, std::int64_t h) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Result merged{std::vector<double>(static_cast<std::size_t>(args.o.shape[3])), -infinity};
  std::vector<double> lses;
  for (std::int64_t i = 0; i < args.parts; ++i) {
    tandem_tensor part;
    part_of(args.lse_parts, args.lse_part_stride, i, &part);
    lses.push_back(value(part, row_at(part, b, s, h), 0));
  }
  double highest = -infinity, sum = 0;
  for (const double lse : lses) highest = std::isnan(lse) ? lse : std::max(highest, lse);
  if (highest == -infinity) return merged;
  for (const double lse : lses) sum += std::exp(lse - highest);
  merged.lse = highest + std::log(sum);
  for (std::size_t i = 0; i < lses.size(); ++i) {
    if (lses[i] == -infinity) continue;
    tandem_tensor part;
    part_of(args.o_parts, args.o_part_stride, static_cast<std::int64_t>(i), &part);
    for (std::size_t e = 0; e < merged.o.size(); ++e)
      merged.o[e] +=
          std::exp(lses[i] - merged.lse) * value(part, row_at(part, b, s, h), static_cast<std::int64_t>(e));
  }
  return merged;
}

void compare(const Call& call) {
  const tandem_merge_args& args = call.args;
  for (std::int64_t b = 0; b < args.o.shape[0]; ++b)
    for (std::int64_t s = 0; s < args.o.shape[1]; ++s)
      for (std::int64_t h = 0; h < args.o.shape[2]; ++h) {
        const Result expected = merge(args, b, s, h);
        if (std::isnan(expected.lse) || expected.lse > std::numeric_limits<float>::max()) continue;
        const std::byte* o = row_at(args.o, b, s, h);
        for (std::size_t e = 0; e < expected.o.size(); ++e)
          if (std::isfinite(expected.o[e]) && std::abs(expected.o[e]) < 6e4 &&
              !near(value(args.o, o, static_cast<std::int64_t>(e)), expected.o[e],
                    tolerance_of(args.o.dtype)))
            fail("o is wrong");
        if (call.wants_lse() && !near(value(args.lse, row_at(args.lse, b, s, h), 0), expected.lse, 1e-5))
          fail("lse is wrong");
      }
}

void run(Call& call, std::size_t /*changes*/) {
  const Verdict verdict = judge(call);
  if (verdict != Verdict::invalid && !may_run(call)) return;
  const Arena before = call.arena;
  const tandem_status status = tandem_merge(&call.args, nullptr);
  if (verdict == Verdict::valid && status != TANDEM_OK) fail("a valid call is refused");
  if (verdict == Verdict::invalid && status == TANDEM_OK) fail("an invalid call is accepted");
  if (status == TANDEM_OK) {
    if (verdict == Verdict::valid) compare(call);
    restore(call.arena, before, call.args.o);
    if (call.wants_lse()) restore(call.arena, before, call.args.lse);
  }
  if (call.arena != before) fail("memory was written that is no output's");
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
