#include "api/checks.h"
#include "api/validate.h"

namespace tandem::api {
namespace {

using core::Status;
using core::Tensor;

/// The caller's arguments, and what they point to.
struct Args : tandem_backward_args {
  tandem_mask own_mask;
  tandem_varlen own_varlen;

  bool has_varlen() const { return varlen != nullptr; }
};

Status read(const tandem_backward_args* given, Args* known) {
  const StructName args{"args", "tandem_backward_args", TANDEM_SIZE_UP_TO(tandem_backward_args, softcap)};
  if (Status s = read_struct<tandem_backward_args>(args, given, known); !s.ok()) return s;
  if (Status s = read_mask(known->mask, &known->own_mask); !s.ok()) return s;
  return read_varlen(known->varlen, &known->own_varlen);
}

bool has_dlse(const Args& args) { return args.dlse.data != nullptr; }

ShortList<Named> named_tensors(const Args& args) {
  ShortList<Named> all = {{"q", &args.q}, {"k", &args.k},     {"v", &args.v},
                          {"o", &args.o}, {"lse", &args.lse}, {"dout", &args.dout}};
  if (has_dlse(args)) all.push_back({"dlse", &args.dlse});
  all.append({{"dq", &args.dq}, {"dk", &args.dk}, {"dv", &args.dv}});
  return all;
}

/// One number per query and head.
ShortList<Named> statistics_of(const Args& args) {
  if (has_dlse(args)) return {{"lse", &args.lse}, {"dlse", &args.dlse}};
  return {{"lse", &args.lse}};
}

/// Of variable lengths only those of packed sequences, and of entries, have gradients.
Status check_options_of_varlen(const tandem_varlen& varlen) {
  const auto refuse = [](const char* name, const char* what, const char* instead) {
    return unsupported("varlen.", name, " is given; tandem_backward knows no ", what, ": ", instead,
                       ", and pass NULL");
  };
  const char* const as_part = "pass new keys and values as a part of k and v";
  if (varlen.page_table != nullptr)
    return refuse("page_table", "pages",
                  "gather each sequence's keys and values into packed ones (varlen.cu_seqlens_k)");
  if (varlen.k_new.data != nullptr) return refuse("k_new", "keys to append", as_part);
  if (varlen.v_new.data != nullptr) return refuse("v_new", "values to append", as_part);
  if (varlen.cu_seqlens_k_new != nullptr) return refuse("cu_seqlens_k_new", "keys to append", as_part);
  if (varlen.rotary != nullptr)
    return refuse("rotary", "rotary embedding", "pass q and k that were turned before");
  if (varlen.leftpad_k != nullptr)
    return refuse("leftpad_k", "padding",
                  "gather each sequence's keys and values into packed ones (varlen.cu_seqlens_k)");
  if (varlen.batch_index != nullptr)
    return refuse("batch_index", "entries in another order", "gather the entries of k and v in the batch's");
  if (varlen.split_size != 0)
    return unsupported("varlen.split_size is ", varlen.split_size,
                       "; tandem_backward gives the same bits in any batch without: it has to be 0");
  return {};
}

Status check_options(const Args& args) {
  if (Status s = check_backend(args.backend); !s.ok()) return s;
  if (Status s = check_switch("deterministic", args.deterministic); !s.ok()) return s;
  if (Status s = check_mask(args.own_mask); !s.ok()) return s;
  if (args.own_mask.chunk != 0)
    return {TANDEM_UNSUPPORTED,
            "mask.chunk is not 0; tandem_backward knows no chunks: pass each chunk as a sequence of its own "
            "(varlen)"};
  if (args.dsinks != nullptr && args.sinks == nullptr)
    return invalid("sinks is NULL, but dsinks is not; pass the sinks of the forward, or dsinks NULL");
  if (Status s = check_scales({args.scale, args.softcap}); !s.ok()) return s;
  return check_options_of_varlen(args.own_varlen);
}

Status check_dtypes(const Args& args) {
  if (Status s = check_dtype_of_q(args.q); !s.ok()) return s;
  for (const Named& tensor :
       {Named{"k", &args.k}, Named{"v", &args.v}, Named{"o", &args.o}, Named{"dout", &args.dout},
        Named{"dq", &args.dq}, Named{"dk", &args.dk}, Named{"dv", &args.dv}})
    if (Status s = check_dtype_as_q(tensor, args.q); !s.ok()) return s;
  for (const Named& statistic : statistics_of(args))
    if (Status s = check_dtype_of_lse(statistic); !s.ok()) return s;
  return {};
}

Status check_shapes(const Args& args) {
  if (Status s = check_sizes(named_tensors(args)); !s.ok()) return s;
  if (Status s = check_head_dim({"q", &args.q}); !s.ok()) return s;
  const Named q{"q", &args.q}, k{"k", &args.k};
  ShortList<Agreement> agreements;
  if (!args.has_varlen()) agreements.push_back({k, q, 0});
  agreements.push_back({k, q, 3});
  const auto agree = [&](const Named& tensor, const Named& model, int dimensions) {
    for (int i = 0; i < dimensions; ++i) agreements.push_back({tensor, model, i});
  };
  agree({"v", &args.v}, k, 4);
  for (const Named& tensor : {Named{"o", &args.o}, Named{"dout", &args.dout}, Named{"dq", &args.dq}})
    agree(tensor, q, 4);
  for (const Named& tensor : {Named{"dk", &args.dk}, Named{"dv", &args.dv}}) agree(tensor, k, 4);
  for (const Named& statistic : statistics_of(args)) agree(statistic, q, 3);
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  for (const Named& statistic : statistics_of(args))
    if (Status s = check_columns_of_lse(statistic); !s.ok()) return s;
  if (args.has_varlen())
    if (Status s = check_varlen(args.own_varlen, {args.q, args.k, args.v}); !s.ok()) return s;
  return check_heads(args.q, k);
}

/// Keys without a query head: as many heads, and no queries, so that no backend divides by the group.
void name_heads(core::BackwardProblem& p) {
  for (Tensor* tensor : {&p.q, &p.o, &p.lse, &p.dout, &p.dlse, &p.dq})
    tensor->shape[1] = 0, tensor->shape[2] = p.kv_heads();
  p.varlen.max_seqlen_q = 0;
  p.sinks = p.dsinks = nullptr;
}

core::BackwardProblem problem_of(const Args& args) {
  core::BackwardProblem problem = {.q = args.q,
                                   .k = args.k,
                                   .v = args.v,
                                   .o = args.o,
                                   .lse = args.lse,
                                   .dout = args.dout,
                                   .dlse = has_dlse(args) ? args.dlse : Tensor{},
                                   .dq = args.dq,
                                   .dk = args.dk,
                                   .dv = args.dv,
                                   .mask = {},
                                   .scale = resolve_scale(args.scale, args.q.shape[3]),
                                   .softcap = args.softcap,
                                   .sinks = args.sinks,
                                   .dsinks = args.dsinks,
                                   .varlen = args.has_varlen()
                                                 ? resolve_varlen(args.own_varlen, {args.q, args.k, args.v})
                                                 : core::Varlen{}};
  problem.mask = resolve_mask(args.own_mask, problem.q_len(), problem.k_len());
  return problem;
}

}  // namespace

Status validate_backward(const tandem_backward_args* args, bool need_data, core::BackwardProblem* problem) {
  Args known;
  if (Status s = read(args, &known); !s.ok()) return s;
  for (Tensor* tensor : {&known.q, &known.k, &known.v, &known.o, &known.lse, &known.dout, &known.dlse,
                         &known.dq, &known.dk, &known.dv})
    drop_unused_strides(*tensor);
  for (const auto check : {check_options, check_dtypes, check_shapes})
    if (Status s = check(known); !s.ok()) return s;
  *problem = problem_of(known);
  if (Status s = check_tensors(tensors_of(*problem), need_data); !s.ok()) return s;
  if (problem->q_heads() == 0 && problem->kv_heads() > 0) name_heads(*problem);
  return {};
}

}  // namespace tandem::api
