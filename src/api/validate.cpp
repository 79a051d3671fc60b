#include "api/validate.h"

#include <algorithm>

#include "api/check_eight_bit.h"
#include "api/checks.h"

namespace tandem::api {
namespace {

using core::Status;
using core::Tensor;

/// The caller's arguments, and what they point to.
struct Args : tandem_forward_args {
  tandem_mask own_mask;
  tandem_study own_study;
  tandem_varlen own_varlen;
  tandem_scales own_scales;
  tandem_rotary own_rotary;
  tandem_block_list own_block_list;

  bool has_varlen() const { return varlen != nullptr; }
  bool has_rotary() const { return own_varlen.rotary != nullptr; }
  bool is_8_bit() const { return api::is_8_bit(q.dtype); }
};

Status read(const tandem_forward_args* given, Args* known) {
  const StructName args{"args", "tandem_forward_args", TANDEM_SIZE_UP_TO(tandem_forward_args, study)};
  if (Status s = read_struct<tandem_forward_args>(args, given, known); !s.ok()) return s;
  if (Status s = read_mask(known->mask, &known->own_mask); !s.ok()) return s;
  if (Status s = read_study(known->study, &known->own_study); !s.ok()) return s;
  if (Status s = read_varlen(known->varlen, &known->own_varlen); !s.ok()) return s;
  if (Status s = read_rotary("varlen.rotary", known->own_varlen.rotary, &known->own_rotary); !s.ok())
    return s;
  if (Status s = read_block_list(known->block_list, &known->own_block_list); !s.ok()) return s;
  return read_scales(known->scales, &known->own_scales);
}

bool wants_lse(const Args& args) { return args.lse.data != nullptr; }

ShortList<Named> named_tensors(const Args& args) {
  ShortList<Named> all = {{"q", &args.q}, {"k", &args.k}, {"v", &args.v}};
  for (const Named& scales : scales_of(args.own_scales)) all.push_back(scales);
  for (const Named& added : tensors_of_varlen(args.own_varlen)) all.push_back(added);
  all.push_back({"o", &args.o});
  if (wants_lse(args)) all.push_back({"lse", &args.lse});
  return all;
}

Status check_options(const Args& args) {
  if (Status s = check_backend(args.backend); !s.ok()) return s;
  if (Status s = check_study(args.own_study); !s.ok()) return s;
  if (Status s = check_mask(args.own_mask); !s.ok()) return s;
  if (Status s = check_scales({args.scale, args.softcap}); !s.ok()) return s;
  if (args.block_list != nullptr)
    if (Status s = check_block_list(args.own_block_list); !s.ok()) return s;
  return check_slopes(args.alibi_slopes, args.alibi_stride, {args.scale, args.softcap});
}

/// What 8-bit inputs do not have.
Status refuse_with_8_bit(const Args& args, const char* given, const char* advice) {
  return unsupported(given, ", but q.dtype is ", describe_dtype(number_of(args.q.dtype)), "; 8-bit inputs ",
                     advice);
}

/// Of 8-bit inputs, whose output has more.
Status check_dtypes_of_8_bit(const Args& args) {
  if (args.own_mask.chunk != 0) return refuse_with_8_bit(args, "mask.chunk is not 0", "have no chunks");
  if (args.alibi_slopes != nullptr)
    return refuse_with_8_bit(args, "alibi_slopes are given", "have no slopes: pass NULL");
  if (args.tree != nullptr) return refuse_with_8_bit(args, "tree is given", "are no trees: pass NULL");
  if (args.block_list != nullptr)
    return refuse_with_8_bit(args, "block_list is given", "have no block lists: pass NULL");
  if (args.sinks != nullptr) return refuse_with_8_bit(args, "sinks are given", "have no sinks: pass NULL");
  if (args.has_varlen())
    return refuse_with_8_bit(args, "varlen is given", "have the tensors' lengths: pass NULL");
  if (Status s = check_dtypes_beside(args.q, args.k, args.v); !s.ok()) return s;
  if (Status s = check_dtype_of_output(args.o); !s.ok()) return s;
  return check_dtypes_of_scales(args.own_scales);
}

Status check_dtypes(const Args& args) {
  if (args.is_8_bit()) {
    if (Status s = check_dtypes_of_8_bit(args); !s.ok()) return s;
    return wants_lse(args) ? check_dtype_of_lse({"lse", &args.lse}) : Status();
  }
  if (Status s = check_dtype_of_q(args.q); !s.ok()) return s;
  if (args.scales != nullptr) return unused_scales(args.q);
  for (const Named& tensor : {Named{"k", &args.k}, Named{"v", &args.v}, Named{"o", &args.o}})
    if (Status s = check_dtype_as_q(tensor, args.q); !s.ok()) return s;
  return wants_lse(args) ? check_dtype_of_lse({"lse", &args.lse}) : Status();
}

Status check_shapes(const Args& args) {
  if (Status s = check_sizes(named_tensors(args)); !s.ok()) return s;
  const std::int64_t most_columns = args.is_8_bit() ? max_head_dim : max_forward_head_dim;
  if (Status s = check_head_dim({"q", &args.q}, most_columns); !s.ok()) return s;
  const Named q{"q", &args.q}, k{"k", &args.k}, v{"v", &args.v}, o{"o", &args.o}, lse{"lse", &args.lse};
  const bool by_column = args.is_8_bit() && args.own_scales.v_layout == TANDEM_VALUES_BY_COLUMN;
  ShortList<Agreement> agreements;
  if (!args.has_varlen()) agreements.push_back({k, q, 0});
  for (const Agreement& own : {Agreement{k, q, 3}, {v, k, 0}}) agreements.push_back(own);
  if (!by_column) agreements.push_back({v, k, 1});
  if (args.is_8_bit() && !by_column) agreements.push_back({v, q, 3});
  agreements.push_back({v, k, 2});
  for (int i = 0; i < 3; ++i) agreements.push_back({o, q, i});
  agreements.push_back({o, args.is_8_bit() ? q : v, 3});
  if (wants_lse(args))
    for (int i = 0; i < 3; ++i) agreements.push_back({lse, q, i});
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  if (!args.is_8_bit())
    if (Status s = check_head_dim(v, most_columns); !s.ok()) return s;
  if (wants_lse(args))
    if (Status s = check_columns_of_lse({"lse", &args.lse}); !s.ok()) return s;
  if (args.has_varlen())
    if (Status s = check_varlen(args.own_varlen, {args.q, args.k, args.v}); !s.ok()) return s;
  if (args.has_rotary())
    if (Status s = check_rotary("varlen.rotary", args.own_rotary, {"q", &args.q}); !s.ok()) return s;
  if (Status s = check_heads(args.q, k); !s.ok()) return s;
  return args.is_8_bit() ? check_shapes_of_8_bit(args, args.own_scales) : Status();
}

core::ForwardProblem problem_of(const Args& args) {
  core::Varlen varlen =
      args.has_varlen() ? resolve_varlen(args.own_varlen, {args.q, args.k, args.v}) : core::Varlen{};
  if (args.has_rotary()) varlen.rotary = resolve_rotary(args.own_rotary);
  const std::int64_t q_len = varlen.given ? varlen.max_seqlen_q : args.q.shape[1],
                     k_len = varlen.given ? varlen.max_seqlen_k : args.k.shape[1];
  // Where bits do not depend on the batch, a mask is not simplified by its bounds.
  const std::int64_t least = varlen.keeps_bits() ? core::BasicMask<std::int32_t>::max_length : 0;
  return {.q = args.q,
          .k = args.k,
          .v = args.v,
          .o = args.o,
          .lse = wants_lse(args) ? args.lse : Tensor{},
          .mask = resolve_mask(args.own_mask, std::max(q_len, least), std::max(k_len, least)),
          .scale = resolve_scale(args.scale, args.q.shape[3]),
          .softcap = args.softcap,
          .varlen = varlen,
          .sinks = args.sinks,
          .slopes = {args.alibi_slopes, args.alibi_slopes != nullptr ? args.alibi_stride : 0},
          .tree = args.tree,
          .blocks = args.block_list != nullptr ? resolve_block_list(args.own_block_list) : core::BlockList{},
          .plan = args.plan,
          .overlap = args.own_study.overlap,
          .turn = args.own_study.turn,
          .block_m = args.own_study.block_m,
          .block_n = args.own_study.block_n,
          .quantisation = resolve_scales(args.own_scales)};
}

}  // namespace

Status validate(const tandem_forward_args* args, bool need_data, core::ForwardProblem* problem) {
  Args known;
  if (Status s = read(args, &known); !s.ok()) return s;
  for (Tensor* tensor : {&known.q, &known.k, &known.v, &known.o, &known.lse, &known.own_scales.q,
                         &known.own_scales.k, &known.own_scales.v, &known.own_scales.v_shift,
                         &known.own_scales.q_dot_k_shift, &known.own_varlen.k_new, &known.own_varlen.v_new})
    drop_unused_strides(*tensor);
  for (const auto check : {check_options, check_dtypes, check_shapes})
    if (Status s = check(known); !s.ok()) return s;
  *problem = problem_of(known);
  return check_tensors(tensors_of(*problem), need_data);
}

}  // namespace tandem::api
