#include "api/validate.h"

#include <vector>

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

  bool has_varlen() const { return varlen != nullptr; }
};

Status read(const tandem_forward_args* given, Args* known) {
  const StructName args{"args", "tandem_forward_args", TANDEM_SIZE_UP_TO(tandem_forward_args, study)};
  if (Status s = read_struct<tandem_forward_args>(args, given, known); !s.ok()) return s;
  if (Status s = read_mask(known->mask, &known->own_mask); !s.ok()) return s;
  if (Status s = read_study(known->study, &known->own_study); !s.ok()) return s;
  return read_varlen(known->varlen, &known->own_varlen);
}

bool wants_lse(const Args& args) { return args.lse.data != nullptr; }

std::vector<Named> inputs_of(const Args& args) { return {{"q", &args.q}, {"k", &args.k}, {"v", &args.v}}; }

std::vector<Named> outputs_of(const Args& args) {
  if (wants_lse(args)) return {{"o", &args.o}, {"lse", &args.lse}};
  return {{"o", &args.o}};
}

std::vector<Named> tensors_of(const Args& args) {
  std::vector<Named> all = inputs_of(args);
  for (const Named& output : outputs_of(args)) all.push_back(output);
  return all;
}

Status check_options(const Args& args) {
  if (Status s = check_backend(args.backend); !s.ok()) return s;
  if (Status s = check_study(args.own_study); !s.ok()) return s;
  if (Status s = check_mask(args.own_mask); !s.ok()) return s;
  return check_scales(args.scale, args.softcap);
}

Status check_dtypes(const Args& args) {
  if (Status s = check_dtype_of_q(args.q); !s.ok()) return s;
  for (const Named& tensor : {Named{"k", &args.k}, Named{"v", &args.v}, Named{"o", &args.o}})
    if (Status s = check_dtype_as_q(tensor, args.q); !s.ok()) return s;
  return wants_lse(args) ? check_dtype_of_lse({"lse", &args.lse}) : Status();
}

Status check_shapes(const Args& args) {
  if (Status s = check_sizes(tensors_of(args)); !s.ok()) return s;
  if (Status s = check_head_dim(args.q); !s.ok()) return s;
  const Named q{"q", &args.q}, k{"k", &args.k}, v{"v", &args.v}, o{"o", &args.o}, lse{"lse", &args.lse};
  std::vector<Agreement> agreements = {{k, q, 3}, {v, k, 0}, {v, k, 1}, {v, k, 2}, {v, q, 3},
                                       {o, q, 0}, {o, q, 1}, {o, q, 2}, {o, q, 3}};
  if (!args.has_varlen()) agreements.insert(agreements.begin(), {k, q, 0});
  if (wants_lse(args))
    for (int i = 0; i < 3; ++i) agreements.push_back({lse, q, i});
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  if (wants_lse(args))
    if (Status s = check_columns_of_lse({"lse", &args.lse}); !s.ok()) return s;
  if (args.has_varlen())
    if (Status s = check_varlen(args.own_varlen, {args.q, args.k}); !s.ok()) return s;
  return check_heads(args.q, k);
}

Status check_layouts(const Args& args) {
  if (Status s = check_strides(tensors_of(args)); !s.ok()) return s;
  return check_distinct(outputs_of(args));
}

Status check_memory(const Args& args) {
  const VarlenArrays arrays(args.own_varlen);
  std::vector<Named> inputs = inputs_of(args), all = tensors_of(args);
  for (const Named& array : arrays.named()) inputs.push_back(array), all.push_back(array);
  if (Status s = check_addresses(all); !s.ok()) return s;
  return check_overlaps(inputs, outputs_of(args));
}

}  // namespace

Status validate(const tandem_forward_args* args, bool need_data, core::ForwardProblem* problem) {
  Args known;
  if (Status s = read(args, &known); !s.ok()) return s;
  for (Tensor* tensor : {&known.q, &known.k, &known.v, &known.o, &known.lse}) drop_unused_strides(*tensor);
  for (const auto check : {check_options, check_dtypes, check_shapes, check_layouts})
    if (Status s = check(known); !s.ok()) return s;
  if (need_data)
    if (Status s = check_memory(known); !s.ok()) return s;
  const core::Varlen varlen =
      known.has_varlen() ? resolve_varlen(known.own_varlen, {known.q, known.k}) : core::Varlen{};
  const std::int64_t q_len = varlen.given ? varlen.max_seqlen_q : known.q.shape[1],
                     k_len = varlen.given ? varlen.max_seqlen_k : known.k.shape[1];
  *problem = {.q = known.q,
              .k = known.k,
              .v = known.v,
              .o = known.o,
              .lse = wants_lse(known) ? known.lse : Tensor{},
              .mask = resolve_mask(known.own_mask, q_len, k_len),
              .scale = resolve_scale(known.scale, known.q.shape[3]),
              .softcap = known.softcap,
              .varlen = varlen,
              .overlap = known.own_study.overlap,
              .turn = known.own_study.turn};
  return {};
}

}  // namespace tandem::api
