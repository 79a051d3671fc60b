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
             << (c.scale_given ? " given" : "") << (c.best_scale ? " best" : "") << " amplitude "
             << c.amplitude << (c.hadamard ? " hadamard" : "") << " seed " << c.seed << " layouts x " << c.x
             << " out " << c.out << " rotary " << c.rotary_dim
             << (c.interleaved ? " interleaved " : " halves ")
             << (c.tables_of_dtype ? "of the dtype " : "fp32 ") << (c.positions_given ? "from positions" : "")
             << " shifts of heads " << c.shift_heads << " and " << c.k_shift_heads;
}

namespace {

/// Pairs of columns become x cos - y sin, x sin + y cos, of the nearest position that the tables have.
void turn(const QuantizeTensors& t, std::int64_t b, std::int64_t s, std::vector<double>& row) {
  const QuantizeCase& c = t.setup;
  const std::int64_t first = c.positions_given ? t.first_positions[static_cast<std::size_t>(b)] : 0;
  const std::int64_t p = std::clamp<std::int64_t>(first + s, 0, QuantizeCase::positions - 1);
  for (std::int64_t i = 0; i < c.rotary_dim / 2; ++i) {
    const auto at = static_cast<std::size_t>(c.interleaved ? 2 * i : i);
    const auto partner = static_cast<std::size_t>(c.interleaved ? 2 * i + 1 : i + c.rotary_dim / 2);
    const double x = row[at], y = row[partner], cos = t.cos.at(0, 0, p, i), sin = t.sin.at(0, 0, p, i);
    row[at] = x * cos - y * sin;
    row[partner] = x * sin + y * cos;
  }
}

}  // namespace

std::vector<double> rotated_row(const QuantizeTensors& t, std::int64_t b, std::int64_t s, std::int64_t h) {
  const std::int64_t d = t.setup.head_dim;
  std::vector<double> x, y(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < d; ++i) x.push_back(t.x.at(b, s, h, i));
  if (t.setup.rotary_dim > 0) turn(t, b, s, x);
  if (const std::int64_t heads = t.setup.shift_heads; heads > 0)
    for (std::int64_t i = 0; i < d; ++i) x[i] -= t.shift.at(0, 0, h * heads / t.setup.heads, i);
  if (!t.setup.hadamard) return x;
  for (std::int64_t i = 0; i < d; ++i) {
    double sum = 0;
    for (std::int64_t j = 0; j < d; ++j) {
      const bool minus = (std::popcount(static_cast<std::uint64_t>(i & j)) % 2 != 0) !=
                         core::changes_sign(t.setup.seed, static_cast<int>(j));
      sum += minus ? -x[static_cast<std::size_t>(j)] : x[static_cast<std::size_t>(j)];
    }
    y[static_cast<std::size_t>(i)] = sum / std::sqrt(static_cast<double>(d));
  }
  return y;
}

bool is_by_products(const QuantizeCase& c) {
  return c.hadamard && !c.by_column && c.rotary_dim == 0 && c.shift_heads == 0 && c.k_shift_heads == 0;
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
  if (!c.scale_given && !c.by_column && c.to == TANDEM_E4M3 && random() % 2 == 0)
    c.best_scale = true, c.scale.block = 1;
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
  c.best_scale = variant.row_scales;
  if (!c.scale_given) c.scale.block = c.best_scale ? 1 : 128;
  if (c.best_scale) c.scale_given = false, c.scale = {true, 1, c.heads};
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
          .best_scale = setup.best_scale,
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
  args.best_scale = problem.best_scale ? 1 : 0;
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

}  // namespace tandem::test
