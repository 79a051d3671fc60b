// 8-bit inputs on the CPU: what they stand for, in fp32, by the fast backend. Right, and no faster than fp32.
#include "cpu/forward_eight_bit.h"

#include <algorithm>
#include <cstdint>

#include "cpu/element.h"
#include "cpu/forward.h"
#include "cpu/parallel.h"
#include "cpu/rows.h"
#include "cpu/tiling.h"

namespace tandem::cpu {
namespace {

/// Elements of tensors may have as many bytes as fit 63 bits, since their rows may all be one.
__extension__ using Wide = unsigned __int128;

std::size_t floats_of(const core::Tensor& tensor) {
  const std::int64_t count = tensor.shape[0] * tensor.shape[1] * tensor.shape[2] * tensor.shape[3];
  return whole_blocks(static_cast<std::size_t>(count));
}

/// A dense tensor of b, s, h, d at `memory`.
core::Tensor dense(float* memory, const std::int64_t (&shape)[4]) {
  return {memory,
          TANDEM_FP32,
          {shape[0], shape[1], shape[2], shape[3]},
          {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
}

/// The same problem in fp32, its inputs and its output at `memory`.
core::ForwardProblem widened(const core::ForwardProblem& p, float* memory) {
  core::ForwardProblem wide = p;
  for (auto [own, like] : {std::pair{&wide.q, &p.q}, {&wide.k, &p.k}, {&wide.v, &p.k}, {&wide.o, &p.q}}) {
    *own = dense(memory, like->shape);
    if (memory != nullptr) memory += floats_of(*own);
  }
  wide.quantisation = {};
  return wide;
}

/// Calls visit(b, s, h, row) for the rows of a dense tensor, on all cores.
template <typename Visit>
void for_each_row(const core::Tensor& tensor, const Visit& visit) {
  for_each_task(tensor.shape[0] * tensor.shape[1], [&](std::int64_t task, int) {
    const std::int64_t b = task / tensor.shape[1], s = task % tensor.shape[1];
    for (std::int64_t h = 0; h < tensor.shape[2]; ++h) visit(b, s, h, core::row_of<float>(tensor, b, s, h));
  });
}

}  // namespace

std::size_t forward_eight_bit_workspace(const core::ForwardProblem& p) {
  const core::ForwardProblem wide = widened(p, nullptr);
  Wide bytes = forward_workspace(wide);
  for (const core::Tensor* tensor : {&wide.q, &wide.k, &wide.v, &wide.o})
    bytes += Wide{floats_of(*tensor)} * sizeof(float);
  return static_cast<std::size_t>(std::min(bytes, Wide{SIZE_MAX}));
}

void forward_eight_bit(const core::ForwardProblem& p, void* workspace) {
  const core::ForwardProblem wide = widened(p, static_cast<float*>(workspace));
  const std::int64_t d = p.head_dim();
  const auto widen = [&](const core::Tensor& to, void (*load)(const core::ForwardProblem&, std::int64_t,
                                                              std::int64_t, std::int64_t, std::span<float>)) {
    for_each_row(to, [&](std::int64_t b, std::int64_t s, std::int64_t h, float* row) {
      load(p, b, s, h, {row, static_cast<std::size_t>(d)});
    });
  };
  widen(wide.q, load_query<float>);
  widen(wide.k, load_key<float>);
  widen(wide.v, load_value<float>);
  float* behind = static_cast<float*>(wide.o.data) + floats_of(wide.o);
  forward(wide, behind);
  for_each_row(wide.o, [&](std::int64_t b, std::int64_t s, std::int64_t h, const float* row) {
    for (std::int64_t i = 0; i < d; ++i) store(p.o, b, s, h, i, row[i]);
    if (p.lse.data != nullptr)
      *core::row_of<float>(p.lse, b, s, h) += p.scale * p.quantisation.dot_of_row(b, s, h);
  });
}

}  // namespace tandem::cpu
