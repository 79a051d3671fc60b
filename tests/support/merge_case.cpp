#include "tests/support/merge_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <sstream>

#include "core/dtype.h"
#include "tests/support/compare.h"

namespace tandem::test {
namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

float rounded(tandem_dtype dtype, float value) {
  if (dtype == TANDEM_BF16) return static_cast<float>(core::Bf16::from(value));
  return dtype == TANDEM_FP16 ? static_cast<float>(core::Fp16::from(value)) : value;
}

float element(const core::Tensor& t, std::int64_t offset) {
  if (t.dtype == TANDEM_BF16) return static_cast<float>(static_cast<const core::Bf16*>(t.data)[offset]);
  if (t.dtype == TANDEM_FP16) return static_cast<float>(static_cast<const core::Fp16*>(t.data)[offset]);
  return static_cast<const float*>(t.data)[offset];
}

/// Fills the logarithms, and those rows of o_parts that have one.
void fill(MergeTensors& t) {
  const MergeCase& c = t.setup;
  Random random(c.seed);
  std::normal_distribution<float> normal;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t s = 0; s < c.length; ++s)
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const bool blind = random() % 8 == 0;
        const float scale = random() % 4 == 0 ? 60.f : 3.f;
        for (std::int64_t part = 0; part < c.parts; ++part) {
          const std::int64_t entry = part * c.batch + b;
          const bool seen = !blind && random() % 4 != 0;
          t.lse_parts.set(entry, s, h, 0, seen ? scale * normal(random) : -infinity);
          for (std::int64_t i = 0; seen && i < c.head_dim; ++i) t.o_parts.set(entry, s, h, i, normal(random));
        }
      }
}

/// The first part of a tensor of all parts.
core::Tensor first_part(const core::Tensor& all, std::int64_t batch) {
  core::Tensor part = all;
  part.shape[0] = batch;
  if (batch == 1) part.stride[0] = 0;
  return part;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const MergeCase& c) {
  return out << "merge " << core::name_of(c.in) << " to " << core::name_of(c.out) << ", parts " << c.parts
             << ", batch " << c.batch << ", length " << c.length << ", heads " << c.heads << ", head dim "
             << c.head_dim << (c.lse ? ", lse" : "") << ", seed " << c.seed;
}

MergeCase random_merge_case(std::uint64_t seed) {
  Random random(seed);
  const auto up_to = [&](std::uint64_t most) { return static_cast<std::int64_t>(random() % (most + 1)); };
  MergeCase c;
  c.in = static_cast<tandem_dtype>(TANDEM_BF16 + up_to(2));
  c.out = static_cast<tandem_dtype>(TANDEM_BF16 + up_to(2));
  c.parts = random() % 4 == 0 ? up_to(40) : up_to(5);
  c.batch = 1 + up_to(2), c.length = 1 + up_to(8), c.heads = 1 + up_to(4);
  c.head_dim = 8 * (1 + (random() % 4 == 0 ? up_to(70) : up_to(31)));
  c.lse = random() % 4 != 0;
  for (Layout* layout : {&c.o_parts, &c.lse_parts, &c.o, &c.lse_layout}) *layout = random_tma_layout(random);
  c.seed = seed;
  return c;
}

MergeTensors::MergeTensors(const MergeCase& c)
    : setup(c),
      o_parts(c.in, {c.parts * c.batch, c.length, c.heads, c.head_dim}, c.o_parts),
      lse_parts(TANDEM_FP32, {c.parts * c.batch, c.length, c.heads, 1}, c.lse_parts),
      o(c.out, {c.batch, c.length, c.heads, c.head_dim}, c.o),
      lse(TANDEM_FP32, {c.batch, c.length, c.heads, 1}, c.lse_layout) {
  fill(*this);
}

core::MergeProblem MergeTensors::problem() const {
  return problem(o_parts.view(), lse_parts.view(), o.view(), lse.view());
}

core::MergeProblem MergeTensors::problem(const core::Tensor& all_o, const core::Tensor& all_lse,
                                         const core::Tensor& to, const core::Tensor& to_lse) const {
  return {.parts = setup.parts,
          .o_parts = first_part(all_o, setup.batch),
          .lse_parts = first_part(all_lse, setup.batch),
          .o_part_stride = setup.batch * all_o.stride[0],
          .lse_part_stride = setup.batch * all_lse.stride[0],
          .o = to,
          .lse = setup.lse ? to_lse : core::Tensor{}};
}

tandem_merge_args to_c(const core::MergeProblem& problem) {
  tandem_merge_args args{};
  args.struct_size = sizeof(args);
  args.parts = problem.parts;
  args.o_parts = problem.o_parts;
  args.o_part_stride = problem.o_part_stride;
  args.lse_parts = problem.lse_parts;
  args.lse_part_stride = problem.lse_part_stride;
  args.o = problem.o;
  args.lse = problem.lse;
  return args;
}

ForwardValues standard_merge(const core::MergeProblem& p) {
  ForwardValues values;
  for (std::int64_t row = 0; row < p.rows(); ++row) {
    const std::int64_t at[] = {row / p.heads() / p.length(), row / p.heads() % p.length(), row % p.heads()};
    const auto offset = [&](const core::Tensor& t, std::int64_t part_stride, std::int64_t part) {
      return part * part_stride + at[0] * t.stride[0] + at[1] * t.stride[1] + at[2] * t.stride[2];
    };
    std::vector<float> lse(static_cast<std::size_t>(p.parts)), sums(static_cast<std::size_t>(p.head_dim()));
    for (std::size_t part = 0; part < lse.size(); ++part)
      lse[part] =
          element(p.lse_parts, offset(p.lse_parts, p.lse_part_stride, static_cast<std::int64_t>(part)));
    const float row_max = lse.empty() ? -infinity : *std::max_element(lse.begin(), lse.end());
    float row_sum = 0;
    for (const float l : lse) row_sum += row_max == -infinity ? 0 : std::exp(l - row_max);
    const float merged = row_max == -infinity ? -infinity : row_max + std::log(row_sum);
    for (std::size_t part = 0; part < lse.size(); ++part) {
      if (lse[part] == -infinity) continue;
      const std::int64_t from = offset(p.o_parts, p.o_part_stride, static_cast<std::int64_t>(part));
      for (std::size_t i = 0; i < sums.size(); ++i)
        sums[i] += std::exp(lse[part] - merged) * element(p.o_parts, from + static_cast<std::int64_t>(i));
    }
    for (const float sum : sums) values.o.push_back(rounded(p.o.dtype, sum));
    values.lse.push_back(merged);
  }
  return values;
}

std::string merge_failure(const MergeTensors& after, const ForwardValues& reference) {
  const ForwardValues standard = standard_merge(after.problem());
  std::ostringstream failure;
  if (const Comparison o = compare(after.o.values(), standard.o, reference.o); !o)
    failure << "o: " << o << "; ";
  if (!after.o.guards_intact()) failure << "cells outside of o were written; ";
  if (!after.setup.lse) {
    if (!after.lse.untouched()) failure << "lse was written; ";
    return failure.str();
  }
  if (const Comparison lse = compare(after.lse.values(), standard.lse, reference.lse); !lse)
    failure << "lse: " << lse << "; ";
  if (!after.lse.guards_intact()) failure << "cells outside of lse were written; ";
  return failure.str();
}

}  // namespace tandem::test
