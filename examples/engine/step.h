// SPDX-License-Identifier: Apache-2.0
//
// A step on the backend: what is uploaded for it, and attention in one call, or in two.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "../memory.h"
#include "options.h"
#include "scheduler.h"
#include "tokens.h"

namespace engine {

using example::Array, example::require;
using tandem::Tensor;

/// A step as callers of attention see it. Prompts come first.
struct Batch {
  std::vector<Bf16> q, k, v;  ///< rows of all tokens
  std::vector<std::int32_t> cu_seqlens = {0}, used, page_table;
  std::int64_t prompts = 0, decoding = 0, longest = 0, keys = 0;

  std::int64_t tokens() const { return cu_seqlens.back(); }
  std::int64_t prompt_tokens() const { return cu_seqlens[static_cast<std::size_t>(prompts)]; }
};

inline Batch batch_of(const Options& options, const Scheduler& scheduler, const std::vector<Share>& shares) {
  Batch batch;
  for (const Share& share : shares) {
    const Request& request = scheduler.request(share);
    for (const Token& token : share.tokens) {
      const TokenRows rows = rows_of(options, token);
      batch.q.insert(batch.q.end(), rows.q.begin(), rows.q.end());
      batch.k.insert(batch.k.end(), rows.k.begin(), rows.k.end());
      batch.v.insert(batch.v.end(), rows.v.begin(), rows.v.end());
    }
    const auto count = static_cast<std::int64_t>(share.tokens.size());
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + static_cast<std::int32_t>(count));
    batch.used.push_back(static_cast<std::int32_t>(request.cached));
    std::vector<std::int32_t> row = request.pages;
    row.resize(static_cast<std::size_t>(options.slots()), -1);  // never read
    batch.page_table.insert(batch.page_table.end(), row.begin(), row.end());
    ++(share.decodes ? batch.decoding : batch.prompts);
    batch.longest = std::max(batch.longest, count);
    batch.keys += request.cached + count;
  }
  return batch;
}

/// The caches, and everything that a step needs on the backend.
class Backend {
 public:
  explicit Backend(const Options& options)
      : options_(options),
        angles_(options),
        cos_(angles_.cos),
        sin_(angles_.sin),
        k_cache_(cache_elements()),
        v_cache_(cache_elements()),
        q_(elements(options.budget, options.heads)),
        k_(elements(options.budget, options.kv_heads)),
        v_(elements(options.budget, options.kv_heads)),
        o_(elements(options.budget, options.heads)),
        cu_seqlens_(static_cast<std::size_t>(options.budget + 1)),
        used_(static_cast<std::size_t>(options.budget)),
        page_table_(static_cast<std::size_t>(options.budget * options.slots())) {}

  const Angles& angles() const { return angles_; }

  void upload(const Batch& batch) {
    q_.write(batch.q), k_.write(batch.k), v_.write(batch.v);
    cu_seqlens_.write(batch.cu_seqlens), used_.write(batch.used), page_table_.write(batch.page_table);
  }
  /// Rows of all tokens of the step that ran last.
  std::vector<Bf16> outputs() const { return o_.read(); }

  /// To be called once a step: what the calls of all layers share. Here there is one layer.
  void plan(const Batch& batch, void* stream) {
    make_plan(all_of(batch), whole_plan_, stream);
    if (batch.prompts > 0) make_plan(prompts_of(batch), prompts_plan_, stream);
  }
  /// The step in one call, whatever its sequences do.
  void one_call(const Batch& batch, void* stream) { forward(all_of(batch), whole_plan_, stream); }
  /// The same, its prompts in one call and its decoding sequences in another.
  void two_calls(const Batch& batch, void* stream) {
    if (batch.prompts > 0) forward(prompts_of(batch), prompts_plan_, stream);
    if (batch.decoding > 0) decode(batch, stream);
  }

 private:
  std::size_t elements(std::int64_t tokens, std::int64_t heads) const {
    return static_cast<std::size_t>(tokens * heads * options_.head_dim);
  }
  std::size_t cache_elements() const {
    return elements(options_.pages * options_.page_size, options_.kv_heads);
  }
  tandem_backend backend() const { return example::on_device ? TANDEM_BACKEND_HOPPER : TANDEM_BACKEND_CPU; }
  /// `tokens` of each of `batch` entries, from row `first` on.
  Tensor<Bf16> view(const Array<Bf16>& array, std::int64_t heads, std::int64_t batch, std::int64_t tokens,
                    std::int64_t first = 0) const {
    return Tensor<Bf16>::bshd(
        array.data() + first * heads * options_.head_dim,
        {.batch = batch, .sequence = tokens, .heads = heads, .head_dim = options_.head_dim});
  }
  Tensor<Bf16> cache_view(const Array<Bf16>& cache) const {
    return view(cache, options_.kv_heads, options_.pages, options_.page_size);
  }
  tandem::Rotary rotary() const {
    return tandem::Rotary::halves(cos_.data(), sin_.data(), options_.positions(), options_.head_dim);
  }
  tandem::PageTable pages(std::int64_t first) const {
    return {page_table_.data() + first * options_.slots(), options_.slots(), options_.slots()};
  }
  /// Memory that grows, and was zeroed before its first use.
  static std::span<std::byte> lend(std::optional<Array<std::byte>>& memory, std::size_t bytes) {
    if (!memory || memory->size() < bytes) memory.emplace(std::max<std::size_t>(2 * bytes, 1 << 20));
    return {memory->data(), bytes};
  }

  /// The first so many sequences of a step.
  struct Part {
    std::int64_t sequences, tokens, longest;
  };
  static Part all_of(const Batch& batch) {
    return {batch.prompts + batch.decoding, batch.tokens(), batch.longest};
  }
  Part prompts_of(const Batch& batch) const {
    return {batch.prompts, batch.prompt_tokens(), std::min(batch.longest, options_.chunk)};
  }

  /// A part as Tandem takes it.
  struct Call {
    Tensor<Bf16> q, o;
    tandem::Caches<Bf16> caches;
    tandem::AppendedTokens<Bf16> fresh;
    tandem::ForwardOptions options;
  };
  Call call_of(const Part& part, void* stream) const {
    return {.q = view(q_, options_.heads, 1, part.tokens),
            .o = view(o_, options_.heads, 1, part.tokens),
            .caches = {cache_view(k_cache_), cache_view(v_cache_)},
            .fresh = {view(k_, options_.kv_heads, 1, part.tokens),
                      view(v_, options_.kv_heads, 1, part.tokens), cu_seqlens_.data()},
            .options = {.mask = tandem::Mask::causal(),
                        .backend = backend(),
                        .varlen = tandem::Varlen{.batch = part.sequences,
                                                 .cu_seqlens_q = cu_seqlens_.data(),
                                                 .seqused_k = used_.data(),
                                                 .page_table = pages(0),
                                                 .max_seqlen_q = part.longest,
                                                 .rotary = rotary()},
                        .stream = stream}};
  }
  void make_plan(const Part& part, std::optional<Array<std::byte>>& plan, void* stream) {
    const Call call = call_of(part, stream);
    std::size_t bytes = 0;
    require(attention_forward_append_plan_size(call.q, call.caches, call.fresh, call.o, call.options, bytes));
    require(attention_forward_append_plan(call.q, call.caches, call.fresh, call.o, call.options,
                                          lend(plan, bytes)));
  }
  void forward(const Part& part, const std::optional<Array<std::byte>>& plan, void* stream) {
    Call call = call_of(part, stream);
    std::size_t bytes = 0;
    require(attention_forward_append_workspace(call.q, call.caches, call.fresh, call.o, call.options, bytes));
    call.options.workspace = lend(forward_workspace_, bytes);
    call.options.plan = plan->data();
    require(attention_forward_append(call.q, call.caches, call.fresh, call.o, call.options));
  }

  /// The sequences behind the prompts, which have equally many new tokens.
  void decode(const Batch& batch, void* stream) {
    const std::int64_t first = batch.prompt_tokens(), n = batch.decoding, tokens = 1 + options_.drafts;
    const Tensor<Bf16> q = view(q_, options_.heads, n, tokens, first),
                       o = view(o_, options_.heads, n, tokens, first);
    const tandem::Cache<Bf16> cache{.k = cache_view(k_cache_),
                                    .v = cache_view(v_cache_),
                                    .lengths = used_.data() + batch.prompts,
                                    .page_table = pages(batch.prompts)};
    tandem::DecodeOptions<Bf16> options{
        .append = tandem::NewTokens<Bf16>{view(k_, options_.kv_heads, n, tokens, first),
                                          view(v_, options_.kv_heads, n, tokens, first)},
        .rotary = rotary(),
        .mask = tandem::Mask::causal(),
        .backend = backend(),
        .stream = stream};
    std::size_t bytes = 0;
    require(attention_decode_workspace(q, cache, o, options, bytes));
    options.workspace = lend(decode_workspace_, bytes);
    require(attention_decode(q, cache, o, options));
  }

  const Options& options_;
  Angles angles_;
  Array<float> cos_, sin_;
  Array<Bf16> k_cache_, v_cache_, q_, k_, v_, o_;
  Array<std::int32_t> cu_seqlens_, used_, page_table_;
  std::optional<Array<std::byte>> forward_workspace_, decode_workspace_, whole_plan_, prompts_plan_;
};

/// Microseconds of a call, the fastest of `repeats` times: on the CPU as it runs, on Hopper replayed from a
/// graph, as engines do it, several in a row. It has to have run once.
template <typename Call>
double measured_us(Call call, std::int64_t repeats) {
  double fastest = 0;
  const auto take = [&fastest](double us) { fastest = fastest == 0 ? us : std::min(fastest, us); };
#ifdef EXAMPLE_CUDA
  if (example::on_device) {
    constexpr int in_a_row = 20;
    const auto check = [](cudaError_t error) {
      if (error == cudaSuccess) return;
      std::fprintf(stderr, "engine: %s\n", cudaGetErrorString(error));
      std::exit(1);
    };
    cudaStream_t stream = nullptr;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t replay = nullptr;
    cudaEvent_t begin = nullptr, end = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    check(cudaEventCreate(&begin)), check(cudaEventCreate(&end));
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < in_a_row; ++i) call(stream);
    check(cudaStreamEndCapture(stream, &graph));
    check(cudaGraphInstantiate(&replay, graph, 0));
    for (std::int64_t i = 0; i <= repeats; ++i) {
      check(cudaEventRecord(begin, stream));
      check(cudaGraphLaunch(replay, stream));
      check(cudaEventRecord(end, stream));
      check(cudaEventSynchronize(end));
      float ms = 0;
      check(cudaEventElapsedTime(&ms, begin, end));
      if (i > 0) take(1e3 * static_cast<double>(ms) / in_a_row);
    }
    cudaGraphExecDestroy(replay), cudaGraphDestroy(graph);
    cudaEventDestroy(begin), cudaEventDestroy(end), cudaStreamDestroy(stream);
    return fastest;
  }
#endif
  for (std::int64_t i = 0; i < repeats; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    call(nullptr);
    take(std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count());
  }
  return fastest;
}

}  // namespace engine
