#include "quantised_inputs.h"

#include <bit>

#include <tandem/eight_bit.hpp>

#include "call.h"

namespace tandem::cli {
namespace {

constexpr std::int64_t block = 128, key_group = 16;

/// Contiguous, in the order of its dimensions.
tandem_tensor dense(tandem_dtype dtype, const Shape& shape) {
  return {nullptr,
          dtype,
          {shape[0], shape[1], shape[2], shape[3]},
          {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
}

std::size_t count_of(const tandem_tensor& tensor) {
  return static_cast<std::size_t>(
      cli::count_of({tensor.shape[0], tensor.shape[1], tensor.shape[2], tensor.shape[3]}));
}

}  // namespace

EightBitMode parse_eight_bit_mode(const std::string& name) {
  return name == "fast"       ? EightBitMode::fast
         : name == "balanced" ? EightBitMode::balanced
                              : EightBitMode::accurate;
}

QuantisedInputs::QuantisedInputs(Place& place, tandem_forward_args& args, const EightBit& how,
                                 Exit if_invalid) {
  const EightBitMode mode = how.mode;
  tandem_quantize_args rows{}, values{};
  rows.struct_size = values.struct_size = sizeof rows;
  rows.backend = values.backend =
      args.backend == TANDEM_BACKEND_REFERENCE ? TANDEM_BACKEND_CPU : args.backend;
  rows.block = values.block = block;
  rows.hadamard = std::has_single_bit(static_cast<std::uint64_t>(args.q.shape[3])) ? 1 : 0;
  rows.seed = 1;
  rows.out.dtype = mode == EightBitMode::fast ? TANDEM_E4M3 : TANDEM_INT8;
  if (mode == EightBitMode::fast) rows.amplitude = scales_.qk_amplitude = score_amplitude(args.q.shape[3]);
  values.out.dtype = TANDEM_E4M3;
  values.layout = TANDEM_VALUES_BY_COLUMN;
  values.terms = scales_.v_terms = mode == EightBitMode::accurate ? 2 : 1;

  scales_.struct_size = sizeof scales_;
  scales_.q_block = scales_.k_block = scales_.v_block = block;
  scales_.v_layout = TANDEM_VALUES_BY_COLUMN;
  const tandem_tensor k_shift = shift_of(place, how.k_mean, inputs_[1]);
  rows.x = args.q;
  if (k_shift.data != nullptr) {
    rows.k_shift = k_shift;
    rows.q_dot_k_shift = dense(TANDEM_FP32, {args.q.shape[0], args.q.shape[1], args.q.shape[2], 1});
    dots_ = std::make_unique<Buffer>(place, count_of(rows.q_dot_k_shift) * sizeof(float) + 1);
    rows.q_dot_k_shift.data = dots_->data();
    scales_.q_dot_k_shift = rows.q_dot_k_shift;
  }
  tandem_quantize_args queries = rows;
  if (mode == EightBitMode::fast) queries.best_scale = 1, queries.block = scales_.q_block = 1;
  args.q = quantise(place, queries, inputs_[0], scales_.q, if_invalid);
  rows.k_shift = rows.q_dot_k_shift = {};
  rows.shift = k_shift;
  rows.x = args.k;
  args.k = quantise(place, rows, inputs_[1], scales_.k, if_invalid);
  values.x = args.v;
  values.shift = scales_.v_shift = shift_of(place, how.v_mean, inputs_[2]);
  args.v = quantise(place, values, inputs_[2], scales_.v, if_invalid);
  args.scales = &scales_;
}

tandem_tensor QuantisedInputs::shift_of(Place& place, const HostTensor& mean, Input& input) {
  if (mean.storage.empty()) return {};
  input.mean = uploaded(place, mean.storage);
  return mean.view(input.mean->data());
}

tandem_tensor QuantisedInputs::quantise(Place& place, tandem_quantize_args args, Input& input,
                                        tandem_tensor& scale, Exit if_invalid) {
  const auto [b, s, h, d] = args.x.shape;
  const std::int64_t keys = (s + key_group - 1) / key_group * key_group;
  const bool by_column = args.layout == TANDEM_VALUES_BY_COLUMN;
  args.out = dense(args.out.dtype, by_column ? Shape{b, args.terms * d, h, keys} : Shape{b, s, h, d});
  args.scale = dense(TANDEM_FP32, {b, (s + args.block - 1) / args.block, h, 1});
  input.bits = std::make_unique<Buffer>(place, count_of(args.out) + 1);
  input.scale = std::make_unique<Buffer>(place, count_of(args.scale) * sizeof(float) + 1);
  args.out.data = input.bits->data();
  args.scale.data = input.scale->data();
  require(tandem_quantize(&args, place.stream()), if_invalid);
  scale = args.scale;
  return args.out;
}

}  // namespace tandem::cli
