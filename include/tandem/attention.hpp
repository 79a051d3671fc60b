// SPDX-License-Identifier: Apache-2.0
//
// Tandem in C++20: typed, const-correct views and options over the C interface. Header-only; throws nothing
// of its own; owns nothing.
//
//   using namespace tandem;
//   const Shape shape{.batch = 2, .sequence = 4096, .heads = 16, .head_dim = 128};
//   Status status = attention_forward(Tensor<const Bf16>::bshd(q, shape), Tensor<const Bf16>::bshd(k, shape),
//                                     Tensor<const Bf16>::bshd(v, shape), Tensor<Bf16>::bshd(o, shape),
//                                     {.mask = Mask::causal()});
//   if (!status) std::cerr << status.message() << "\n";
#ifndef TANDEM_ATTENTION_HPP
#define TANDEM_ATTENTION_HPP

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>

#include <tandem/options.hpp>
#include <tandem/tandem.h>
#include <tandem/tensor.hpp>

namespace tandem {

struct ForwardOptions {
  Mask mask = Mask::full();
  float scale = 0;    ///< 0: 1 / sqrt(head_dim)
  float softcap = 0;  ///< 0: off
  /// b, sq, q_heads, 1; written if given: the natural log of the sum of exponentials.
  std::optional<Tensor<float>> lse = std::nullopt;
  tandem_backend backend = TANDEM_BACKEND_AUTO;
  const tandem_study* study = nullptr;          ///< of tandem/study.h: which Hopper kernel serves
  std::optional<Varlen> varlen = std::nullopt;  ///< without: all sequences have the tensors' lengths
  /// q_heads numbers in the backend's memory: the score of one more key of each head, which has no value.
  const float* sinks = nullptr;
  /// ALiBi: q_heads numbers in the backend's memory, the next sequence's so many elements further (0: the
  /// same).
  const float* alibi_slopes = nullptr;
  std::int64_t alibi_stride = 0;
  /// A tree of drafts: a word for each query, in the backend's memory (tandem.h).
  const std::uint64_t* tree = nullptr;
  std::optional<BlockList> block_list = std::nullopt;  ///< without: all key blocks are seen
  void* plan = nullptr;  ///< of attention_forward_plan, for the same shapes, options and lengths
  /// In the backend's memory, aligned to 256; attention_forward_workspace says how much.
  std::span<std::byte> workspace = {};
  /// A cudaStream_t, for Hopper.
  void* stream = nullptr;
};

namespace detail {

/// Keeps T from being deduced from an argument, so that it converts.
template <typename T>
using Input = std::type_identity_t<Tensor<const T>>;

/// Arguments of a forward call; they point to parts of `options`, and to what is beside them.
struct ForwardCall {
  tandem_varlen varlen{};
  tandem_block_list block_list{};
  tandem_forward_args args{};

  ForwardCall() = default;
  ForwardCall(const ForwardCall&) = delete;
  ForwardCall& operator=(const ForwardCall&) = delete;
};

template <MutableElement I, MutableElement T>
void fill(ForwardCall& call, const Input<I>& q, const Input<I>& k, const Input<I>& v, const Tensor<T>& o,
          const ForwardOptions& options) {
  tandem_forward_args& args = call.args;
  args.struct_size = sizeof(args);
  args.backend = options.backend;
  args.q = q.c_tensor();
  args.k = k.c_tensor();
  args.v = v.c_tensor();
  args.o = o.c_tensor();
  if (options.lse) args.lse = options.lse->c_tensor();
  args.mask = &options.mask.c_mask();
  args.scale = options.scale;
  args.softcap = options.softcap;
  args.study = options.study;
  args.sinks = options.sinks;
  args.alibi_slopes = options.alibi_slopes;
  args.alibi_stride = options.alibi_stride;
  args.tree = options.tree;
  args.plan = options.plan;
  if (options.block_list) {
    call.block_list = options.block_list->c_block_list();
    args.block_list = &call.block_list;
  }
  if (!options.varlen) return;
  call.varlen = options.varlen->c_varlen();
  args.varlen = &call.varlen;
}

}  // namespace detail

/// O = softmax(scale * Q K^T + mask) V.
///
/// q, o: b, sq, q_heads, d. k, v: b, sk, kv_heads, d. q_heads is a multiple of kv_heads, d a multiple of 8 up
/// to 512, on Hopper above 256 of fixed lengths and a band alone. On Hopper it only enqueues work on the
/// stream; elsewhere it returns when o is written.
template <MutableElement T>
Status attention_forward(const detail::Input<T>& q, const detail::Input<T>& k, const detail::Input<T>& v,
                         const Tensor<T>& o, const ForwardOptions& options = {}) {
  detail::ForwardCall call;
  detail::fill<T, T>(call, q, k, v, o, options);
  return Status(
      tandem_forward(&call.args, options.workspace.data(), options.workspace.size(), options.stream));
}

/// Sets `bytes` to the workspace that attention_forward needs for the same arguments.
template <MutableElement T>
Status attention_forward_workspace(const detail::Input<T>& q, const detail::Input<T>& k,
                                   const detail::Input<T>& v, const Tensor<T>& o,
                                   const ForwardOptions& options, std::size_t& bytes) {
  detail::ForwardCall call;
  detail::fill<T, T>(call, q, k, v, o, options);
  return Status(tandem_forward_workspace(&call.args, &bytes));
}

/// Sets `bytes` to the size of the plan that attention_forward_plan makes for the same arguments.
template <MutableElement T>
Status attention_forward_plan_size(const detail::Input<T>& q, const detail::Input<T>& k,
                                   const detail::Input<T>& v, const Tensor<T>& o,
                                   const ForwardOptions& options, std::size_t& bytes) {
  detail::ForwardCall call;
  detail::fill<T, T>(call, q, k, v, o, options);
  return Status(tandem_forward_plan_size(&call.args, &bytes));
}

/// Makes once what the layers of a model would each make in their calls, of the same shapes, options and
/// lengths, whose options.plan is then `plan`, in memory like a workspace. It serves one call at a time.
template <MutableElement T>
Status attention_forward_plan(const detail::Input<T>& q, const detail::Input<T>& k, const detail::Input<T>& v,
                              const Tensor<T>& o, const ForwardOptions& options, std::span<std::byte> plan) {
  detail::ForwardCall call;
  detail::fill<T, T>(call, q, k, v, o, options);
  return Status(tandem_forward_plan(&call.args, plan.data(), plan.size(), options.stream));
}

/// Keys and values that a decoding step appends: b, s_new, kv_heads, d each.
template <MutableElement T>
struct NewTokens {
  Tensor<const T> k, v;
};

/// Keys and values that attention_forward_append appends: b, s_new, kv_heads, d each, or, where cu_seqlens
/// (batch + 1, in the backend's memory) is given, packed: 1, tokens, kv_heads, d.
template <MutableElement T>
struct AppendedTokens {
  Tensor<const T> k, v;
  const std::int32_t* cu_seqlens = nullptr;
};

/// Caches of keys and values that a call appends to: entries, capacity, kv_heads, d, or, with a page table,
/// pages, page_size, kv_heads, d.
template <MutableElement T>
struct Caches {
  Tensor<T> k, v;
};

namespace detail {

template <MutableElement T>
void fill_append(ForwardCall& call, const Input<T>& q, const Caches<T>& caches,
                 const AppendedTokens<T>& tokens, const Tensor<T>& o, const ForwardOptions& options) {
  fill<T, T>(call, q, caches.k, caches.v, o, options);
  call.varlen.k_new = tokens.k.c_tensor();
  call.varlen.v_new = tokens.v.c_tensor();
  call.varlen.cu_seqlens_k_new = tokens.cu_seqlens;
}

}  // namespace detail

/// attention_forward over sequences of different lengths (options.varlen has to be given) that first writes
/// new keys and values to their caches, behind the varlen.seqused_k ones of each sequence: one step of an
/// engine, whose sequences may be prefilled, decoded or verified, in any mix.
template <MutableElement T>
Status attention_forward_append(const detail::Input<T>& q, const std::type_identity_t<Caches<T>>& caches,
                                const std::type_identity_t<AppendedTokens<T>>& tokens, const Tensor<T>& o,
                                const ForwardOptions& options) {
  detail::ForwardCall call;
  detail::fill_append<T>(call, q, caches, tokens, o, options);
  return Status(
      tandem_forward(&call.args, options.workspace.data(), options.workspace.size(), options.stream));
}

/// Sets `bytes` to the workspace that attention_forward_append needs for the same arguments.
template <MutableElement T>
Status attention_forward_append_workspace(const detail::Input<T>& q,
                                          const std::type_identity_t<Caches<T>>& caches,
                                          const std::type_identity_t<AppendedTokens<T>>& tokens,
                                          const Tensor<T>& o, const ForwardOptions& options,
                                          std::size_t& bytes) {
  detail::ForwardCall call;
  detail::fill_append<T>(call, q, caches, tokens, o, options);
  return Status(tandem_forward_workspace(&call.args, &bytes));
}

/// The same of attention_forward_append's plan.
template <MutableElement T>
Status attention_forward_append_plan_size(const detail::Input<T>& q,
                                          const std::type_identity_t<Caches<T>>& caches,
                                          const std::type_identity_t<AppendedTokens<T>>& tokens,
                                          const Tensor<T>& o, const ForwardOptions& options,
                                          std::size_t& bytes) {
  detail::ForwardCall call;
  detail::fill_append<T>(call, q, caches, tokens, o, options);
  return Status(tandem_forward_plan_size(&call.args, &bytes));
}

/// Makes that plan; appends nothing.
template <MutableElement T>
Status attention_forward_append_plan(const detail::Input<T>& q, const std::type_identity_t<Caches<T>>& caches,
                                     const std::type_identity_t<AppendedTokens<T>>& tokens,
                                     const Tensor<T>& o, const ForwardOptions& options,
                                     std::span<std::byte> plan) {
  detail::ForwardCall call;
  detail::fill_append<T>(call, q, caches, tokens, o, options);
  return Status(tandem_forward_plan(&call.args, plan.data(), plan.size(), options.stream));
}

/// What a backward call reads: q, k and v of a forward call, its o and lse, and the gradient of o.
template <MutableElement T>
struct BackwardInputs {
  Tensor<const T> q, k, v;  ///< b, sq, q_heads, d; b, sk, kv_heads, d
  Tensor<const T> o;        ///< b, sq, q_heads, d
  Tensor<const float> lse;  ///< b, sq, q_heads, 1
  Tensor<const T> dout;     ///< b, sq, q_heads, d
};

/// What it writes: gradients of the shapes of q, k and v.
template <MutableElement T>
struct Gradients {
  Tensor<T> dq, dk, dv;
};

struct BackwardOptions {
  Mask mask = Mask::full();  ///< these three as the forward had them, and varlen
  float scale = 0;           ///< 0: 1 / sqrt(head_dim)
  float softcap = 0;         ///< 0: off
  /// b, sq, q_heads, 1: the gradient of lse, if it has one.
  std::optional<Tensor<const float>> dlse = std::nullopt;
  bool deterministic = false;  ///< the same bits in every run, which all backends give anyway
  /// q_heads numbers each: the forward's sinks, and where their gradients are wanted.
  const float* sinks = nullptr;
  float* dsinks = nullptr;
  std::optional<Varlen> varlen = std::nullopt;  ///< of packed sequences and of entries, nothing else
  tandem_backend backend = TANDEM_BACKEND_AUTO;
  /// In the backend's memory, aligned to 256; attention_backward_workspace says how much.
  std::span<std::byte> workspace = {};
  /// A cudaStream_t, for Hopper.
  void* stream = nullptr;
};

namespace detail {

/// Keeps T from being deduced from the inputs, so that they can be written in braces.
template <typename T>
using BackwardInputsOf = std::type_identity_t<BackwardInputs<T>>;

/// Arguments of a backward call; they point to parts of `options`, and to what is beside them.
struct BackwardCall {
  tandem_varlen varlen{};
  tandem_backward_args args{};

  BackwardCall() = default;
  BackwardCall(const BackwardCall&) = delete;
  BackwardCall& operator=(const BackwardCall&) = delete;
};

template <MutableElement T>
void fill(BackwardCall& call, const BackwardInputs<T>& in, const Gradients<T>& out,
          const BackwardOptions& options) {
  tandem_backward_args& args = call.args;
  args.struct_size = sizeof(args);
  args.backend = options.backend;
  args.deterministic = options.deterministic ? 1 : 0;
  args.q = in.q.c_tensor();
  args.k = in.k.c_tensor();
  args.v = in.v.c_tensor();
  args.o = in.o.c_tensor();
  args.lse = in.lse.c_tensor();
  args.dout = in.dout.c_tensor();
  if (options.dlse) args.dlse = options.dlse->c_tensor();
  args.dq = out.dq.c_tensor();
  args.dk = out.dk.c_tensor();
  args.dv = out.dv.c_tensor();
  args.mask = &options.mask.c_mask();
  args.scale = options.scale;
  args.softcap = options.softcap;
  args.sinks = options.sinks;
  args.dsinks = options.dsinks;
  if (!options.varlen) return;
  call.varlen = options.varlen->c_varlen();
  args.varlen = &call.varlen;
}

}  // namespace detail

/// The gradients of q, k and v of one forward call, given that of o.
///
/// On Hopper it only enqueues work on the stream; elsewhere it returns when dq, dk and dv are written.
template <MutableElement T>
Status attention_backward(const detail::BackwardInputsOf<T>& in, const Gradients<T>& out,
                          const BackwardOptions& options = {}) {
  detail::BackwardCall call;
  detail::fill<T>(call, in, out, options);
  return Status(
      tandem_backward(&call.args, options.workspace.data(), options.workspace.size(), options.stream));
}

/// Sets `bytes` to the workspace that attention_backward needs for the same arguments.
template <MutableElement T>
Status attention_backward_workspace(const detail::BackwardInputsOf<T>& in, const Gradients<T>& out,
                                    const BackwardOptions& options, std::size_t& bytes) {
  detail::BackwardCall call;
  detail::fill<T>(call, in, out, options);
  return Status(tandem_backward_workspace(&call.args, &bytes));
}

/// The keys and values of the tokens so far, in the memory of the backend. Tokens beyond a sequence's length
/// are never read.
template <MutableElement T>
struct Cache {
  /// Entries, capacity, kv_heads, d; paged: pages, page_size, kv_heads, d. v may have dv columns, as
  /// tandem_cache says, and lie in k where they are fewer.
  Tensor<T> k, v;
  const std::int32_t* lengths = nullptr;               ///< b: tokens before the step
  std::optional<PageTable> page_table = std::nullopt;  ///< without: contiguous
  /// b: entry, or row of the page table, of each sequence; without, sequence i has entry or row i.
  const std::int32_t* batch_index = nullptr;

  tandem_cache c_cache() const {
    tandem_cache cache{};
    cache.struct_size = sizeof(cache);
    cache.k = k.c_tensor();
    cache.v = v.c_tensor();
    if (page_table) {
      cache.page_table = page_table->pages;
      cache.page_table_stride = page_table->stride;
      cache.pages_per_sequence = page_table->pages_per_sequence;
    }
    cache.lengths = lengths;
    cache.batch_index = batch_index;
    return cache;
  }
};

template <MutableElement T>
struct DecodeOptions {
  std::optional<NewTokens<T>> append = std::nullopt;
  std::optional<Rotary> rotary = std::nullopt;
  Mask mask = Mask::full();
  float scale = 0;    ///< 0: 1 / sqrt(head_dim), with qv 1 / sqrt(head_dim + dv)
  float softcap = 0;  ///< 0: off
  /// b, sq, q_heads, 1; written if given: the natural log of the sum of exponentials.
  std::optional<Tensor<float>> lse = std::nullopt;
  /// 0: keys are split for speed. Else fixed splits, a multiple of 64 keys: the same bits in any batch.
  std::int64_t split_size = 0;
  const void* plan = nullptr;           ///< of attention_decode_plan, for the same shapes and lengths
  const tandem_study* study = nullptr;  ///< of tandem/study.h: which Hopper kernel serves
  const float* sinks = nullptr;         ///< as in ForwardOptions
  const float* alibi_slopes = nullptr;  ///< the same
  std::int64_t alibi_stride = 0;
  const std::uint64_t* tree = nullptr;
  /// b, sq, q_heads, dv: a second part of the queries, which meets the values: tandem_decode_args.qv.
  std::optional<Tensor<const T>> qv = std::nullopt;
  std::optional<SharedPrefixes> prefixes = std::nullopt;  ///< results are those without
  tandem_backend backend = TANDEM_BACKEND_AUTO;
  /// In the backend's memory, aligned to 256, zeroed once before its first use; attention_decode_workspace
  /// says how much.
  std::span<std::byte> workspace = {};
  /// A cudaStream_t, for Hopper.
  void* stream = nullptr;
};

namespace detail {

/// Points to `cache` and to parts of `options`.
template <MutableElement T>
tandem_decode_args decode_args(const Input<T>& q, const tandem_cache& cache, const Tensor<T>& o,
                               const DecodeOptions<T>& options) {
  tandem_decode_args args{};
  args.struct_size = sizeof(args);
  args.backend = options.backend;
  args.q = q.c_tensor();
  args.cache = &cache;
  if (options.append) {
    args.k_new = options.append->k.c_tensor();
    args.v_new = options.append->v.c_tensor();
  }
  if (options.rotary) args.rotary = &options.rotary->c_rotary();
  args.o = o.c_tensor();
  if (options.lse) args.lse = options.lse->c_tensor();
  args.mask = &options.mask.c_mask();
  args.scale = options.scale;
  args.softcap = options.softcap;
  args.split_size = options.split_size;
  args.plan = options.plan;
  args.study = options.study;
  args.sinks = options.sinks;
  args.alibi_slopes = options.alibi_slopes;
  args.alibi_stride = options.alibi_stride;
  args.tree = options.tree;
  if (options.qv) args.qv = options.qv->c_tensor();
  if (options.prefixes) args.prefixes = &options.prefixes->c_prefixes();
  return args;
}

/// Keeps T from being deduced from the options, so that they can be written in braces.
template <typename T>
using DecodeOptionsOf = std::type_identity_t<DecodeOptions<T>>;

}  // namespace detail

/// One decoding step: o = softmax(scale * q K^T + mask) V over the keys and values of each sequence's cache,
/// to which the step appends first where options.append is given.
///
/// q: b, sq, q_heads, d with sq 1 to 8; q_heads is a multiple of kv_heads. o: b, sq, q_heads, dv, with the
/// columns of v. The last query stands at the last key. On Hopper it only enqueues work on the stream;
/// elsewhere it returns when o is written.
template <MutableElement T>
Status attention_decode(const detail::Input<T>& q, const Cache<T>& cache, const Tensor<T>& o,
                        const detail::DecodeOptionsOf<T>& options = {}) {
  const tandem_cache c_cache = cache.c_cache();
  const tandem_decode_args args = detail::decode_args<T>(q, c_cache, o, options);
  return Status(tandem_decode(&args, options.workspace.data(), options.workspace.size(), options.stream));
}

/// Sets `bytes` to the workspace that attention_decode needs for the same arguments.
template <MutableElement T>
Status attention_decode_workspace(const detail::Input<T>& q, const Cache<T>& cache, const Tensor<T>& o,
                                  const detail::DecodeOptionsOf<T>& options, std::size_t& bytes) {
  const tandem_cache c_cache = cache.c_cache();
  const tandem_decode_args args = detail::decode_args<T>(q, c_cache, o, options);
  return Status(tandem_decode_workspace(&args, &bytes));
}

/// Sets `bytes` to the size of the plan that attention_decode_plan makes for the same arguments.
template <MutableElement T>
Status attention_decode_plan_size(const detail::Input<T>& q, const Cache<T>& cache, const Tensor<T>& o,
                                  const detail::DecodeOptionsOf<T>& options, std::size_t& bytes) {
  const tandem_cache c_cache = cache.c_cache();
  const tandem_decode_args args = detail::decode_args<T>(q, c_cache, o, options);
  return Status(tandem_decode_plan_size(&args, &bytes));
}

/// Balances a batch once for all calls with the same shapes and lengths, whose options.plan is then `plan`:
/// memory of the backend, aligned to 256.
template <MutableElement T>
Status attention_decode_plan(const detail::Input<T>& q, const Cache<T>& cache, const Tensor<T>& o,
                             const detail::DecodeOptionsOf<T>& options, std::span<std::byte> plan) {
  const tandem_cache c_cache = cache.c_cache();
  const tandem_decode_args args = detail::decode_args<T>(q, c_cache, o, options);
  return Status(tandem_decode_plan(&args, plan.data(), plan.size(), options.stream));
}

/// Results of attention over parts of the keys, the parts `stride` elements apart.
template <MutableElement T>
struct Parts {
  std::int64_t count = 0;
  Tensor<const T> o;  ///< b, s, heads, d: of part 0
  std::int64_t o_stride = 0;
  Tensor<const float> lse;  ///< b, s, heads, 1: of part 0, natural logarithms
  std::int64_t lse_stride = 0;
};

struct MergeOptions {
  /// b, s, heads, 1; written if given: the natural log of the sum of exponentials over all parts.
  std::optional<Tensor<float>> lse = std::nullopt;
  tandem_backend backend = TANDEM_BACKEND_AUTO;
  /// A cudaStream_t, for Hopper.
  void* stream = nullptr;
};

/// Merges the results over parts of the keys into the result over all of them; parts whose lse is -inf are
/// not read. Types of the parts and of o, b, s, heads, d, may differ. On Hopper it only enqueues one kernel
/// on the stream; elsewhere it returns when o is written.
template <MutableElement P, MutableElement T>
Status attention_merge(const Parts<P>& parts, const Tensor<T>& o, const MergeOptions& options = {}) {
  tandem_merge_args args{};
  args.struct_size = sizeof(args);
  args.backend = options.backend;
  args.parts = parts.count;
  args.o_parts = parts.o.c_tensor();
  args.o_part_stride = parts.o_stride;
  args.lse_parts = parts.lse.c_tensor();
  args.lse_part_stride = parts.lse_stride;
  args.o = o.c_tensor();
  if (options.lse) args.lse = options.lse->c_tensor();
  return Status(tandem_merge(&args, options.stream));
}

}  // namespace tandem

#endif  // TANDEM_ATTENTION_HPP
