#include "tests/support/forward_case.h"

#include <cmath>

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

/// All of a problem but its tensors.
void set_scalars(core::ForwardProblem& p, const ForwardCase& c) {
  p.mask = c.mask;
  p.scale = c.scale > 0 ? c.scale : 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  p.softcap = c.softcap;
  p.overlap = c.overlap;
  p.turn = c.turn;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const ForwardCase& c) {
  out << core::name_of(c.dtype) << " b" << c.batch << " sq" << c.q_len << " sk" << c.k_len << " h"
      << c.q_heads << "/" << c.kv_heads << " d" << c.head_dim << " left ";
  print_limit(out, c.mask.left);
  out << " right ";
  print_limit(out, c.mask.right);
  out << " scale " << c.scale << " softcap " << c.softcap << (c.lse ? " lse" : "") << " overlap " << c.overlap
      << " turn " << c.turn << " seed " << c.seed;
  return out << " layouts q " << c.q << " k " << c.k << " v " << c.v << " o " << c.o << " lse "
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

tandem_mask to_c(const core::Mask& mask) {
  if (mask.is_full()) return Mask::full().c_mask();
  const auto limit = [](std::int64_t keys) {
    return keys == core::Mask::unlimited ? TANDEM_UNLIMITED : keys;
  };
  if (mask.left == core::Mask::unlimited && mask.right == 0) return Mask::causal().c_mask();
  return Mask::window(limit(mask.left), limit(mask.right)).c_mask();
}

ForwardArgs::ForwardArgs(const ForwardCase& c)
    : mask(to_c(c.mask)), study{sizeof(study), c.overlap, c.turn, TANDEM_DECODE_AUTO} {
  args.struct_size = sizeof(args);
  args.mask = &mask;
  args.scale = c.scale;
  args.softcap = c.softcap;
  args.study = &study;
}

core::ForwardProblem shapes_of(const ForwardCase& c) {
  core::ForwardProblem p{};
  p.q = p.o = {nullptr, c.dtype, {c.batch, c.q_len, c.q_heads, c.head_dim}, {}};
  p.k = p.v = {nullptr, c.dtype, {c.batch, c.k_len, c.kv_heads, c.head_dim}, {}};
  set_scalars(p, c);
  return p;
}

ForwardTensors::ForwardTensors(const ForwardCase& c)
    : setup(c),
      q(c.dtype, {c.batch, c.q_len, c.q_heads, c.head_dim}, c.q),
      k(c.dtype, {c.batch, c.k_len, c.kv_heads, c.head_dim}, c.k),
      v(c.dtype, {c.batch, c.k_len, c.kv_heads, c.head_dim}, c.v),
      o(c.dtype, {c.batch, c.q_len, c.q_heads, c.head_dim}, c.o),
      lse(TANDEM_FP32, {c.batch, c.q_len, c.q_heads, 1}, c.lse_layout) {
  q.fill_normal(c.seed * 3);
  k.fill_normal(c.seed * 3 + 1);
  v.fill_normal(c.seed * 3 + 2);
}

core::ForwardProblem ForwardTensors::problem() const {
  core::ForwardProblem p{};
  p.q = q.view();
  p.k = k.view();
  p.v = v.view();
  p.o = o.view();
  if (setup.lse) p.lse = lse.view();
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

void make_scores_equal(ForwardTensors& t, float q_value, float k_value) {
  for (HostTensor* tensor : {&t.q, &t.k, &t.v}) tensor->fill(0);
  set_first_column(t.q, q_value);
  set_first_column(t.k, k_value);
  for (std::int64_t b = 0; b < t.setup.batch; ++b)
    for (std::int64_t s = 0; s < t.setup.k_len / 2; ++s)
      for (std::int64_t h = 0; h < t.setup.kv_heads; ++h)
        for (std::int64_t e = 0; e < t.setup.head_dim; ++e) t.v.set(b, s, h, e, 1);
}

void offset_scores(ForwardTensors& t, float q_value, float k_value) {
  set_first_column(t.q, q_value);
  set_first_column(t.k, k_value);
}

}  // namespace tandem::test
