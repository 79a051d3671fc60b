// SPDX-License-Identifier: Apache-2.0
//
// Decodes two sequences of different lengths token by token against a paged cache that grows by a page where
// one is full, and compares every token's output with one causal forward over the whole sequence. Runs on
// Hopper where that can be used and this file was compiled with EXAMPLE_CUDA (and linked with the CUDA
// runtime), else on the CPU.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <random>
#include <tuple>
#include <vector>

#include "memory.h"

namespace {

using example::Array, example::require, example::value_of;
using tandem::Bf16, tandem::Tensor;

constexpr std::int64_t sequences = 2, tokens = 60, heads = 8, kv_heads = 2, head_dim = 64;
constexpr std::int64_t page_size = 16, pages_per_sequence = 4, pages = sequences * pages_per_sequence;
constexpr std::int64_t prompt = 21;  // tokens that the second sequence has before the first step

/// Before any memory is made.
const tandem_backend backend = [] {
  example::on_device = example::hopper_usable();
  return example::on_device ? TANDEM_BACKEND_HOPPER : TANDEM_BACKEND_CPU;
}();

std::vector<Bf16> normal_values(std::int64_t size, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<Bf16> values(static_cast<std::size_t>(size));
  for (Bf16& value : values) value = example::bf16_of(normal(random));
  return values;
}

/// Tensors of all tokens, b, s, h, d, on the host.
struct Tokens {
  std::vector<Bf16> q = normal_values(sequences * tokens * heads * head_dim, 1);
  std::vector<Bf16> k = normal_values(sequences * tokens * kv_heads * head_dim, 2);
  std::vector<Bf16> v = normal_values(sequences * tokens * kv_heads * head_dim, 3);
};

/// Tokens [first, first + count) of sequence b.
std::vector<Bf16> part(const std::vector<Bf16>& x, std::int64_t h, std::int64_t b, std::int64_t first,
                       std::int64_t count) {
  const std::ptrdiff_t row = h * head_dim, begin = (b * tokens + first) * row;
  return {x.begin() + begin, x.begin() + begin + count * row};
}

Tensor<Bf16> view(const Array<Bf16>& x, std::int64_t batch, std::int64_t length, std::int64_t h) {
  return Tensor<Bf16>::bshd(x.data(), {.batch = batch, .sequence = length, .heads = h, .head_dim = head_dim});
}

/// What an engine keeps: the pool of pages, who has which, and how long each sequence is.
class PagedCache {
 public:
  std::int64_t length(std::int64_t b) const { return lengths_[static_cast<std::size_t>(b)]; }

  /// Runs a step that appends the next `count` tokens of the sequences [first, last), each of which has one
  /// query, the last of them; returns its output rows.
  std::vector<Bf16> step(const Tokens& all, std::int64_t first, std::int64_t last, std::int64_t count) {
    std::vector<Bf16> q, k, v;
    for (std::int64_t b = first; b < last; ++b) {
      for (const auto& [to, from, h] : {std::tuple(&k, &all.k, kv_heads), std::tuple(&v, &all.v, kv_heads)}) {
        const std::vector<Bf16> rows = part(*from, h, b, length(b), count);
        to->insert(to->end(), rows.begin(), rows.end());
      }
      const std::vector<Bf16> rows = part(all.q, heads, b, length(b) + count - 1, 1);
      q.insert(q.end(), rows.begin(), rows.end());
      grow(b, count);
    }
    page_table_on_backend_.write(page_table_);
    lengths_on_backend_.write(lengths_);
    std::vector<Bf16> o = run(q, k, v, first, count);
    for (std::int64_t b = first; b < last; ++b)
      lengths_[static_cast<std::size_t>(b)] += static_cast<std::int32_t>(count);
    return o;
  }

 private:
  /// Gives sequence b a page from the pool wherever its next `count` tokens need one.
  void grow(std::int64_t b, std::int64_t count) {
    for (std::int64_t slot = (length(b) + page_size - 1) / page_size; slot * page_size < length(b) + count;
         ++slot)
      page_table_[static_cast<std::size_t>(b * pages_per_sequence + slot)] = free_page_--;
  }

  std::vector<Bf16> run(const std::vector<Bf16>& q_rows, const std::vector<Bf16>& k_rows,
                        const std::vector<Bf16>& v_rows, std::int64_t first, std::int64_t count) {
    const auto batch = static_cast<std::int64_t>(q_rows.size()) / (heads * head_dim);
    const Array<Bf16> q(q_rows), k(k_rows), v(v_rows), o(q_rows.size());
    const tandem::Cache<Bf16> cache{.k = view(k_, pages, page_size, kv_heads),
                                    .v = view(v_, pages, page_size, kv_heads),
                                    .lengths = lengths_on_backend_.data() + first,
                                    .page_table = tandem::PageTable{page_table_on_backend_.data(),
                                                                    pages_per_sequence, pages_per_sequence},
                                    .batch_index = rows_on_backend_.data() + first};
    tandem::DecodeOptions<Bf16> options{
        .append = tandem::NewTokens<Bf16>{view(k, batch, count, kv_heads), view(v, batch, count, kv_heads)},
        .mask = tandem::Mask::causal(),
        .backend = backend};
    std::size_t bytes = 0;
    require(attention_decode_workspace(view(q, batch, 1, heads), cache, view(o, batch, 1, heads), options,
                                       bytes));
    const Array<std::byte> workspace(bytes);  // an engine would keep one for all its steps
    options.workspace = {workspace.data(), bytes};
    require(attention_decode(view(q, batch, 1, heads), cache, view(o, batch, 1, heads), options));
    return o.read();
  }

  std::vector<std::int32_t> lengths_ = std::vector<std::int32_t>(sequences);
  std::vector<std::int32_t> page_table_ = std::vector<std::int32_t>(pages, -1);
  std::int32_t free_page_ = pages - 1;
  Array<Bf16> k_{pages * page_size * kv_heads * head_dim}, v_{pages * page_size * kv_heads * head_dim};
  Array<std::int32_t> page_table_on_backend_{page_table_}, lengths_on_backend_{lengths_};
  Array<std::int32_t> rows_on_backend_{std::vector<std::int32_t>{0, 1}};
};

/// One causal forward over all tokens of both sequences.
std::vector<Bf16> forward(const Tokens& all) {
  const Array<Bf16> q(all.q), k(all.k), v(all.v), o(all.q.size());
  tandem::ForwardOptions options{.mask = tandem::Mask::causal(), .backend = backend};
  const Tensor<Bf16> q_view = view(q, sequences, tokens, heads), o_view = view(o, sequences, tokens, heads);
  const Tensor<Bf16> k_view = view(k, sequences, tokens, kv_heads),
                     v_view = view(v, sequences, tokens, kv_heads);
  std::size_t bytes = 0;
  require(attention_forward_workspace(q_view, k_view, v_view, o_view, options, bytes));
  const Array<std::byte> workspace(bytes);
  options.workspace = {workspace.data(), bytes};
  require(attention_forward(q_view, k_view, v_view, o_view, options));
  return o.read();
}

float largest_difference(const std::vector<Bf16>& a, const std::vector<Bf16>& b) {
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const float difference = std::fabs(value_of(a[i]) - value_of(b[i]));
    largest = difference <= largest ? largest : difference;  // NaN too
  }
  return largest;
}

}  // namespace

int main() {
  const Tokens all;
  const std::vector<Bf16> expected = forward(all);
  PagedCache cache;
  cache.step(all, 1, 2, prompt);  // the second sequence has a prompt; its row of the page table is named
  float worst = 0;
  while (cache.length(1) < tokens) {
    std::vector<Bf16> wanted;
    for (std::int64_t b = 0; b < sequences; ++b) {
      const std::vector<Bf16> row = part(expected, heads, b, cache.length(b), 1);
      wanted.insert(wanted.end(), row.begin(), row.end());
    }
    const float difference = largest_difference(cache.step(all, 0, sequences, 1), wanted);
    worst = difference <= worst ? worst : difference;
  }
  const bool right = worst <= 0.03f;  // a few roundings of bf16
  std::printf("%s, %d and %d tokens: decoding equals the forward %s\n", example::on_device ? "Hopper" : "CPU",
              static_cast<int>(cache.length(0)), static_cast<int>(cache.length(1)),
              right ? "within bf16's rounding" : "NOT");
  return right ? 0 : 1;
}
