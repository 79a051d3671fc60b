// BackwardProblem: one validated call of the backward pass, as every backend sees it.
#pragma once

#include <cstdint>

#include <tandem/tandem.h>

#include "core/mask.h"
#include "core/problem.h"

namespace tandem::core {

/// Gradients of a loss with respect to q, k and v, given `dout`, that with respect to o, and maybe `dlse`,
/// that with respect to lse. With x = scale * q k^T, s = softcap * tanh(x / softcap) (or x) and
///   p = exp(s - lse), delta = rowsum(dout o) - dlse, ds = p (dout v^T - delta), dx = ds (1 - tanh^2) (or ds)
/// they are dv = p^T dout, dq = scale * dx k and dk = scale * dx^T q, where p is 0 for what the mask hides.
///
/// A row that sees no key, or whose lse is -inf, has dq = 0 and no part in dk and dv; its q, o, dout and dlse
/// do not count. A key that nobody sees has dk = dv = 0.
///
/// The gradients of sinks, a key more of each head that has no value and that no mask hides, are
///   dsink = -sum(exp(sink - lse) delta)
/// over all rows but those whose lse is -inf. The others need the sinks only in lse.
///
/// Built by api::validate_backward only, so that what it holds is consistent: shapes agree, strides of
/// dimensions of size 1 are 0, scale is resolved.
struct BackwardProblem {
  Tensor q, k, v;
  Tensor o, lse;      ///< of the forward
  Tensor dout;        ///< shape of o
  Tensor dlse;        ///< shape of lse, fp32; data == nullptr: 0
  Tensor dq, dk, dv;  ///< written
  Mask mask;
  float scale;                   ///< > 0
  float softcap;                 ///< 0: off
  const float* sinks = nullptr;  ///< of each query head; nullptr: none
  float* dsinks = nullptr;       ///< written; nullptr: not wanted. Given, sinks are too
  /// Of cu_seqlens_q, cu_seqlens_k and seqused_k alone; the mask is each sequence's own then.
  Varlen varlen = {};

  std::int64_t batch() const { return varlen.given ? varlen.sequences : q.shape[0]; }
  std::int64_t q_len() const { return varlen.given ? varlen.max_seqlen_q : q.shape[1]; }
  std::int64_t k_len() const { return varlen.given ? varlen.max_seqlen_k : k.shape[1]; }
  std::int64_t q_heads() const { return q.shape[2]; }
  std::int64_t kv_heads() const { return k.shape[2]; }
  std::int64_t head_dim() const { return q.shape[3]; }
  /// Query heads that share one key/value head; 1 where there are no heads.
  std::int64_t group() const { return kv_heads() == 0 ? 1 : q_heads() / kv_heads(); }
  tandem_dtype dtype() const { return q.dtype; }
};

inline TensorList tensors_of(const BackwardProblem& p) {
  TensorList list;
  list.add("q", Role::input, p.q);
  list.add("k", Role::input, p.k);
  list.add("v", Role::input, p.v);
  list.add("o", Role::input, p.o);
  list.add("lse", Role::input, p.lse);
  list.add("dout", Role::input, p.dout);
  if (p.dlse.data != nullptr) list.add("dlse", Role::input, p.dlse);
  list.add("dq", Role::output, p.dq);
  list.add("dk", Role::output, p.dk);
  list.add("dv", Role::output, p.dv);
  add_lengths(list, p.varlen);
  if (p.dsinks != nullptr) {
    const auto of_heads = [&p](const float* data) {
      return Region::of(data, sizeof *data, 1, p.q_heads(), 0);
    };
    list.add_array("sinks", Role::input, of_heads(p.sinks));
    list.add_array("dsinks", Role::output, of_heads(p.dsinks));
  }
  return list;
}

/// The forward call whose gradients these are.
inline ForwardProblem forward_of(const BackwardProblem& p) {
  return {.q = p.q,
          .k = p.k,
          .v = p.v,
          .o = p.o,
          .lse = p.lse,
          .mask = p.mask,
          .scale = p.scale,
          .softcap = p.softcap,
          .varlen = p.varlen,
          .sinks = p.sinks};
}

/// Matrix FLOPs by the field's convention: five products where the forward has two.
inline double backward_flops(const BackwardProblem& p) { return 2.5 * forward_flops(forward_of(p)); }

}  // namespace tandem::core
