// Problem: one validated attention call, as every backend sees it.
#pragma once

#include <cstdint>

#include <tandem/study.h>
#include <tandem/tandem.h>

#include "core/block_list.h"
#include "core/mask.h"
#include "core/quantised.h"
#include "core/slopes.h"
#include "core/tensor_list.h"
#include "core/tree.h"
#include "core/varlen.h"

namespace tandem::core {

/// Address of element [b, s, h, 0]; offsets are 64-bit throughout.
template <typename Element>
Element* row_of(const Tensor& tensor, std::int64_t b, std::int64_t s, std::int64_t h) {
  return static_cast<Element*>(tensor.data) + b * tensor.stride[0] + s * tensor.stride[1] +
         h * tensor.stride[2];
}

/// O = softmax(scale * Q K^T + mask) V, lse = log(sum(exp(...))). Built by api::validate only, so that what
/// it holds is consistent: shapes agree, strides of dimensions of size 1 are 0, scale is resolved.
struct ForwardProblem {
  Tensor q, k, v, o;
  Tensor lse;  ///< data == nullptr: not wanted
  Mask mask;
  float scale;    ///< > 0
  float softcap;  ///< 0: off
  Varlen varlen = {};
  /// Of each query head, the score of one more key, which has no value; nullptr: none.
  const float* sinks = nullptr;
  Slopes slopes = {};
  /// A word for each query, in the order batch, sequence (core/tree.h); nullptr: none.
  const std::uint64_t* tree = nullptr;
  BlockList blocks = {};  ///< which blocks of keys are seen; not given: all
  /// Made for calls of these shapes and lengths, in which they count; nullptr: the call makes its own.
  void* plan = nullptr;
  /// Which Hopper kernel was asked for. Backends without such kernels ignore it.
  tandem_overlap overlap = TANDEM_OVERLAP_AUTO;
  tandem_turn turn = TANDEM_TURN_AUTO;
  int block_m = 0, block_n = 0;    ///< 0: any
  Quantisation quantisation = {};  ///< of 8-bit q, k and v; v's shape is another where they are transposed

  /// Of variable lengths: how many sequences, and the most that one may have.
  std::int64_t batch() const { return varlen.given ? varlen.sequences : q.shape[0]; }
  std::int64_t q_len() const { return varlen.given ? varlen.max_seqlen_q : q.shape[1]; }
  std::int64_t k_len() const { return varlen.given ? varlen.max_seqlen_k : k.shape[1]; }
  std::int64_t q_heads() const { return q.shape[2]; }
  std::int64_t kv_heads() const { return k.shape[2]; }
  std::int64_t head_dim() const { return q.shape[3]; }
  /// Columns of values and outputs, which may be others than queries' and keys'.
  std::int64_t value_dim() const { return quantisation.v_transposed ? head_dim() : v.shape[3]; }
  std::int64_t kv_columns() const { return head_dim() + value_dim(); }  ///< of a key and its value
  /// Query heads that share one key/value head; 1 where there are no heads.
  std::int64_t group() const { return kv_heads() == 0 ? 1 : q_heads() / kv_heads(); }
  tandem_dtype dtype() const { return q.dtype; }
  /// Whether it has what of Hopper's kernels only those for variable lengths know.
  bool needs_list() const {
    return varlen.given || sinks != nullptr || mask.chunk > 0 || slopes.given() || tree != nullptr;
  }
  /// Whether the choice of a kernel is left to the library.
  bool is_free() const {
    return overlap == TANDEM_OVERLAP_AUTO && turn == TANDEM_TURN_AUTO && block_m == 0 && block_n == 0;
  }
  /// Of one length: whether words of a tree are read.
  bool is_tree() const { return tree != nullptr && q_len() <= most_tree_queries; }
  /// Of one length: whether query i of a head sees a key that the mask lets it see, by the tree and the list.
  bool shows(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t key) const {
    return (!is_tree() || word_shows(tree[b * q_len() + i], key - (k_len() - q_len()))) &&
           (!blocks.given() || blocks.shows(b, h, i, key));
  }
};

inline TensorList tensors_of(const ForwardProblem& p) {
  TensorList list;
  list.add("q", Role::input, p.q);
  const Role keys = p.varlen.appends() ? Role::updated : Role::input;
  list.add("k", keys, p.k);
  list.add("v", keys, p.v);
  list.add("o", Role::output, p.o);
  if (p.lse.data != nullptr) list.add("lse", Role::output, p.lse);
  const auto add_scales = [&list](const char* name, const Scales& scales) {
    if (scales.values.data != nullptr) list.add(name, Role::input, scales.values);
  };
  if (p.sinks != nullptr)
    list.add_array("sinks", Role::input, Region::of(p.sinks, sizeof *p.sinks, 1, p.q_heads(), 0));
  add_slopes(list, p.slopes, p.batch(), p.q_heads());
  add_tree(list, p.tree, p.q.shape[0] * p.q.shape[1]);
  add_block_list(list, p.blocks, p.batch(), p.q_heads(), p.q_len());
  add_scales("scales.q", p.quantisation.q);
  add_scales("scales.k", p.quantisation.k);
  add_scales("scales.v", p.quantisation.v);
  if (p.quantisation.v_shift.given()) list.add("scales.v_shift", Role::input, p.quantisation.v_shift.values);
  if (p.quantisation.q_dot_k_shift.data != nullptr)
    list.add("scales.q_dot_k_shift", Role::input, p.quantisation.q_dot_k_shift);
  const Varlen& lengths = p.varlen;
  add_all_lengths(list, lengths);
  if (lengths.appends()) {
    list.add("varlen.k_new", Role::input, lengths.k_new);
    list.add("varlen.v_new", Role::input, lengths.v_new);
  }
  add_rotary(list, lengths.rotary, "varlen.rotary.cos", "varlen.rotary.sin");
  if (lengths.page_table != nullptr)
    list.add_array("varlen.page_table", Role::input,
                   Region::of(lengths.page_table, sizeof *lengths.page_table, lengths.sequences,
                              lengths.pages_per_sequence, lengths.page_table_stride));
  return list;
}

/// Matrix FLOPs of the forward call by the field's convention: 2 * b * h * (d + dv) * (visible query-key
/// pairs).
inline double forward_flops(const ForwardProblem& p) {
  double pairs = 0;
  for (std::int64_t i = 0; i < p.q_len(); ++i) {
    const KeyRange keys = p.mask.visible_keys(i, p.q_len(), p.k_len());
    pairs += static_cast<double>(keys.end - keys.begin);
  }
  return 2.0 * static_cast<double>(p.batch() * p.q_heads() * p.kv_columns()) * pairs;
}

}  // namespace tandem::core
