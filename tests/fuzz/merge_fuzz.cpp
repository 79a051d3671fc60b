// Hostile calls of tandem_merge, compared with an oracle of their own: what is valid gives its result and
// touches nothing else, what is not is refused and touches nothing.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <tandem/tandem.h>

#include "tests/fuzz/hostile.h"
#include "tests/fuzz/oracle_rules.h"

namespace tandem::fuzz {
namespace {

struct Call {
  static constexpr std::size_t most_changes = 3;
  Arena arena = Arena(arena_bytes);
  bool hidden = false;
  tandem_merge_args args{};

  std::vector<tandem_tensor*> tensors() { return {&args.o_parts, &args.lse_parts, &args.o, &args.lse}; }
  std::vector<tandem_tensor> outputs() const { return {args.o, args.lse}; }
  bool wants_lse() const { return args.lse.data != nullptr; }
};

/// Parts that have seen no key for some rows: anything may stand in these.
void hide_some(Call& call, Noise& noise) {
  const tandem_merge_args& args = call.args;
  if (!lies_within(call.arena, args.o_parts) || !lies_within(call.arena, args.lse_parts)) return;
  for_each_row(args.lse_parts, [&](std::int64_t b, std::int64_t s, std::int64_t h, std::byte* row) {
    if (noise.below(3) != 0) return;
    constexpr float nothing = -std::numeric_limits<float>::infinity();
    std::memcpy(row, &nothing, sizeof nothing);
    std::memset(row_at(args.o_parts, b, s, h), 0xff, row_bytes(args.o_parts));
  });
}

/// The same parts, the last one first.
void reverse(tandem_tensor& parts, std::int64_t& stride, std::int64_t count) {
  const std::int64_t elements = (count - 1) * stride;
  parts.data =
      static_cast<std::byte*>(parts.data) + elements * static_cast<std::int64_t>(size_of(parts.dtype));
  stride = -stride;
}

void make_valid(Call& call, Draws& draws) {
  const std::int64_t b = draws.between(0, 2), s = draws.between(0, 4), heads = draws.between(0, 3),
                     d = 8 * draws.between(1, 5), parts = draws.between(0, 5);
  const auto any_dtype = [&] { return draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}); };
  tandem_merge_args& args = call.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  args.parts = parts;
  // Parts lie behind one another, as entries of a larger batch.
  Placer placer(call.arena, draws);
  args.o_parts = placer.input(any_dtype(), {b * parts, s, heads, d});
  args.lse_parts = placer.input(TANDEM_FP32, {b * parts, s, heads, 1});
  call.hidden = draws.below(2) == 0;
  if (call.hidden) hide_some(call, placer.noise());
  args.o_parts.shape[0] = args.lse_parts.shape[0] = b;
  args.o_part_stride = b * args.o_parts.stride[0];
  args.lse_part_stride = b * args.lse_parts.stride[0];
  if (parts > 0 && draws.below(4) == 0) reverse(args.o_parts, args.o_part_stride, parts);
  args.o = placer.output(any_dtype(), {b, s, heads, d});
  if (draws.below(3) != 0) args.lse = placer.output(TANDEM_FP32, {b, s, heads, 1});
}

void change(Call& call, Draws& draws) {
  tandem_merge_args& args = call.args;
  switch (change_one({call.tensors(), args.backend, call.arena}, 2, draws)) {
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
  if (args.parts > most_parts || !has_elements(args.o)) return Verdict::unknown;
  if (args.parts == 0 && !(memory_holds(args.o_parts) && memory_holds(args.lse_parts)))
    return Verdict::unknown;
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

struct Merged {
  Numbers o;
  double lse, reach;  ///< the largest magnitude of the values that count
};

/// Row [b, s, h] merged in float64.
Merged merge(const tandem_merge_args& args, std::int64_t b, std::int64_t s, std::int64_t h) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  Merged merged{Numbers(static_cast<std::size_t>(args.o.shape[3])), -infinity, 0};
  Numbers lses;
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
    const Numbers row = read_row(part, b, s, h);
    for (std::size_t e = 0; e < row.size(); ++e) {
      merged.o[e] += std::exp(lses[i] - merged.lse) * row[e];
      merged.reach = std::max(merged.reach, std::abs(row[e]));
    }
  }
  return merged;
}

void count_features(const Call& call) {
  const tandem_merge_args& args = call.args;
  const bool rows = has_elements(args.o);
  count_feature("no part", rows && args.parts == 0);
  count_feature("one part", rows && args.parts == 1);
  count_feature("parts", rows && args.parts > 1);
  count_feature("parts from the last on", rows && args.parts > 1 && args.o_part_stride < 0);
  count_feature("rows that a part has not seen", rows && args.parts > 1 && call.hidden);
  count_feature("parts of another dtype", rows && args.parts > 1 && !same_dtype(args.o_parts, args.o));
  count_feature("no lse", rows && !call.wants_lse());
}

void compare(const Call& call) {
  const tandem_merge_args& args = call.args;
  for (std::int64_t b = 0; b < args.o.shape[0]; ++b)
    for (std::int64_t s = 0; s < args.o.shape[1]; ++s)
      for (std::int64_t h = 0; h < args.o.shape[2]; ++h) {
        const Merged expected = merge(args, b, s, h);
        if (expected.reach > largest_sum || std::isnan(expected.lse) ||
            expected.lse > std::numeric_limits<float>::max())
          continue;
        const std::byte* o = row_at(args.o, b, s, h);
        for (std::size_t e = 0; e < expected.o.size(); ++e)
          if (std::isfinite(expected.o[e]) &&
              !near_rounded(args.o.dtype, value(args.o, o, static_cast<std::int64_t>(e)), expected.o[e]))
            fail("o is wrong");
        if (call.wants_lse() && !near(value(args.lse, row_at(args.lse, b, s, h), 0), expected.lse, 1e-5))
          fail("lse is wrong");
      }
  count_features(call);
}

void run(Call& call, std::size_t /*changes*/) {
  const Verdict verdict = judge(call);
  if (verdict != Verdict::invalid && !may_run(call)) return;
  const Arena before = call.arena;
  const tandem_status status = tandem_merge(&call.args, nullptr);
  settle(call, {verdict, status, before}, compare);
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
