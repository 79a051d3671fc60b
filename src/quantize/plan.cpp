#include "quantize/plan.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "core/dtype.h"
#include "core/integers.h"
#include "hw/operand.h"
#include "hw/tensor_map.h"

namespace tandem::quantize {
namespace {

using core::QuantizeProblem;
using core::Status;
using core::Tensor;

std::int64_t token_blocks(const QuantizeProblem& problem) {
  return core::ceil_div(problem.length(), block_tokens);
}

std::int64_t tiles_of(const QuantizeProblem& problem) {
  return problem.batch() * problem.heads() * token_blocks(problem);
}

Status refuse(const std::string& what, const std::string& allowed) {
  return {TANDEM_UNSUPPORTED, what + "; the Hopper backend " + allowed};
}

/// Scales that are found belong to the tokens of one block of threads, the best ones to a token each.
Status check_scales(const QuantizeProblem& problem) {
  const Tensor& scale = problem.scale.values;
  const bool one_block = scale.shape[1] == 1;
  const std::int64_t tokens = problem.best_scale ? 1 : block_tokens;
  if (!one_block && (problem.best_scale ? problem.scale.block != 1 : problem.scale.block % tokens != 0))
    return refuse("block is " + std::to_string(problem.scale.block),
                  problem.best_scale ? "finds the best scale of each token; pass block = 1"
                                     : "takes multiples of 128 tokens");
  if (problem.scale_given) return {};
  const bool own = scale.shape[0] == problem.batch() && scale.shape[2] == problem.heads() &&
                   (one_block ? problem.length() <= tokens : problem.scale.block == tokens);
  if (own) return {};
  const std::string block = std::to_string(tokens);
  return refuse("scale has shape [" + std::to_string(scale.shape[0]) + ", " + std::to_string(scale.shape[1]) +
                    ", " + std::to_string(scale.shape[2]) + ", 1]",
                "finds a scale for each batch entry, head and block of " + block +
                    (problem.best_scale ? " token" : " tokens") + "; pass block = " + block +
                    ", or give the scales");
}

QuantizeVariant variant_of(const QuantizeProblem& problem) {
  const bool turns = problem.rotary.cos != nullptr;
  const bool shifts = problem.shift.given() || problem.k_shift.given();
  return {hw::operand_of(problem.x.dtype),
          static_cast<int>(problem.head_dim()),
          problem.by_column,
          problem.to_integers() ? hw::Operand::int8 : hw::Operand::e4m3,
          problem.terms,
          turns,
          problem.hadamard && !problem.by_column && !turns && !shifts,
          problem.best_scale};
}

QuantizeArguments make_arguments(const QuantizeProblem& problem) {
  const Tensor& scale = problem.scale.values;
  const std::int64_t blocks = std::max<std::int64_t>(1, token_blocks(problem));
  const std::int64_t of_scale =
      scale.shape[1] == 1 || problem.best_scale ? blocks : problem.scale.block / block_tokens;
  QuantizeArguments args{};
  args.out = core::TensorView::of(problem.out);
  args.scale = core::TensorView::of(scale);
  args.scale_block = core::Divisor(static_cast<int>(of_scale));
  args.heads = core::Divisor(static_cast<int>(problem.heads()));
  args.blocks = core::Divisor(static_cast<int>(blocks));
  args.tiles = static_cast<int>(tiles_of(problem));
  args.length = static_cast<int>(problem.length());
  args.padded = problem.by_column ? static_cast<int>(problem.out.shape[3]) : args.length;
  args.scale_given = problem.scale_given;
  args.amplitude = problem.amplitude;
  args.hadamard = core::HadamardView::of(problem.hadamard, problem.seed, problem.head_dim());
  args.rotary = core::RotaryView::of(problem.rotary);
  args.first_positions = problem.first_positions;
  args.shift = core::ShiftView::of(problem.shift, problem.heads());
  args.k_shift = core::ShiftView::of(problem.k_shift, problem.heads());
  args.q_dot_k_shift = core::TensorView::of(problem.q_dot_k_shift);
  return args;
}

}  // namespace

Status supported(const QuantizeProblem& problem) {
  if (problem.x.dtype == TANDEM_FP32) return refuse("x.dtype is fp32", "takes bf16 and fp16");
  const std::int64_t d = problem.head_dim();
  if (d != 64 && d != 128 && d != 256)
    return refuse("x.shape[3] (head dim) is " + std::to_string(d), "quantises head dims 64, 128 and 256");
  if (Status s = hw::check_tensor("x", problem.x); !s.ok()) return s;
  if (Status s = hw::check_tensor("out", problem.out); !s.ok()) return s;
  if (Status s = check_scales(problem); !s.ok()) return s;
  if (Status s = hw::check_rotary("rotary", problem.rotary); !s.ok()) return s;
  if (tiles_of(problem) > std::numeric_limits<int>::max())
    return refuse("batch * heads * ceil(s / 128) is more than 2^31", "takes less: quantise in pieces");
  return {};
}

launch::Record<Family> make_record(const QuantizeProblem& problem, int sm_count) {
  const QuantizeVariant variant = variant_of(problem);
  const std::int64_t blocks = std::min<std::int64_t>(tiles_of(problem), sm_count * variant.resident());
  launch::Record<Family> record{variant, static_cast<int>(blocks), make_arguments(problem)};
  record.request({"x", problem.x, {block_tokens}, &QuantizeArguments::x});
  return record;
}

}  // namespace tandem::quantize
