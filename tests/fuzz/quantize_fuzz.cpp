// Hostile calls of tandem_quantize, compared with an oracle of their own: what is valid gives its result and
// touches nothing else, what is not is refused and touches nothing.
#include <algorithm>
#include <bit>
#include <cmath>

#include "tests/fuzz/hostile.h"
#include "tests/fuzz/options.h"
#include "tests/fuzz/oracle_eight_bit.h"
#include "tests/fuzz/oracle_rotary.h"
#include "tests/fuzz/oracle_rules.h"

namespace tandem::fuzz {
namespace {

struct Call {
  static constexpr std::size_t most_changes = 3;
  Arena arena = Arena(arena_bytes);
  Angles angles;
  std::vector<std::int32_t> first_positions;
  tandem_quantize_args args{};

  std::int64_t terms() const { return args.terms == 2 ? 2 : 1; }
  bool to_integers() const { return number(args.out.dtype) == TANDEM_INT8; }
  bool by_column() const { return number(args.layout) == TANDEM_VALUES_BY_COLUMN; }
  std::vector<tandem_tensor*> tensors() {
    std::vector<tandem_tensor*> all = {&args.x, &args.out, &args.scale};
    for (tandem_tensor* t : {&args.shift, &args.k_shift, &args.q_dot_k_shift})
      if (t->data != nullptr) all.push_back(t);
    return all;
  }
  std::vector<tandem_tensor> outputs() const {
    if (!has_elements(args.x)) return {};
    std::vector<tandem_tensor> all = {args.out, args.q_dot_k_shift};
    if (args.scale_given != 1) all.push_back(args.scale);
    return all;
  }
};

/// Positions are often anything: the nearest that the tables have counts.
void draw_rotary(Call& call, Draws& draws, Noise& noise) {
  tandem_quantize_args& args = call.args;
  call.angles.draw(draws, noise, args.x.dtype, args.x.shape[3]);
  args.rotary = &call.angles.rotary;
  if (args.x.shape[0] == 0 || draws.below(2) == 0) return;
  for (std::int64_t i = 0; i < args.x.shape[0]; ++i)
    call.first_positions.push_back(mostly(draws, draws.between(-5, 40)));
  args.first_positions = call.first_positions.data();
}

/// Entries and heads of x, or any divisor of these, may be shared.
tandem_tensor draw_shift(const tandem_tensor& x, Draws& draws, Placer& placer) {
  const std::int64_t heads = std::max<std::int64_t>(1, draws.between(1, x.shape[2]));
  return placer.input(TANDEM_FP32, {draws.below(2) == 0 ? 1 : x.shape[0], 1,
                                    x.shape[2] % heads == 0 ? heads : 1, x.shape[3]});
}

void draw_shifts(Call& call, Draws& draws, Placer& placer) {
  tandem_quantize_args& args = call.args;
  const std::int64_t* x = args.x.shape;
  if (draws.below(3) == 0) args.shift = draw_shift(args.x, draws, placer);
  if (call.by_column() || draws.below(2) == 0) return;
  args.k_shift = draw_shift(args.x, draws, placer);
  args.q_dot_k_shift = placer.output(TANDEM_FP32, {x[0], x[1], x[2], 1});
}

void make_valid(Call& call, Draws& draws) {
  tandem_quantize_args& args = call.args;
  args.struct_size = sizeof args;
  args.backend = draws.one_of({TANDEM_BACKEND_CPU, TANDEM_BACKEND_REFERENCE, TANDEM_BACKEND_AUTO});
  const std::int64_t b = draws.between(0, 2), heads = draws.between(0, 3);
  const std::int64_t s = draws.below(4) == 0 ? draws.between(0, 70) : draws.between(0, 20);
  args.hadamard = static_cast<std::int32_t>(draws.below(2));
  args.seed = draws.below(65536) * 0x9e3779b97f4a7c15u;
  const std::int64_t d =
      args.hadamard == 1 ? draws.one_of<std::int64_t>({8, 16, 32, 64}) : 8 * draws.between(1, 4);
  Placer placer(call.arena, draws);
  args.x = placer.input(draws.one_of({TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}), {b, s, heads, d});
  if (draws.below(2) == 0) args.layout = TANDEM_VALUES_BY_COLUMN;
  if (call.by_column()) {
    args.terms = static_cast<std::int32_t>(draws.between(0, 2));
    args.out = placer.output(TANDEM_E4M3, {b, call.terms() * d, heads, (s + 15) / 16 * 16});
  } else {
    args.out = placer.output(draws.one_of({TANDEM_E4M3, TANDEM_INT8}), {b, s, heads, d});
  }
  args.block = draws.below(3) == 0 ? 0 : draws.between(1, s > 20 ? 40 : 8);
  const std::int64_t blocks = args.block == 0 ? 1 : (s + args.block - 1) / args.block;
  args.scale = placer.scales({draws.below(2) == 0 ? 1 : b, blocks, draws.below(2) == 0 ? 1 : heads, 1});
  args.scale_given = draws.below(3) == 0 ? 1 : 0;
  if (args.scale_given == 0 && !call.to_integers())
    args.amplitude = draws.one_of({0.f, 1.f, 15.f, 22.f, 240.f});
  if (args.scale_given == 0 && !call.to_integers() && !call.by_column() && draws.below(2) == 0)
    args.best_scale = 1;
  if (!call.by_column() && d % 16 == 0 && draws.below(2) == 0) draw_rotary(call, draws, placer.noise());
  draw_shifts(call, draws, placer);
  if (draws.below(4) == 0 && placer.fits(args.x))  // a block of zeros, maybe
    for_each_row(args.x, [&](std::int64_t, std::int64_t token, std::int64_t, std::byte* row) {
      if (token < 20) std::memset(row, 0, row_bytes(args.x));
    });
}

void change(Call& call, Draws& draws) {
  tandem_quantize_args& args = call.args;
  tandem_rotary& rotary = call.angles.rotary;
  switch (change_one({call.tensors(), args.backend, call.arena}, 6, draws)) {
    case 0:
      args.block = odd_number(draws);
      break;
    case 1:
      store(args.layout, static_cast<int>(draws.between(-1, 2)));
      break;
    case 2:
      if (draws.below(4) == 0) args.amplitude = static_cast<float>(draws.between(-1, 450));
      *draws.one_of({&args.scale_given, &args.hadamard, &args.terms, &args.best_scale}) =
          static_cast<std::int32_t>(draws.between(-1, 3));
      break;
    case 3:
      return change_size(draws.below(2) == 0 ? args.struct_size : rotary.struct_size, draws, false);
    case 4:
      if (draws.below(3) == 0) return store(rotary.dtype, static_cast<int>(draws.between(-1, 5)));
      if (draws.below(3) == 0) rotary.interleaved = static_cast<std::int32_t>(draws.between(-1, 2));
      *draws.one_of({&rotary.positions, &rotary.dim}) = odd_number(draws);
      break;
    case 5: {  // what lies anywhere, or nowhere
      const void** const pointers[] = {&rotary.cos, &rotary.sin,
                                       reinterpret_cast<const void**>(&args.first_positions),
                                       reinterpret_cast<const void**>(&args.rotary)};
      const std::size_t which = draws.below(4);
      const bool none = which == 3 || draws.below(2) == 0;
      *pointers[which] = none ? nullptr : &call.arena[draws.below(arena_bytes)];
    }
  }
}

bool shapes_hold(const Call& call) {
  const tandem_quantize_args& args = call.args;
  for (const tandem_tensor* t : {&args.x, &args.out, &args.scale})
    if (std::any_of(t->shape, t->shape + 4, [](std::int64_t n) { return n < 0; })) return false;
  const std::int64_t *x = args.x.shape, *out = args.out.shape, d = x[3];
  if (d <= 0 || d % 8 != 0 || d > 256) return false;
  if (args.hadamard == 1 && !std::has_single_bit(static_cast<std::uint64_t>(d))) return false;
  if (!call.by_column()) return same_shape(args.out, args.x, 4);
  return out[0] == x[0] && out[1] == call.terms() * d && out[2] == x[2] &&
         out[3] == (Wide{x[1]} + 15) / 16 * 16;
}

/// Numbers of 32 bits, one for each entry.
tandem_tensor positions_of(const tandem_quantize_args& args) {
  return {
      const_cast<std::int32_t*>(args.first_positions), TANDEM_FP32, {1, 1, 1, args.x.shape[0]}, {0, 0, 0, 1}};
}

bool shifts_hold(const Call& call) {
  const tandem_quantize_args& args = call.args;
  const bool dots = args.q_dot_k_shift.data != nullptr;
  return ((args.k_shift.data != nullptr) == dots || !has_elements(args.x)) && !(dots && call.by_column()) &&
         shift_holds(args.shift, args.x, true) && shift_holds(args.k_shift, args.x, true) &&
         dots_hold(args.q_dot_k_shift, args.x);
}

Verdict judge(const Call& call) {
  const tandem_quantize_args& args = call.args;
  if (args.struct_size != sizeof args || !is_host_backend(args.backend)) return Verdict::invalid;
  if (!call.by_column() && number(args.layout) != TANDEM_VALUES_BY_KEY) return Verdict::invalid;
  for (const std::int32_t option : {args.scale_given, args.hadamard, args.best_scale})
    if (option != 0 && option != 1) return Verdict::invalid;
  if (args.amplitude != 0) {
    if (!(args.amplitude >= 1 && args.amplitude <= 448)) return Verdict::invalid;
    if (args.scale_given == 1 || call.to_integers()) return Verdict::invalid;
  }
  if (args.best_scale == 1 && (args.scale_given == 1 || call.to_integers() || call.by_column()))
    return Verdict::invalid;
  if (args.terms < 0 || args.terms > 2 || (args.terms == 2 && !call.by_column())) return Verdict::invalid;
  if (!is_dtype(args.x.dtype) || !is_eight_bit(number(args.out.dtype)) || !is_fp32(args.scale))
    return Verdict::invalid;
  if (call.by_column() && call.to_integers()) return Verdict::invalid;
  if (!shapes_hold(call)) return Verdict::invalid;
  if (!shifts_hold(call)) return Verdict::invalid;
  if (args.scale.data == nullptr) return has_elements(args.x) ? Verdict::invalid : Verdict::unknown;
  if (!scales_hold(args.scale, args.block, args.x, {args.x.shape[2]})) return Verdict::invalid;
  std::vector<tandem_tensor> others;
  if (args.rotary != nullptr) {
    const tandem_rotary& rotary = *args.rotary;
    if (call.by_column() || !rotary_holds(rotary, args.x)) return Verdict::invalid;
    others = {table_of(rotary, rotary.cos), table_of(rotary, rotary.sin)};
    if (args.first_positions != nullptr) others.push_back(positions_of(args));
  }
  std::vector<const tandem_tensor*> inputs = {&args.x}, outputs = {&args.out};
  (args.scale_given == 1 ? inputs : outputs).push_back(&args.scale);
  for (const tandem_tensor* shift : {&args.shift, &args.k_shift})
    if (shift->data != nullptr) inputs.push_back(shift);
  if (args.q_dot_k_shift.data != nullptr) outputs.push_back(&args.q_dot_k_shift);
  for (const tandem_tensor& other : others) inputs.push_back(&other);
  for (const auto& some : {inputs, outputs})
    for (const tandem_tensor* t : some)
      if (!memory_holds(*t)) return Verdict::invalid;
  return overlaps_hold(inputs, outputs);
}

bool may_run(const Call& call) {
  for (const tandem_tensor* t : {&call.args.x, &call.args.out, &call.args.scale}) {
    const Wide rows = Wide{t->shape[0]} * t->shape[1] * t->shape[2];  // of which many may be the same
    if (!lies_within(call.arena, *t) || (has_elements(*t) && rows > 20'000)) return false;
  }
  for (const tandem_tensor* t : {&call.args.shift, &call.args.k_shift, &call.args.q_dot_k_shift})
    if (t->data != nullptr && !lies_within(call.arena, *t)) return false;
  if (call.args.rotary == nullptr) return true;
  const auto positions = static_cast<std::int64_t>(call.first_positions.size());
  return call.angles.fit() &&
         (call.args.first_positions == nullptr ||
          (call.args.first_positions == call.first_positions.data() && call.args.x.shape[0] <= positions));
}

/// A row as it is to be quantised, and how far fp32 may be off.
struct Prepared {
  Numbers row;
  double error = 0;
  double dot = 0, dot_error = 0;  ///< with the shift of k
};

void subtract_shift(Prepared& prepared, const Numbers& shift) {
  prepared.error += error_of_scores * (largest_of(prepared.row) + largest_of(shift));
  for (std::size_t e = 0; e < shift.size(); ++e) prepared.row[e] -= shift[e];
}

void multiply_by_shift(Prepared& prepared, const Numbers& shift) {
  for (std::size_t e = 0; e < shift.size(); ++e) {
    const double product = prepared.row[e] * shift[e];
    prepared.dot += product;
    prepared.dot_error += error_of_scores * std::abs(product) + prepared.error * std::abs(shift[e]);
  }
}

Prepared prepare(const tandem_quantize_args& args, std::int64_t b, std::int64_t s, std::int64_t h) {
  Prepared result{read_row(args.x, b, s, h)};
  if (args.rotary != nullptr) {
    result.error = 4 * error_of_scores * largest_of(result.row);
    result.row =
        turned(result.row, *args.rotary, (args.first_positions == nullptr ? 0 : args.first_positions[b]) + s);
  }
  const auto own = [&](const tandem_tensor& shift) { return shift_at(shift, b, h, args.x.shape[2]); };
  if (args.shift.data != nullptr) subtract_shift(result, own(args.shift));
  if (args.k_shift.data != nullptr) multiply_by_shift(result, own(args.k_shift));
  if (args.hadamard == 0) return result;
  double sum = 0;
  for (const double each : result.row) sum += std::abs(each);
  result.error = std::sqrt(static_cast<double>(result.row.size())) * result.error + error_of_scores * sum;
  result.row = times_hadamard(result.row, args.seed);
  return result;
}

/// The scale that a row's elements share with others of a block.
struct Block {
  double largest = 0, error = 0;
  bool finite = true;
  Numbers elements;  ///< of all rows, where the best scale is looked for
};

bool is_power_of_two(double x) { return x > 0 && std::isfinite(x) && std::exp2(std::ilogb(x)) == x; }

std::int64_t block_of(const tandem_quantize_args& args, std::int64_t token) {
  return args.block == 0 ? 0 : token / args.block;
}

void compare_row(const Call& call, std::int64_t b, std::int64_t s, std::int64_t h) {
  const tandem_quantize_args& args = call.args;
  const double scale = scale_at(args.scale, b, block_of(args, s), h);
  const Prepared prepared = prepare(args, b, s, h);
  // What rotations, shifts and the transform make of infinities depends on their order.
  const bool as_given = args.hadamard == 0 && args.rotary == nullptr && args.shift.data == nullptr;
  if (!as_given && !(largest_of(prepared.row) < largest_sum)) return;
  if (args.k_shift.data != nullptr && prepared.dot_error < largest_sum)
    if (!near(value(args.q_dot_k_shift, row_at(args.q_dot_k_shift, b, s, h), 0), prepared.dot, 0,
              prepared.dot_error))
      fail("a product with the shift of k is wrong");
  const tandem_dtype dtype = args.out.dtype;
  const auto d = static_cast<std::int64_t>(prepared.row.size());
  for (std::int64_t e = 0; e < d; ++e) {
    double left = prepared.row[static_cast<std::size_t>(e)] / scale;
    const double reach = std::min(std::abs(left), 2 * largest_element(dtype));
    const bool exact = as_given && is_power_of_two(scale);
    for (std::int64_t term = 0; term < call.terms(); ++term) {
      const double result = call.by_column()
                                ? value(args.out, row_at(args.out, b, term * d + e, h), place_of_key(s))
                                : value(args.out, row_at(args.out, b, s, h), e);
      if (exact ? !near(result, round_to_even(dtype, left), 0)
                : !is_rounded(dtype, result, left, prepared.error / scale + error_of_scores * reach))
        fail("an element is wrong");
      left -= result;
    }
  }
}

/// Of a number from 1 on: it has four bits.
double rounded_down_to_e4m3(double x) {
  const int last = std::ilogb(x) - 3;
  return std::ldexp(std::floor(std::ldexp(x, -last)), last);
}

/// What the rounding of a block's elements loses by a scale.
double squared_error(const Numbers& elements, double scale) {
  double sum = 0;
  for (const double x : elements) {
    const double error = round_to_even(TANDEM_E4M3, x / scale) * scale - x;
    sum += error * error;
  }
  return sum;
}

/// Whether `choice` times the least power of two is a scale that may be chosen, and loses about as little as
/// any.
void compare_choice(const tandem_quantize_args& args, double least, const Block& all, double choice) {
  const double quarters = 4 * std::log2(choice);
  if (std::abs(quarters - std::round(quarters)) > 1e-5) fail("a best scale is not one of four in an octave");
  if (args.hadamard == 1 || args.rotary != nullptr || args.shift.data != nullptr) return;  // other roundings
  double best = squared_error(all.elements, least);
  for (int i = 1; i < 4; ++i) best = std::min(best, squared_error(all.elements, least * std::exp2(i / 4.)));
  if (squared_error(all.elements, least * choice) > 1.001 * best) fail("another scale is better");
}

/// The scale [b, block, h], of all rows that share it.
void compare_scale(const tandem_quantize_args& args, std::int64_t b, std::int64_t block, std::int64_t h) {
  const std::int64_t* shape = args.scale.shape;
  Block all;
  for_each_row(args.x, [&](std::int64_t xb, std::int64_t s, std::int64_t xh, const std::byte*) {
    if ((shape[0] > 1 && xb != b) || block_of(args, s) != block || (shape[2] > 1 && xh != h)) return;
    const Prepared prepared = prepare(args, xb, s, xh);
    const double largest = largest_of(prepared.row);
    all.finite = all.finite && largest < largest_sum;
    all.largest = std::max(all.largest, largest), all.error = std::max(all.error, prepared.error);
    if (args.best_scale == 1)
      all.elements.insert(all.elements.end(), prepared.row.begin(), prepared.row.end());
  });
  const double found = scale_at(args.scale, b, block, h);
  const double scale = args.best_scale == 1 ? std::exp2(std::ilogb(found)) : found;  // the least power of two
  if (args.out.dtype == TANDEM_E4M3 && !is_power_of_two(scale)) fail("a scale is no power of two");
  if (!all.finite) return;
  if (args.best_scale == 1) compare_choice(args, scale, all, found / scale);
  const double to_448 = args.amplitude == 0 ? 1 : 448 / rounded_down_to_e4m3(args.amplitude);
  if (!is_scale_for(args.out.dtype, scale, all.largest * to_448, all.error * to_448))
    fail("a scale is wrong");
}

void compare_tail(const Call& call) {
  const tandem_tensor& out = call.args.out;
  for_each_row(out, [&](std::int64_t, std::int64_t, std::int64_t, const std::byte* row) {
    for (std::int64_t key = call.args.x.shape[1]; key < out.shape[3]; ++key)
      if (row[place_of_key(key)] != std::byte{}) fail("there is something behind the last key");
  });
}

void count_features(const Call& call) {
  const tandem_quantize_args& args = call.args;
  const bool rows = has_elements(args.x), found = args.scale_given == 0;
  count_feature("nothing", !rows);
  count_feature("scales of blocks", rows && found && args.scale.shape[1] > 1);
  count_feature("a scale of all tokens", rows && found && args.block == 0);
  count_feature("scales of heads", rows && found && args.scale.shape[2] > 1);
  count_feature("scales of entries", rows && found && args.scale.shape[0] > 1);
  count_feature("a scale shared by entries and heads", rows && found &&
                                                           args.scale.shape[0] < args.x.shape[0] &&
                                                           args.scale.shape[2] < args.x.shape[2]);
  count_feature("the best scale", rows && args.best_scale == 1);
  count_feature("given scales", rows && !found);
  count_feature("by column", rows && call.by_column());
  count_feature("by column of many keys", rows && call.by_column() && args.x.shape[1] > 16);
  count_feature("two terms", rows && call.terms() == 2);
  count_feature("two terms with scales of blocks",
                rows && call.terms() == 2 && found && args.scale.shape[1] > 1);
  count_feature("integers", rows && found && call.to_integers());
  count_feature("integers by given scales", rows && !found && call.to_integers());
  const bool shift = rows && args.shift.data != nullptr, k_shift = rows && args.k_shift.data != nullptr;
  count_feature("a shift", shift);
  count_feature("a shift for each entry", shift && args.shift.shape[0] > 1);
  count_feature("a shift for some heads", shift && args.shift.shape[2] > 1);
  count_feature("a shift of k", k_shift);
  count_feature("a shift of k for each entry", k_shift && args.k_shift.shape[0] > 1);
  count_feature("a shift of k for some heads", k_shift && args.k_shift.shape[2] > 1);
  count_feature("a shift by column", shift && call.by_column());
  count_feature("a shift and hadamard", shift && args.hadamard == 1);
  const bool rotary = rows && args.rotary != nullptr;
  call.angles.count_features(rotary, args.x.dtype);
  count_feature("rotary at first positions", rotary && args.first_positions != nullptr);
  count_feature("rotary and hadamard", rotary && args.hadamard == 1);
  count_feature("rotary to integers", rotary && call.to_integers());
  count_feature("integers, hadamard", rows && found && call.to_integers() && args.hadamard == 1);
  count_feature("hadamard", rows && args.hadamard == 1);
  count_feature("hadamard by column, scales of blocks",
                rows && args.hadamard == 1 && call.by_column() && found && args.scale.shape[1] > 1);
}

void compare(const Call& call) {
  const tandem_quantize_args& args = call.args;
  for_each_row(args.x, [&](std::int64_t b, std::int64_t s, std::int64_t h, const std::byte*) {
    compare_row(call, b, s, h);
  });
  if (args.scale_given == 0 && has_elements(args.x))
    for_each_row(args.scale, [&](std::int64_t b, std::int64_t block, std::int64_t h, const std::byte*) {
      compare_scale(args, b, block, h);
    });
  if (call.by_column()) compare_tail(call);
  count_features(call);
}

void run(Call& call, std::size_t changes) {
  const Verdict verdict = judge(call);
  if (changes == 0 && verdict == Verdict::invalid && may_run(call))
    fail(call, "the oracle refuses what was drawn");
  if (verdict == Verdict::unknown || (verdict == Verdict::valid && !may_run(call))) return;
  // Scales that are given are above 0, wherever they lie.
  bool positive = true;
  if (verdict == Verdict::valid && call.args.scale_given == 1)
    for_each_row(call.args.scale, [&](std::int64_t, std::int64_t, std::int64_t, const std::byte* row) {
      const double scale = value(call.args.scale, row, 0);
      positive = positive && scale > 1e-6 && scale < 1e6;
    });
  if (!positive) return;
  const Arena before = call.arena;
  const tandem_status status = tandem_quantize(&call.args, nullptr);
  settle(call, {verdict, status, before}, compare);
}

}  // namespace
}  // namespace tandem::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  return tandem::fuzz::try_input<tandem::fuzz::Call>(data, size);
}
