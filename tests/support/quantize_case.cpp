#include "tests/support/quantize_case.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/dtype.h"

namespace tandem::test {
namespace {

std::array<std::int64_t, 4> shape_of_out(const QuantizeCase& c) {
  if (!c.by_column) return {c.batch, c.length, c.heads, c.head_dim};
  const std::int64_t padded = (c.length + core::key_group - 1) / core::key_group * core::key_group;
  return {c.batch, c.terms * c.head_dim, c.heads, padded};
}

std::array<std::int64_t, 4> shape_of_scale(const QuantizeCase& c) {
  const std::int64_t block = c.scale.block;
  return {c.scale.each_batch ? c.batch : 1, block == 0 ? 1 : (c.length + block - 1) / block, c.scale.heads,
          1};
}

void fill(HostTensor& x, std::uint64_t seed) {
  x.fill_normal(seed);
  Random random(seed);
  const core::Tensor view = x.view();
  for (std::int64_t b = 0; b < view.shape[0]; ++b)
    for (std::int64_t s = 0; s < view.shape[1]; ++s)
      for (std::int64_t h = 0; h < view.shape[2]; ++h) {
        const bool silent = (s / 128 + h + static_cast<std::int64_t>(seed)) % 4 == 0;
        for (std::int64_t i = 0; i < view.shape[3]; ++i) {
          if (silent) x.set(b, s, h, i, 0);
          if (!silent && random() % 500 == 0) x.set(b, s, h, i, static_cast<float>(random() % 100) - 50);
        }
      }
}

/// Whether Hopper multiplies by WGMMA (quantize/variant.h).
bool is_by_products(const QuantizeCase& c) {
  return c.hadamard && !c.by_column && c.rotary_dim == 0 && c.shift_heads == 0 && c.k_shift_heads == 0;
}

/// Angles of position p and pair i.
void fill_tables(QuantizeTensors& t) {
  const std::int64_t half = t.setup.rotary_dim / 2;
  for (std::int64_t p = 0; p < QuantizeCase::positions; ++p)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * std::pow(100.0, -static_cast<double>(i) / 32);
      t.cos.set(0, 0, p, i, static_cast<float>(std::cos(angle)));
      t.sin.set(0, 0, p, i, static_cast<float>(std::sin(angle)));
    }
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const QuantizeCase& c) {
  return out << core::name_of(c.dtype) << " b" << c.batch << " s" << c.length << " h" << c.heads << " d"
             << c.head_dim << " to " << core::name_of(c.to) << (c.by_column ? " by column x " : " by key x ")
             << c.terms << " scale " << c.scale.each_batch << "x" << c.scale.block << "x" << c.scale.heads
             << (c.scale_given ? " given" : "") << " amplitude " << c.amplitude
             << (c.hadamard ? " hadamard" : "") << " seed " << c.seed << " layouts x " << c.x << " out "
             << c.out << " rotary " << c.rotary_dim << (c.interleaved ? " interleaved " : " halves ")
             << (c.tables_of_dtype ? "of the dtype " : "fp32 ") << (c.positions_given ? "from positions" : "")
             << " shifts of heads " << c.shift_heads << " and " << c.k_shift_heads;
}

QuantizeCase random_quantize_case(std::uint64_t seed) {
  Random random(seed);
  const auto up_to = [&](std::uint64_t most) { return static_cast<std::int64_t>(1 + random() % most); };
  QuantizeCase c;
  c.seed = seed;
  c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.batch = up_to(2), c.length = up_to(300), c.heads = up_to(3);
  c.head_dim = 64 << random() % 3;
  c.by_column = random() % 2 == 0;
  if (random() % 2 == 0) {
    if (c.by_column) c.terms = 2;
    if (!c.by_column) c.to = TANDEM_INT8;
  }
  c.hadamard = random() % 2 == 0;
  c.scale_given = random() % 3 == 0;
  c.scale = {true, 128, c.heads};
  if (!c.scale_given && c.to == TANDEM_E4M3 && random() % 2 == 0)
    c.amplitude = core::rounded_down_to_e4m3(static_cast<float>(1 + random() % 448));
  if (c.scale_given) {
    c.scale.each_batch = random() % 2 == 0;
    c.scale.block = 128 * static_cast<std::int64_t>(random() % 3);
    if (random() % 2 == 0) c.scale.heads = 1;
  }
  c.x = random_tma_layout(random);
  c.out = random_tma_layout(random);
  c.out.row_gap *= 2;
  if (!c.by_column && random() % 2 == 0) {
    c.rotary_dim = 16 * up_to(static_cast<std::uint64_t>(c.head_dim / 16));
    c.interleaved = random() % 2 == 0, c.tables_of_dtype = random() % 2 == 0;
    c.positions_given = random() % 2 == 0;
  }
  const auto draw_heads = [&] { return random() % 3 == 0 ? 0 : random() % 2 == 0 ? 1 : c.heads; };
  c.shift_heads = draw_heads();
  if (!c.by_column) c.k_shift_heads = draw_heads();
  return c;
}

QuantizeCase random_quantize_case(const quantize::QuantizeVariant& variant, std::uint64_t seed) {
  QuantizeCase c = random_quantize_case(seed);
  c.dtype = variant.operand == hw::Operand::bf16 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = variant.head_dim;
  c.by_column = variant.by_column;
  c.to = variant.output == hw::Operand::int8 ? TANDEM_INT8 : TANDEM_E4M3;
  if (c.to == TANDEM_INT8) c.amplitude = core::E4m3::largest;
  c.terms = variant.terms;
  c.rotary_dim = variant.turns ? 16 * (1 + static_cast<std::int64_t>(seed % 4)) : 0;
  if (c.by_column || variant.products) c.k_shift_heads = 0;
  if (variant.products) c.hadamard = true, c.shift_heads = 0;
  if (is_by_products(c) && !variant.products) c.k_shift_heads = 1;
  return c;
}

QuantizeTensors::QuantizeTensors(const QuantizeCase& c)
    : setup(c),
      x(c.dtype, {c.batch, c.length, c.heads, c.head_dim}, c.x),
      out(c.to, shape_of_out(c), c.out),
      scale(TANDEM_FP32, shape_of_scale(c)),
      cos(c.tables_of_dtype ? c.dtype : TANDEM_FP32, {1, 1, QuantizeCase::positions, c.rotary_dim / 2},
          {.row_gap = 0}),
      sin(c.tables_of_dtype ? c.dtype : TANDEM_FP32, {1, 1, QuantizeCase::positions, c.rotary_dim / 2},
          {.row_gap = 0}),
      shift(TANDEM_FP32, {1, 1, std::max<std::int64_t>(1, c.shift_heads), c.head_dim}),
      k_shift(TANDEM_FP32, {c.batch, 1, std::max<std::int64_t>(1, c.k_shift_heads), c.head_dim}),
      q_dot_k_shift(TANDEM_FP32, {c.batch, c.length, c.heads, 1}, {.row_gap = 3}) {
  fill(x, c.seed);
  shift.fill_normal(c.seed + 2), k_shift.fill_normal(c.seed + 3);
  fill_tables(*this);
  Random random(c.seed);
  for (std::int64_t b = 0; b < c.batch; ++b)  // some before the first position, some beyond the last
    first_positions.push_back(static_cast<std::int32_t>(random() % 250) - 20);
  if (!c.scale_given) return;
  scale.fill_normal(c.seed + 1, 0.01f);
  const core::Tensor view = scale.view();
  for (std::int64_t b = 0; b < view.shape[0]; ++b)
    for (std::int64_t block = 0; block < view.shape[1]; ++block)
      for (std::int64_t h = 0; h < view.shape[2]; ++h)
        scale.set(b, block, h, 0, static_cast<float>(0.001 + std::abs(scale.at(b, block, h, 0))));
}

core::QuantizeProblem QuantizeTensors::problem() const { return problem(x.view(), out.view(), scale.view()); }

core::QuantizeProblem QuantizeTensors::problem(const core::Tensor& from, const core::Tensor& to,
                                               const core::Tensor& scales) const {
  const std::int64_t block = setup.scale.block;
  const bool dots = setup.k_shift_heads > 0;
  return {.x = from,
          .out = to,
          .by_column = setup.by_column,
          .terms = setup.terms,
          .amplitude = setup.amplitude,
          .scale = {scales, block == 0 ? std::numeric_limits<std::int64_t>::max() : block},
          .scale_given = setup.scale_given,
          .hadamard = setup.hadamard,
          .seed = setup.seed,
          .rotary = setup.rotary_dim == 0
                        ? core::Rotary{}
                        : core::Rotary{cos.view().data, sin.view().data, cos.view().dtype,
                                       QuantizeCase::positions, setup.rotary_dim, setup.interleaved},
          .first_positions = setup.rotary_dim > 0 && setup.positions_given ? first_positions.data() : nullptr,
          .shift = setup.shift_heads > 0 ? core::Shift{shift.view()} : core::Shift{},
          .k_shift = dots ? core::Shift{k_shift.view()} : core::Shift{},
          .q_dot_k_shift = dots ? q_dot_k_shift.view() : core::Tensor{}};
}

double QuantizeTensors::quantised(std::int64_t b, std::int64_t s, std::int64_t h, std::int64_t i) const {
  double element = 0;
  for (int term = 0; term < setup.terms; ++term)
    element += setup.by_column ? out.at(b, term * setup.head_dim + i, h, core::position_of_key(s))
                               : out.at(b, s, h, i);
  return element * problem().scale.of(b, s, h, setup.heads);
}

tandem_quantize_args to_c(const core::QuantizeProblem& problem, tandem_rotary* rotary) {
  tandem_quantize_args args{};
  args.struct_size = sizeof(args);
  args.x = problem.x;
  args.out = problem.out;
  args.layout = problem.by_column ? TANDEM_VALUES_BY_COLUMN : TANDEM_VALUES_BY_KEY;
  args.scale = problem.scale.values;
  args.block = problem.scale.block == std::numeric_limits<std::int64_t>::max() ? 0 : problem.scale.block;
  args.scale_given = problem.scale_given;
  args.hadamard = problem.hadamard;
  args.seed = problem.seed;
  args.terms = problem.terms;
  if (problem.amplitude != core::E4m3::largest) args.amplitude = problem.amplitude;
  args.shift = problem.shift.values, args.k_shift = problem.k_shift.values;
  args.q_dot_k_shift = problem.q_dot_k_shift;
  if (rotary != nullptr && problem.rotary.cos != nullptr) {
    const core::Rotary& own = problem.rotary;
    *rotary = {sizeof *rotary, own.cos, own.sin, own.dtype, own.positions, own.dim, own.interleaved ? 1 : 0};
    args.rotary = rotary;
    args.first_positions = problem.first_positions;
  }
  return args;
}

namespace {

/// What lies how many of the format's numbers away from 0.
int place_of(tandem_dtype dtype, std::uint8_t element) {
  if (dtype == TANDEM_INT8) return static_cast<std::int8_t>(element);
  return element < 0x80 ? element : -(element & 0x7f);
}

/// Of `after`, guards included, all but a thousandth are the same, and those are neighbours.
bool are_close(const HostTensor& after, const HostTensor& expected, tandem_dtype dtype) {
  const auto own = after.storage(), known = expected.storage();
  std::size_t differing = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const int distance = place_of(dtype, std::to_integer<std::uint8_t>(own[i])) -
                         place_of(dtype, std::to_integer<std::uint8_t>(known[i]));
    if (std::abs(distance) > 1) return false;
    differing += own[i] != known[i] ? 1 : 0;
  }
  return 1000 * differing <= own.size();
}

bool scales_are_close(const HostTensor& after, const HostTensor& expected) {
  const std::vector<double> own = after.values(), known = expected.values();
  for (std::size_t i = 0; i < own.size(); ++i)
    if (!(std::abs(own[i] - known[i]) <= 1e-6 * std::abs(known[i]))) return false;
  return after.guards_intact();
}

}  // namespace

std::string quantize_failure(const QuantizeTensors& after, const QuantizeTensors& expected) {
  const auto same = [](const HostTensor& a, const HostTensor& b) {
    return std::ranges::equal(a.storage(), b.storage());  // guards too
  };
  std::string failure;
  const bool by_products = is_by_products(after.setup);
  if (by_products ? !are_close(after.out, expected.out, after.setup.to) : !same(after.out, expected.out))
    failure += "out differs; ";
  if (by_products && after.setup.to == TANDEM_INT8 ? !scales_are_close(after.scale, expected.scale)
                                                   : !same(after.scale, expected.scale))
    failure += "scale differs; ";
  if (!after.q_dot_k_shift.guards_intact()) failure += "q_dot_k_shift is written outside; ";
  if (after.setup.k_shift_heads == 0) return failure;
  const std::vector<double> dots = after.q_dot_k_shift.values(), known = expected.q_dot_k_shift.values();
  for (std::size_t i = 0; i < dots.size(); ++i)  // sums in another order
    if (!(std::abs(dots[i] - known[i]) <= 2e-4 + 1e-5 * std::abs(known[i]))) {
      failure += "q_dot_k_shift differs; ";
      break;
    }
  return failure;
}

}  // namespace tandem::test
