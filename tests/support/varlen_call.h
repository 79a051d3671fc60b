// A problem of variable lengths as callers of the C interface have it.
#pragma once

#include <tandem/tandem.h>

#include "core/problem.h"
#include "tests/support/forward_case.h"

namespace tandem::test {

/// Arguments for a problem of variable lengths. Points into itself, and to what the problem points to. Bounds
/// are said where there is a list, which has as many rows as they need.
struct VarlenCall {
  tandem_mask mask;
  tandem_rotary rotary{};
  tandem_varlen varlen{};
  tandem_block_list block_list{};
  tandem_forward_args args{};

  VarlenCall(const core::ForwardProblem& p, const tandem_mask& c_mask, tandem_backend backend)
      : mask(c_mask) {
    varlen.struct_size = sizeof(varlen);
    varlen.batch = p.varlen.sequences;
    varlen.cu_seqlens_q = p.varlen.cu_seqlens_q, varlen.cu_seqlens_k = p.varlen.cu_seqlens_k;
    varlen.seqused_k = p.varlen.seqused_k, varlen.page_table = p.varlen.page_table;
    varlen.page_table_stride = p.varlen.page_table_stride;
    varlen.pages_per_sequence = p.varlen.pages_per_sequence;
    varlen.k_new = p.varlen.k_new, varlen.v_new = p.varlen.v_new;
    varlen.cu_seqlens_k_new = p.varlen.cu_seqlens_k_new;
    varlen.leftpad_k = p.varlen.leftpad_k, varlen.batch_index = p.varlen.batch_index;
    varlen.split_size = p.varlen.split_size;
    const core::Rotary& angles = p.varlen.rotary;
    rotary = {sizeof(rotary),   angles.cos, angles.sin,        angles.dtype,
              angles.positions, angles.dim, angles.interleaved};
    if (angles.cos != nullptr) varlen.rotary = &rotary;
    args.struct_size = sizeof(args);
    args.backend = backend;
    args.q = p.q, args.k = p.k, args.v = p.v, args.o = p.o, args.lse = p.lse;
    args.mask = &mask;
    args.scale = p.scale;
    args.softcap = p.softcap;
    args.varlen = &varlen;
    args.sinks = p.sinks;
    args.alibi_slopes = p.slopes.data, args.alibi_stride = p.slopes.stride;
    args.tree = p.tree;
    if (!p.blocks.given()) return;
    varlen.max_seqlen_q = p.varlen.max_seqlen_q;
    block_list = to_c(p.blocks);
    args.block_list = &block_list;
  }
  VarlenCall(const VarlenCall&) = delete;
  VarlenCall& operator=(const VarlenCall&) = delete;
};

}  // namespace tandem::test
