// DecodeProblem: one validated decoding step, as every backend sees it.
#pragma once

#include <algorithm>
#include <cstdint>

#include <tandem/study.h>
#include <tandem/tandem.h>

#include "core/listed_queries.h"
#include "core/mask.h"
#include "core/problem.h"
#include "core/rotary.h"
#include "core/shared_prefixes.h"

namespace tandem::core {

/// As many rows of q, from its first on, as `cu_seqlens` says of each sequence, which lies on the device.
struct PackedQueries {
  const std::int32_t* cu_seqlens = nullptr;  ///< sequences + 1; nullptr: each has an entry of q
  std::int64_t sequences = 0, most_queries = 0, most_keys = 0;

  bool given() const { return cu_seqlens != nullptr; }
};

/// A few queries of each sequence against its cache. Built by api::validate_decode only, so that what it
/// holds is consistent: shapes agree, strides of dimensions of size 1 are 0, scale is resolved, and the mask
/// is the simplest with the same meaning for every length up to the capacity. Lengths, page numbers and batch
/// indices are not: they may lie in device memory.
///
/// A contiguous cache is a paged one with one page per entry.
struct DecodeProblem {
  Tensor q;
  Tensor k_cache, v_cache;  ///< pages, page size, kv heads, head dim
  Tensor k_new, v_new;      ///< data == nullptr: nothing is appended; their sequence length is 0 then
  Tensor o;
  Tensor lse;                      ///< data == nullptr: not wanted
  const std::int32_t* page_table;  ///< nullptr: contiguous
  const std::int32_t* lengths;  ///< tokens in the cache before this step; nullptr: all that it has room for
  const std::int32_t* batch_index;
  std::int64_t page_table_stride, pages_per_sequence;
  Rotary rotary;
  Mask mask;
  float scale;              ///< > 0
  float softcap;            ///< 0: off
  std::int64_t split_size;  ///< keys; 0: free
  const void* plan;         ///< nullptr: none
  /// Of each query head, the score of one more key, which has no value; nullptr: none.
  const float* sinks;
  tandem_decode_kernel kernel;
  int block_m, block_n;  ///< of tandem_study: rows of a tile, keys of a block; 0: any
  Tensor qv;             ///< a second part of the queries, which meets the values; data == nullptr: none
  CacheScales scales;    ///< of an 8-bit cache
  Slopes slopes;
  const std::uint64_t* tree;  ///< a word for each query (core/tree.h); nullptr: none
  /// Queries that lie behind one another, as a call for variable lengths has them: q, o and lse have one
  /// entry. Nothing is appended or rotated.
  PackedQueries packed = {};
  /// The sequences, where a list on the device says which they are: q, o and lse are laid out as it says,
  /// there are no lengths, and nothing is appended or rotated.
  ListedQueries listed = {};
  SharedPrefixes prefixes = {};
  bool lists_prefixes = false;  ///< the list is one of prefixes and of what sequences have behind them

  std::int64_t batch() const {
    if (listed.given) return listed.sequences;
    return packed.given() ? packed.sequences : q.shape[0];
  }
  std::int64_t q_len() const {
    if (listed.given) return listed.most_queries;
    return packed.given() ? packed.most_queries : q.shape[1];
  }
  std::int64_t q_heads() const { return q.shape[2]; }
  std::int64_t head_dim() const { return q.shape[3]; }         ///< of queries and keys
  std::int64_t value_dim() const { return v_cache.shape[3]; }  ///< of values and outputs
  bool has_qv() const { return qv.data != nullptr; }
  /// Columns of both parts of a query, and of what it meets: a key, and behind it its value.
  std::int64_t key_columns() const { return head_dim() + (has_qv() ? value_dim() : 0); }
  tandem_dtype dtype() const { return q.dtype; }
  /// Whether the cache has 8 bits, and what is appended is rounded to them.
  bool eight_bit() const { return is_8_bit(k_cache.dtype); }
  bool appends() const { return k_new.data != nullptr; }  ///< maybe 0 tokens
  std::int64_t new_len() const { return appends() ? k_new.shape[1] : 0; }
  std::int64_t kv_heads() const { return k_cache.shape[2]; }
  /// Query heads that share one key/value head; 1 where there are no heads.
  std::int64_t group() const { return kv_heads() == 0 ? 1 : q_heads() / kv_heads(); }
  bool paged() const { return page_table != nullptr; }
  std::int64_t pages() const { return k_cache.shape[0]; }
  std::int64_t page_size() const { return k_cache.shape[1]; }
  /// Whether the values are the keys' first columns, in the same memory, as multi-head latent attention has
  /// them; then what is appended to the keys is appended to both.
  bool values_in_keys() const {
    return value_dim() < head_dim() && same_rows(v_cache, k_cache) && (!appends() || same_rows(v_new, k_new));
  }
  /// Tokens that a sequence can have.
  std::int64_t capacity() const {
    if (listed.given) return listed.most_keys;
    const std::int64_t room = paged() ? page_size() * pages_per_sequence : page_size();
    return packed.given() ? std::min(packed.most_keys, room) : room;
  }

 private:
  static bool same_rows(const Tensor& a, const Tensor& b) {
    return a.data == b.data && std::equal(a.stride, a.stride + 4, b.stride);
  }
};

/// Where a batch index says which rows of the page table are whose, how many it has is not known: the list
/// has one.
inline TensorList tensors_of(const DecodeProblem& p) {
  const Role cache = p.appends() ? Role::updated : Role::input;
  TensorList list;
  list.add("q", Role::input, p.q);
  if (p.has_qv()) list.add("qv", Role::input, p.qv);
  if (p.new_len() > 0) {
    list.add("k_new", Role::input, p.k_new);
    list.add("v_new", Role::input, p.v_new);
  }
  if (p.lengths != nullptr)
    list.add_array("cache.lengths", Role::input, Region::of(p.lengths, 4, 1, p.batch(), 0));
  if (p.batch_index != nullptr)
    list.add_array("cache.batch_index", Role::input, Region::of(p.batch_index, 4, 1, p.batch(), 0));
  if (p.paged())
    list.add_array("cache.page_table", Role::input,
                   Region::of(p.page_table, 4, p.batch_index != nullptr ? 1 : p.batch(), p.pages_per_sequence,
                              p.page_table_stride));
  add_rotary(list, p.rotary, "rotary.cos", "rotary.sin");
  if (p.sinks != nullptr)
    list.add_array("sinks", Role::input, Region::of(p.sinks, sizeof *p.sinks, 1, p.q_heads(), 0));
  add_slopes(list, p.slopes, p.batch(), p.q_heads());
  add_tree(list, p.tree, p.batch() * p.q_len());
  if (p.prefixes.given()) {
    list.add_array("prefixes.cu_sequences", Role::input,
                   Region::of(p.prefixes.cu_sequences, 4, 1, p.prefixes.groups + 1, 0));
    list.add_array("prefixes.lengths", Role::input,
                   Region::of(p.prefixes.lengths, 4, 1, p.prefixes.groups, 0));
  }
  list.add("cache.k", cache, p.k_cache);
  if (!p.values_in_keys()) list.add("cache.v", cache, p.v_cache);
  const Role scales = p.scales.per_token ? cache : Role::input;
  if (p.scales.k.data != nullptr) list.add("scales.k", scales, p.scales.k);
  if (p.scales.v.data != nullptr) list.add("scales.v", scales, p.scales.v);
  list.add("o", Role::output, p.o);
  if (p.lse.data != nullptr) list.add("lse", Role::output, p.lse);
  return list;
}

}  // namespace tandem::core
