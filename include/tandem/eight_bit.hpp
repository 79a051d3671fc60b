// SPDX-License-Identifier: Apache-2.0
//
// 8-bit inputs in C++20: quantising, the forward over what it made, and decode over an 8-bit cache.
// docs/fp8.md says what to choose.
//
//   QuantizeOptions rows{.hadamard_seed = 1}, values{.layout = TANDEM_VALUES_BY_COLUMN};
//   attention_quantize(q, q8, q_scale, rows);  // and k the same; v with `values`
//   attention_forward(EightBitInputs{q8, k8, v8, {.q = q_scale, .k = k_scale, .v = v_scale,
//                     .v_layout = TANDEM_VALUES_BY_COLUMN}}, o);
//
// Finer: q and k as int8 (Int8Inputs), and values of two terms (QuantizeOptions::terms, Scales::v_terms).
#ifndef TANDEM_EIGHT_BIT_HPP
#define TANDEM_EIGHT_BIT_HPP

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>

#include <tandem/attention.hpp>

namespace tandem {

/// What 8-bit q, k and v are multiplied by: tandem_scales in types.h says what each part means. Tensors are
/// batch, blocks, heads, 1; without one all of its scales are 1.
struct Scales {
  std::optional<Tensor<const float>> q = std::nullopt, k = std::nullopt, v = std::nullopt;
  std::int64_t q_block = 128, k_block = 128,
               v_block = 128;  ///< tokens of a block, as QuantizeOptions; 0: all
  tandem_value_layout v_layout = TANDEM_VALUES_BY_KEY;
  int v_terms = 1;         ///< of values by column: 1 or 2
  float qk_amplitude = 0;  ///< of the elements of q and k none is larger; 0: not known
  std::optional<Tensor<const float>> v_shift = std::nullopt;        ///< batch, 1, heads, d: added to o
  std::optional<Tensor<const float>> q_dot_k_shift = std::nullopt;  ///< b, sq, q_heads, 1: for lse

  tandem_scales c_scales() const {
    tandem_scales scales{};
    scales.struct_size = sizeof(scales);
    if (q) scales.q = q->c_tensor();
    if (k) scales.k = k->c_tensor();
    if (v) scales.v = v->c_tensor();
    scales.q_block = q_block;
    scales.k_block = k_block;
    scales.v_block = v_block;
    scales.v_layout = v_layout;
    scales.v_terms = v_terms;
    scales.qk_amplitude = qk_amplitude;
    if (v_shift) scales.v_shift = v_shift->c_tensor();
    if (q_dot_k_shift) scales.q_dot_k_shift = q_dot_k_shift->c_tensor();
    return scales;
  }
};

/// The largest e4m3 number that q and k of a head dim may have so that fp16 holds every score: for
/// QuantizeOptions::amplitude and Scales::qk_amplitude.
constexpr float score_amplitude(std::int64_t head_dim) {
  constexpr std::int64_t largest_fp16 = 65504, largest_e4m3 = 448;
  std::int64_t most = 0;
  while (most < largest_e4m3 && head_dim * (most + 1) * (most + 1) <= largest_fp16) ++most;
  // An e4m3 number has four bits.
  const auto step = static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(most)) / 8);
  return static_cast<float>(step > 1 ? most / step * step : most);
}

struct EightBitInputs {
  Tensor<const E4m3> q, k, v;  ///< b, sq, q_heads, d; b, sk, kv_heads, d; v as scales.v_layout says
  Scales scales = {};
};

/// The same with finer scores, for as many bytes. On Hopper v lies by column.
struct Int8Inputs {
  Tensor<const std::int8_t> q, k;
  Tensor<const E4m3> v;
  Scales scales = {};
};

/// Either.
template <typename In>
concept InputsOf8Bits = std::same_as<In, EightBitInputs> || std::same_as<In, Int8Inputs>;

namespace detail {

/// Arguments of a forward call over 8 bits.
struct EightBitCall {
  tandem_scales scales;
  ForwardCall call;

  template <InputsOf8Bits In, MutableElement T>
  EightBitCall(const In& in, const Tensor<T>& o, const ForwardOptions& options)
      : scales(in.scales.c_scales()) {
    fill<E4m3, T>(call, {}, {}, in.v, o, options);
    call.args.q = in.q.c_tensor();
    call.args.k = in.k.c_tensor();
    call.args.scales = &scales;
  }
};

}  // namespace detail

/// attention_forward of 8-bit inputs. o: b, sq, q_heads, d of bf16 or fp16; on the CPU also of fp32.
template <InputsOf8Bits In, MutableElement T>
Status attention_forward(const In& in, const Tensor<T>& o, const ForwardOptions& options = {}) {
  const detail::EightBitCall own(in, o, options);
  return Status(
      tandem_forward(&own.call.args, options.workspace.data(), options.workspace.size(), options.stream));
}

/// Sets `bytes` to the workspace that it needs.
template <InputsOf8Bits In, MutableElement T>
Status attention_forward_workspace(const In& in, const Tensor<T>& o, const ForwardOptions& options,
                                   std::size_t& bytes) {
  const detail::EightBitCall own(in, o, options);
  return Status(tandem_forward_workspace(&own.call.args, &bytes));
}

/// An element of a cache of 8 bits.
template <typename T>
concept EightBitElement = std::same_as<T, E4m3> || std::same_as<T, std::int8_t>;

/// A cache of 8 bits: tandem_cache_scales in tandem.h says what its scales mean. Per token they are entries
/// (or pages), capacity (or page_size), kv_heads, 1, and written where tokens are appended; else batch, 1,
/// heads, 1. Without one all of its scales are 1.
template <EightBitElement E>
struct CacheOfEightBits {
  Cache<E> cache;
  std::optional<Tensor<float>> k_scale = std::nullopt, v_scale = std::nullopt;
  bool per_token = false;
  /// Given: keys are kept times the Hadamard matrix with signs from this seed; the head dim is a power of
  /// two.
  std::optional<std::uint64_t> hadamard_seed = std::nullopt;
};
using EightBitCache = CacheOfEightBits<E4m3>;
using Int8Cache = CacheOfEightBits<std::int8_t>;

namespace detail {

/// Arguments of a decode call over 8 bits.
template <MutableElement T>
struct EightBitStep {
  tandem_cache cache;
  tandem_cache_scales scales{};
  tandem_decode_args args;

  template <EightBitElement E>
  EightBitStep(const Input<T>& q, const CacheOfEightBits<E>& given, const Tensor<T>& o,
               const DecodeOptions<T>& options)
      : cache(given.cache.c_cache()), args(decode_args<T>(q, cache, o, options)) {
    scales.struct_size = sizeof(scales);
    if (given.k_scale) scales.k = given.k_scale->c_tensor();
    if (given.v_scale) scales.v = given.v_scale->c_tensor();
    scales.per_token = given.per_token ? 1 : 0;
    scales.hadamard = given.hadamard_seed ? 1 : 0;
    scales.seed = given.hadamard_seed.value_or(0);
    args.scales = &scales;
  }
  EightBitStep(const EightBitStep&) = delete;
};

}  // namespace detail

/// attention_decode over a cache of 8 bits; q, o and what is appended have 16 (on the CPU also 32).
template <MutableElement T, EightBitElement E = E4m3>
Status attention_decode(const detail::Input<T>& q, const CacheOfEightBits<E>& cache, const Tensor<T>& o,
                        const detail::DecodeOptionsOf<T>& options = {}) {
  const detail::EightBitStep<T> step(q, cache, o, options);
  return Status(
      tandem_decode(&step.args, options.workspace.data(), options.workspace.size(), options.stream));
}

/// Sets `bytes` to the workspace that it needs.
template <MutableElement T, EightBitElement E = E4m3>
Status attention_decode_workspace(const detail::Input<T>& q, const CacheOfEightBits<E>& cache,
                                  const Tensor<T>& o, const detail::DecodeOptionsOf<T>& options,
                                  std::size_t& bytes) {
  const detail::EightBitStep<T> step(q, cache, o, options);
  return Status(tandem_decode_workspace(&step.args, &bytes));
}

/// Sets `bytes` to the size of its plan.
template <MutableElement T, EightBitElement E = E4m3>
Status attention_decode_plan_size(const detail::Input<T>& q, const CacheOfEightBits<E>& cache,
                                  const Tensor<T>& o, const detail::DecodeOptionsOf<T>& options,
                                  std::size_t& bytes) {
  const detail::EightBitStep<T> step(q, cache, o, options);
  return Status(tandem_decode_plan_size(&step.args, &bytes));
}

/// Makes that plan.
template <MutableElement T, EightBitElement E = E4m3>
Status attention_decode_plan(const detail::Input<T>& q, const CacheOfEightBits<E>& cache, const Tensor<T>& o,
                             const detail::DecodeOptionsOf<T>& options, std::span<std::byte> plan) {
  const detail::EightBitStep<T> step(q, cache, o, options);
  return Status(tandem_decode_plan(&step.args, plan.data(), plan.size(), options.stream));
}

struct QuantizeOptions {
  tandem_value_layout layout = TANDEM_VALUES_BY_KEY;  ///< of the result; q and k are by key
  std::int64_t block = 128;                           ///< tokens that share a scale; 0: all
  /// Given: rows are multiplied by a Hadamard matrix with signs from this seed, one for q and k.
  std::optional<std::uint64_t> hadamard_seed = std::nullopt;
  tandem_backend backend = TANDEM_BACKEND_AUTO;
  /// A cudaStream_t, for Hopper.
  void* stream = nullptr;
  int terms = 1;                                ///< of values by column: 1 or 2
  std::optional<Rotary> rotary = std::nullopt;  ///< turns rows first; by key only
  /// The position of each entry's first token, in the backend's memory; nullptr: 0.
  const std::int32_t* first_positions = nullptr;
  float amplitude = 0;  ///< of e4m3, what scales bring the largest magnitude to; 0: 448
  /// Batch, 1, heads, d: taken off every row, ahead of the matrix. Of v it is Scales::v_shift.
  std::optional<Tensor<const float>> shift = std::nullopt;
  /// Of q: the shift of k, and b, s, heads, 1, where each row's product with it is written; both or neither.
  std::optional<Tensor<const float>> k_shift = std::nullopt;
  std::optional<Tensor<float>> q_dot_k_shift = std::nullopt;
  /// Of e4m3 by key: each scale is the best of four, 2^(i/4) times the least power of two; on Hopper block
  /// is 1.
  bool best_scale = false;
};

/// An element type that quantising writes: int8 by key only.
template <typename T>
concept ElementOf8Bits = std::same_as<T, E4m3> || std::same_as<T, std::int8_t>;

namespace detail {

template <typename T, ElementOf8Bits O, typename S>
Status quantize(const Tensor<T>& x, const Tensor<O>& out, const Tensor<S>& scale,
                const QuantizeOptions& options) {
  tandem_quantize_args args{};
  args.struct_size = sizeof(args);
  args.backend = options.backend;
  args.x = x.c_tensor();
  args.out = out.c_tensor();
  args.layout = options.layout;
  args.scale = scale.c_tensor();
  args.block = options.block;
  args.scale_given = std::is_const_v<S> ? 1 : 0;
  args.hadamard = options.hadamard_seed ? 1 : 0;
  args.seed = options.hadamard_seed.value_or(0);
  args.terms = options.terms;
  if (options.rotary) args.rotary = &options.rotary->c_rotary();
  args.first_positions = options.first_positions;
  args.amplitude = options.amplitude;
  if (options.shift) args.shift = options.shift->c_tensor();
  if (options.k_shift) args.k_shift = options.k_shift->c_tensor();
  if (options.q_dot_k_shift) args.q_dot_k_shift = options.q_dot_k_shift->c_tensor();
  args.best_scale = options.best_scale ? 1 : 0;
  return Status(tandem_quantize(&args, options.stream));
}

}  // namespace detail

/// Quantises x, b, s, heads, d, in one pass, and writes the scales that it finds: b, blocks, heads, 1. On
/// Hopper it only enqueues one kernel on the stream.
template <Element T, ElementOf8Bits O>
Status attention_quantize(const Tensor<T>& x, const Tensor<O>& out, const Tensor<float>& scale,
                          const QuantizeOptions& options = {}) {
  return detail::quantize(x, out, scale, options);
}

/// The same by scales that are known.
template <Element T, ElementOf8Bits O>
Status attention_quantize_by(const Tensor<T>& x, const Tensor<O>& out, const Tensor<const float>& scale,
                             const QuantizeOptions& options = {}) {
  return detail::quantize(x, out, scale, options);
}

}  // namespace tandem

#endif  // TANDEM_EIGHT_BIT_HPP
