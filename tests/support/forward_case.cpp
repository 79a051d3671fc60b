#include "tests/support/forward_case.h"

#include <cmath>
#include <limits>
#include <numbers>

#include <tandem/attention.hpp>

#include "core/dtype.h"

namespace tandem::test {
namespace {

void print_limit(std::ostream& out, std::int64_t limit) {
  if (limit == core::Mask::unlimited)
    out << "unlimited";
  else
    out << limit;
}

std::ostream& operator<<(std::ostream& out, const ScaleCase& s) {
  return out << (s.each_batch ? "b" : "1") << "x" << s.block << "x" << s.heads;
}

/// Keys and columns change places where V is transposed, and whole groups of keys are there.
std::array<std::int64_t, 4> shape_of_v(const ForwardCase& c) {
  if (!c.is_8_bit() || !c.eight_bit.v_transposed) return {c.batch, c.k_len, c.kv_heads, c.value_columns()};
  const std::int64_t groups = (c.k_len + core::key_group - 1) / core::key_group;
  return {c.batch, c.eight_bit.v_terms * c.head_dim, c.kv_heads, groups * core::key_group};
}

std::array<std::int64_t, 4> shape_of_scales(const ForwardCase& c, const ScaleCase& s, std::int64_t tokens) {
  const std::int64_t blocks = s.block == 0 ? 1 : (tokens + s.block - 1) / s.block;
  return {s.each_batch ? c.batch : 1, blocks, s.heads, 1};
}

core::Scales scales_of(const ScaleCase& s, const HostTensor& values) {
  if (s.heads == 0) return {};
  return {values.view(), s.block == 0 ? std::int64_t{1} << 30 : s.block};
}

/// Integers for q and k: their scales are as much smaller.
constexpr float deviation_of_integers = 16;

/// Around `middle`, never 0.
void fill_scales(HostTensor& scales, std::uint64_t seed, float middle) {
  Random random(seed);
  const core::Tensor view = scales.view();
  for (std::int64_t b = 0; b < view.shape[0]; ++b)
    for (std::int64_t block = 0; block < view.shape[1]; ++block)
      for (std::int64_t h = 0; h < view.shape[2]; ++h)
        scales.set(b, block, h, 0, middle * (0.5f + static_cast<float>(random() % 1000) * 1e-3f));
}

/// Transposed values have zeros behind the last key.
void clear_tail(HostTensor& v, std::int64_t keys) {
  const core::Tensor view = v.view();
  for (std::int64_t p = 0; p < view.shape[3]; ++p) {
    if (core::key_of_position(p) < keys) continue;
    for (std::int64_t b = 0; b < view.shape[0]; ++b)
      for (std::int64_t e = 0; e < view.shape[1]; ++e)
        for (std::int64_t h = 0; h < view.shape[2]; ++h) v.set(b, e, h, p, 0);
  }
}

tandem_scales scales_without_tensors(const ForwardCase& c) {
  const EightBitCase& own = c.eight_bit;
  return {sizeof(tandem_scales),
          {},
          {},
          {},
          own.q.block,
          own.k.block,
          own.v.block,
          own.v_transposed ? TANDEM_VALUES_BY_COLUMN : TANDEM_VALUES_BY_KEY,
          own.v_terms,
          own.amplitude,
          {},
          {}};
}

/// Scales of one of `heads` numbers of heads, or of one head, or none. `block`: what any block is a multiple
/// of.
ScaleCase draw_scales(Random& random, std::int64_t block, const std::vector<std::int64_t>& heads) {
  const std::uint64_t choice = random() % (heads.size() + 2);
  ScaleCase s;
  s.each_batch = random() % 2 == 0;
  s.block = random() % 2 == 0 ? 0 : block * static_cast<std::int64_t>(1 + random() % 3);
  s.heads = choice == 0 ? 0 : choice == 1 ? 1 : heads[choice - 2];
  return s;
}

/// All of a problem but its tensors.
void set_scalars(core::ForwardProblem& p, const ForwardCase& c) {
  p.mask = c.mask;
  p.scale = c.scale > 0 ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.softcap = c.softcap;
  p.overlap = c.overlap;
  p.turn = c.turn;
  p.block_m = c.block_m, p.block_n = c.block_n;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ForwardCase& c) {
  out << core::name_of(c.dtype) << " b" << c.batch << " sq" << c.q_len << " sk" << c.k_len << " h"
      << c.q_heads << "/" << c.kv_heads << " d" << c.head_dim;
  if (c.value_dim > 0) out << " dv" << c.value_dim;
  out << " left ";
  print_limit(out, c.mask.left);
  out << " right ";
  print_limit(out, c.mask.right);
  if (c.mask.chunk > 0) out << " chunk " << c.mask.chunk;
  out << " scale " << c.scale << " softcap " << c.softcap << (c.lse ? " lse" : "") << " overlap " << c.overlap
      << " turn " << c.turn << " tile " << c.block_m << "x" << c.block_n << " seed " << c.seed;
  if (c.is_8_bit()) {
    out << " to " << core::name_of(c.eight_bit.output)
        << (c.eight_bit.v_transposed ? " v-columns x " : " v-rows x ") << c.eight_bit.v_terms << " amplitude "
        << c.eight_bit.amplitude << " scales q " << c.eight_bit.q << " k " << c.eight_bit.k << " v "
        << c.eight_bit.v << (c.eight_bit.v_shift ? " v-shift" : "")
        << (c.eight_bit.q_dot_k_shift ? " q-dot-k-shift" : "");
  }
  return out << c.blocks << " layouts q " << c.q << " k " << c.k << " v " << c.v << " o " << c.o << " lse "
             << c.lse_layout;
}

core::Mask random_mask(Random& random, std::int64_t q_len, std::int64_t k_len) {
  const auto limit = [&] {
    const auto span = static_cast<std::uint64_t>(q_len + k_len + 2);
    return random() % 4 == 0 ? core::Mask::unlimited
                             : static_cast<std::int64_t>(random() % span / (1 + random() % 8));
  };
  switch (random() % 4) {
    case 0:
      return core::Mask::full();
    case 1:
      return core::Mask::causal();
    default:
      return {limit(), limit()};
  }
}

void draw_eight_bit(ForwardCase& c, Random& random) {
  c.dtype = TANDEM_E4M3;
  for (Layout* layout : {&c.q, &c.k, &c.v}) layout->row_gap = static_cast<int>(random() % 3) * 16;
  EightBitCase& own = c.eight_bit;
  own.output = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  own.v_transposed = random() % 2 == 0;
  if (own.v_transposed && random() % 2 == 0) {
    c.dtype = TANDEM_INT8;
    own.v_terms = 1 + static_cast<int>(random() % 2);
  }
  if (c.dtype == TANDEM_E4M3 && random() % 2 == 0) own.amplitude = 8;
  own.q = draw_scales(random, 1 + static_cast<std::int64_t>(random() % 70), {c.q_heads, c.kv_heads});
  own.k = draw_scales(random, 128, {c.kv_heads});
  own.v = draw_scales(random, 128, {c.kv_heads});
  const bool adds_shifts = c.head_dim <= 128;
  own.v_shift = adds_shifts && random() % 2 == 0;
  own.q_dot_k_shift = adds_shifts && c.softcap == 0 && random() % 2 == 0;
}

tandem_mask to_c(const core::Mask& mask) {
  const bool all_right = mask.right == core::Mask::unlimited, all_left = mask.left == core::Mask::unlimited;
  if (all_left && all_right) return Mask::full().in_chunks(mask.chunk).c_mask();
  const auto limit = [](std::int64_t keys) {
    return keys == core::Mask::unlimited ? TANDEM_UNLIMITED : keys;
  };
  if (all_left && mask.right == 0) return Mask::causal().in_chunks(mask.chunk).c_mask();
  return Mask::window(limit(mask.left), limit(mask.right)).in_chunks(mask.chunk).c_mask();
}

ForwardArgs::ForwardArgs(const ForwardCase& c)
    : mask(to_c(c.mask)),
      study{sizeof(study), c.overlap, c.turn, TANDEM_DECODE_AUTO, c.block_m, c.block_n},
      scales(scales_without_tensors(c)) {
  args.struct_size = sizeof(args);
  args.mask = &mask;
  args.scale = c.scale;
  args.softcap = c.softcap;
  args.study = &study;
  if (c.is_8_bit()) args.scales = &scales;
}

tandem_block_list to_c(const core::BlockList& b) {
  return {sizeof(tandem_block_list),
          b.q_block,
          b.k_block,
          b.counts,
          b.blocks,
          b.slots,
          b.batch_stride,
          b.head_stride};
}

core::ForwardProblem shapes_of(const ForwardCase& c) {
  core::ForwardProblem p{};
  p.q = p.o = {nullptr, c.dtype, {c.batch, c.q_len, c.q_heads, c.head_dim}, {}};
  p.k = p.v = {nullptr, c.dtype, {c.batch, c.k_len, c.kv_heads, c.head_dim}, {}};
  p.v.dtype = c.v_dtype();
  p.v.shape[3] = p.o.shape[3] = c.value_columns();
  p.o.dtype = c.o_dtype();
  p.blocks.q_block = c.blocks.q_block, p.blocks.k_block = c.blocks.k_block;
  p.quantisation.v_transposed = c.is_8_bit() && c.eight_bit.v_transposed;
  p.quantisation.v_terms = c.is_8_bit() ? c.eight_bit.v_terms : 1;
  p.quantisation.amplitude = c.is_8_bit() ? c.eight_bit.amplitude : 0;
  set_scalars(p, c);
  return p;
}

ForwardTensors::ForwardTensors(const ForwardCase& c)
    : setup(c),
      q(c.dtype, {c.batch, c.q_len, c.q_heads, c.head_dim}, c.q),
      k(c.dtype, {c.batch, c.k_len, c.kv_heads, c.head_dim}, c.k),
      v(c.v_dtype(), shape_of_v(c), c.v),
      o(c.o_dtype(), {c.batch, c.q_len, c.q_heads, c.value_columns()}, c.o),
      lse(TANDEM_FP32, {c.batch, c.q_len, c.q_heads, 1}, c.lse_layout),
      q_scale(TANDEM_FP32, shape_of_scales(c, c.eight_bit.q, c.q_len)),
      k_scale(TANDEM_FP32, shape_of_scales(c, c.eight_bit.k, c.k_len)),
      v_scale(TANDEM_FP32, shape_of_scales(c, c.eight_bit.v, c.k_len)),
      v_shift(TANDEM_FP32, {c.batch, 1, c.kv_heads, c.head_dim}),
      q_dot_k_shift(TANDEM_FP32, {c.batch, c.q_len, c.q_heads, 1}, {.row_gap = 3}),
      blocks(c.blocks, {c.batch, c.q_heads, c.q_len, c.k_len}) {
  const float of_row = c.dtype == TANDEM_INT8 ? deviation_of_integers : 1;
  q.fill_random(c.nearly_normal, c.seed * 3, of_row);
  k.fill_random(c.nearly_normal, c.seed * 3 + 1, of_row);
  v.fill_random(c.nearly_normal, c.seed * 3 + 2);
  if (!c.is_8_bit()) return;
  if (c.eight_bit.v_transposed) clear_tail(v, c.k_len);
  fill_scales(q_scale, c.seed, 1 / of_row), fill_scales(k_scale, c.seed + 1, 1 / of_row);
  fill_scales(v_scale, c.seed + 2, 1);
  v_shift.fill_random(c.nearly_normal, c.seed + 3), q_dot_k_shift.fill_random(c.nearly_normal, c.seed + 4);
}

core::ForwardProblem ForwardTensors::problem() const {
  core::ForwardProblem p{};
  p.q = q.view();
  p.k = k.view();
  p.v = v.view();
  p.o = o.view();
  if (setup.lse) p.lse = lse.view();
  p.blocks = blocks.view();
  if (setup.is_8_bit()) {
    const EightBitCase& own = setup.eight_bit;
    p.quantisation = {scales_of(own.q, q_scale),
                      scales_of(own.k, k_scale),
                      scales_of(own.v, v_scale),
                      own.v_transposed,
                      own.v_terms,
                      own.amplitude};
    if (own.v_shift) p.quantisation.v_shift = {v_shift.view()};
    if (own.q_dot_k_shift) p.quantisation.q_dot_k_shift = q_dot_k_shift.view();
  }
  set_scalars(p, setup);
  return p;
}

namespace {

/// Sets the first column of every row.
void set_first_column(HostTensor& tensor, float value) {
  const auto& shape = tensor.view().shape;
  for (std::int64_t b = 0; b < shape[0]; ++b)
    for (std::int64_t s = 0; s < shape[1]; ++s)
      for (std::int64_t h = 0; h < shape[2]; ++h) tensor.set(b, s, h, 0, value);
}

}  // namespace

Allowance allowance_of(const ForwardCase& c) {
  Allowance granted = allowance_of_o(c.dtype);
  granted.rounded_to = c.o_dtype();
  if (c.dtype != TANDEM_INT8) return granted;
  // A row's sum moves all of its columns.
  granted.alike = c.value_columns();
  // They are rounded once more then: to fp16, whose units are about as large as what moves them, also where
  // the standard has nothing to round.
  constexpr double rounding = 0x1p-11 * std::numbers::inv_sqrt3;
  if (c.o_dtype() == TANDEM_FP16) granted.relative = std::hypot(granted.relative, rounding);
  return granted;
}

void make_scores_equal(ForwardTensors& t, float q_value, float k_value) {
  for (HostTensor* tensor : {&t.q, &t.k, &t.v}) tensor->fill(0);
  set_first_column(t.q, q_value);
  set_first_column(t.k, k_value);
  for (std::int64_t b = 0; b < t.setup.batch; ++b)
    for (std::int64_t s = 0; s < t.setup.k_len / 2; ++s)
      for (std::int64_t h = 0; h < t.setup.kv_heads; ++h)
        for (std::int64_t e = 0; e < t.setup.value_columns(); ++e) t.v.set(b, s, h, e, 1);
}

std::int64_t spoil_unlisted(ForwardTensors& t) {
  const ForwardCase& c = t.setup;
  const core::BlockList list = t.blocks.view();
  const std::int64_t group = c.q_heads / c.kv_heads;
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto listed = [&](std::int64_t b, std::int64_t kv, std::int64_t key) {
    for (std::int64_t h = kv * group; h < (kv + 1) * group; ++h)
      for (std::int64_t i = 0; i < c.q_len; i += list.q_block)
        if (list.shows(b, h, i, key)) return true;
    return false;
  };
  std::int64_t spoilt = 0;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t kv = 0; kv < c.kv_heads; ++kv)
      for (std::int64_t key = 0; key < c.k_len; ++key) {
        if (listed(b, kv, key)) continue;
        ++spoilt;
        for (std::int64_t e = 0; e < c.head_dim; ++e) t.k.set(b, key, kv, e, nan);
        for (std::int64_t e = 0; e < c.value_columns(); ++e) t.v.set(b, key, kv, e, nan);
      }
  return spoilt;
}

void offset_scores(ForwardTensors& t, float q_value, float k_value) {
  set_first_column(t.q, q_value);
  set_first_column(t.k, k_value);
}

}  // namespace tandem::test
