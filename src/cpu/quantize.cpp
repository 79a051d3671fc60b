#include "cpu/quantize.h"

#include <algorithm>
#include <cmath>

#include "cpu/element.h"
#include "cpu/hadamard.h"
#include "cpu/parallel.h"

namespace tandem::cpu {
namespace {

constexpr std::int64_t most_quantised_columns = 256;

/// A row of x: rotated, without its shift and times the matrix, where that is asked for.
struct Row {
  float value[most_quantised_columns];
  float dot = 0;  ///< with the keys' shift

  Row(const core::QuantizeProblem& p, std::int64_t b, std::int64_t s, std::int64_t h) {
    const std::int64_t d = p.head_dim();
    for (std::int64_t i = 0; i < d; ++i) value[i] = static_cast<float>(load(p.x, b, s, h, i));
    if (p.rotary.cos != nullptr)
      turn(p.rotary, (p.first_positions == nullptr ? 0 : p.first_positions[b]) + s);
    if (const float* shift = p.shift.of(b, h, p.heads()))
      for (std::int64_t i = 0; i < d; ++i) value[i] -= shift[i];
    if (const float* shift = p.k_shift.of(b, h, p.heads()))
      for (std::int64_t i = 0; i < d; ++i) dot = std::fma(value[i], shift[i], dot);
    if (p.hadamard) multiply_by_hadamard(std::span(value, static_cast<std::size_t>(d)), p.seed);
  }

 private:
  /// As tile/rotary.h: pairs become x cos - y sin, x sin + y cos.
  void turn(const core::Rotary& rotary, std::int64_t position) {
    const std::int64_t half = rotary.dim / 2,
                       nearest = std::clamp<std::int64_t>(position, 0, rotary.positions - 1);
    const auto angle = [&](const void* table, std::int64_t pair) {
      const core::Tensor angles{const_cast<void*>(table), rotary.dtype, {}, {0, 0, half, 1}};
      return static_cast<float>(load(angles, 0, 0, nearest, pair));
    };
    for (std::int64_t pair = 0; pair < half; ++pair) {
      float& x = value[rotary.interleaved ? 2 * pair : pair];
      float& y = value[rotary.interleaved ? 2 * pair + 1 : pair + half];
      const float cos = angle(rotary.cos, pair), sin = angle(rotary.sin, pair), old_x = x;
      x = std::fma(old_x, cos, -y * sin);
      y = std::fma(y, cos, old_x * sin);
    }
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

float scale_of(const core::QuantizeProblem& p, float largest) {
  return p.to_integers() ? core::int8_scale_for(largest) : core::scale_for(largest, p.amplitude);
}

/// Rounds element i of a row, x * inverse, to all of its terms.
void store_element(const core::QuantizeProblem& p, const std::int64_t (&row)[3], std::int64_t i, float x,
                   float inverse) {
  const auto [b, s, h] = row;
  if (!p.by_column) return store(p.out, b, s, h, i, x * inverse);
  const auto store_term = [&, b = b, s = s, h = h](int term, float value) {
    const core::E4m3 element = core::E4m3::from(value);
    core::row_of<core::E4m3>(p.out, b, term * p.head_dim() + i, h)[core::position_of_key(s)] = element;
    return static_cast<float>(element);
  };
  const float first = store_term(0, x * inverse);
  if (p.terms == 2) store_term(1, std::fma(x, inverse, -first));
}

/// Of core::scale_choice times `least` the one with the least squared error.
float best_scale(const core::QuantizeProblem& p, const ScaledPart& part, float least) {
  double errors[core::scale_choices] = {};
  part.for_each_row(p, [&](std::int64_t, std::int64_t, std::int64_t, const Row& row) {
    for (std::int64_t i = 0; i < p.head_dim(); ++i)
      for (int choice = 0; choice < core::scale_choices; ++choice) {
        const float scale = least * core::scale_choice(choice);
        const auto rounded = static_cast<double>(static_cast<float>(core::E4m3::from(row.value[i] / scale)));
        const double error = rounded * scale - row.value[i];
        errors[choice] += error * error;
      }
  });
  const auto best = std::ranges::min_element(errors) - std::begin(errors);
  return least * core::scale_choice(static_cast<int>(best));
}

void quantize_part(const core::QuantizeProblem& p, const ScaledPart& part, float& scale) {
  if (!p.scale_given) {
    float largest = 0;
    part.for_each_row(p, [&](std::int64_t, std::int64_t, std::int64_t, const Row& row) {
      for (std::int64_t i = 0; i < p.head_dim(); ++i) largest = std::fmax(largest, std::fabs(row.value[i]));
    });
    scale = scale_of(p, largest);
    if (p.best_scale) scale = best_scale(p, part, scale);
  }
  const float inverse = 1.f / scale;
  part.for_each_row(p, [&](std::int64_t b, std::int64_t s, std::int64_t h, const Row& row) {
    for (std::int64_t i = 0; i < p.head_dim(); ++i) store_element(p, {b, s, h}, i, row.value[i], inverse);
    if (p.k_shift.given()) *core::row_of<float>(p.q_dot_k_shift, b, s, h) = row.dot;
  });
}

/// Outputs by column have zeros behind the last key.
void clear_tail(const core::QuantizeProblem& p) {
  const std::int64_t begin = p.length() / core::key_group * core::key_group;
  for (std::int64_t b = 0; b < p.batch(); ++b)
    for (std::int64_t i = 0; i < p.out.shape[1]; ++i)
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
