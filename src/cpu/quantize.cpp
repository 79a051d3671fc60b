#include "cpu/quantize.h"

#include <algorithm>
#include <cmath>

#include "cpu/element.h"
#include "cpu/parallel.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t max_head_dim = 256;

/// A row of x, rotated where that is asked for.
struct Row {
  float value[max_head_dim];

  Row(const core::QuantizeProblem& p, std::int64_t b, std::int64_t s, std::int64_t h) {
    const std::int64_t d = p.head_dim();
    for (std::int64_t i = 0; i < d; ++i) value[i] = static_cast<float>(load(p.x, b, s, h, i));
    if (p.hadamard) rotate(p, d);
  }

 private:
  void rotate(const core::QuantizeProblem& p, std::int64_t d) {
    for (std::int64_t i = 0; i < d; ++i)
      if (core::changes_sign(p.seed, static_cast<int>(i))) value[i] = -value[i];
    for (std::int64_t distance = 1; distance < d; distance *= 2) {
      for (std::int64_t i = 0; i < d; ++i) {
        if ((i & distance) != 0) continue;
        const float low = value[i], high = value[i + distance];
        value[i] = low + high;
        value[i + distance] = low - high;
      }
    }
    const float to_unit = 1.f / std::sqrt(static_cast<float>(d));
    for (std::int64_t i = 0; i < d; ++i) value[i] = value[i] * to_unit + 0.f;  // -0 becomes 0
  }
};

/// Sizes [begin, end) of a dimension of x that share one scale at `at`.
struct Range {
  std::int64_t begin, end;
};
Range shared_range(std::int64_t scales, std::int64_t size, std::int64_t at) {
  return scales == 1 ? Range{0, size} : Range{at, at + 1};
}

/// What scale [b, block, h] belongs to.
struct ScaledPart {
  Range batch, tokens, heads;

  ScaledPart(const core::QuantizeProblem& p, std::int64_t b, std::int64_t block, std::int64_t h)
      : batch(shared_range(p.scale.values.shape[0], p.batch(), b)),
        tokens(p.scale.values.shape[1] == 1
                   ? Range{0, p.length()}
                   : Range{block * p.scale.block, std::min(p.length(), (block + 1) * p.scale.block)}),
        heads(shared_range(p.scale.values.shape[2], p.heads(), h)) {}

  template <typename Visit>
  void for_each_row(const core::QuantizeProblem& p, const Visit& visit) const {
    for (std::int64_t b = batch.begin; b < batch.end; ++b)
      for (std::int64_t s = tokens.begin; s < tokens.end; ++s)
        for (std::int64_t h = heads.begin; h < heads.end; ++h) visit(b, s, h, Row(p, b, s, h));
  }
};

void quantize_part(const core::QuantizeProblem& p, const ScaledPart& part, float& scale) {
  if (!p.scale_given) {
    float largest = 0;
    part.for_each_row(p, [&](std::int64_t, std::int64_t, std::int64_t, const Row& row) {
      for (std::int64_t i = 0; i < p.head_dim(); ++i) largest = std::fmax(largest, std::fabs(row.value[i]));
    });
    scale = core::scale_for(largest);
  }
  const float inverse = p.scale_given ? 1.f / scale : core::inverse_of(scale);
  part.for_each_row(p, [&](std::int64_t b, std::int64_t s, std::int64_t h, const Row& row) {
    for (std::int64_t i = 0; i < p.head_dim(); ++i) {
      const core::E4m3 element = core::E4m3::from(row.value[i] * inverse);
      if (p.by_column)
        core::row_of<core::E4m3>(p.out, b, i, h)[core::position_of_key(s)] = element;
      else
        core::row_of<core::E4m3>(p.out, b, s, h)[i] = element;
    }
  });
}

/// Outputs by column have zeros behind the last key.
void clear_tail(const core::QuantizeProblem& p) {
  const std::int64_t begin = p.length() / core::key_group * core::key_group;
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t i = 0; i < p.head_dim(); ++i)
      for (std::int64_t h = 0; h < p.heads(); ++h)
        for (std::int64_t at = begin; at < p.out.shape[3]; ++at)
          if (core::key_of_position(at) >= p.length()) core::row_of<core::E4m3>(p.out, b, i, h)[at] = {0};
}

}  // namespace

void quantize(const core::QuantizeProblem& p) {
  const core::Tensor& scale = p.scale.values;
  for_each_task(scale.shape[0] * scale.shape[1] * scale.shape[2], [&](std::int64_t task, int) {
    const std::int64_t h = task % scale.shape[2], above = task / scale.shape[2];
    const std::int64_t b = above / scale.shape[1], block = above % scale.shape[1];
    quantize_part(p, {p, b, block, h}, *core::row_of<float>(scale, b, block, h));
  });
  if (p.by_column) clear_tail(p);
}

}  // namespace tandem::cpu
