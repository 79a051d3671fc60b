#include "api/check_eight_bit.h"
#include "api/checks.h"
#include "api/extent.h"
#include "api/validate.h"

namespace tandem::api {
namespace {

using core::Status;
using core::Tensor;

/// The caller's arguments, and what they point to.
struct Args : tandem_quantize_args {
  tandem_rotary own_rotary;
};

constexpr StructName args_name{"args", "tandem_quantize_args", TANDEM_SIZE_UP_TO(tandem_quantize_args, seed)};

Status check_options(const Args& args) {
  if (Status s = check_layout_of_values("layout", args.layout); !s.ok()) return s;
  if (Status s = check_switch("scale_given", args.scale_given); !s.ok()) return s;
  if (Status s = check_switch("hadamard", args.hadamard); !s.ok()) return s;
  if (Status s = check_terms("terms", args.terms, args.layout); !s.ok()) return s;
  if (args.amplitude != 0 && !(args.amplitude >= 1 && args.amplitude <= core::E4m3::largest))
    return invalid("amplitude is ", args.amplitude, "; it has to be from 1 to 448, or 0 for 448");
  if (args.amplitude != 0 && args.scale_given)
    return invalid("amplitude is ", args.amplitude,
                   ", but scale_given is 1; given scales are taken as they are");
  if (Status s = check_switch("best_scale", args.best_scale); !s.ok()) return s;
  if (args.best_scale == 1 && args.scale_given)
    return invalid("best_scale is 1, but scale_given is 1; given scales are taken as they are");
  if (args.best_scale == 1 && args.layout == TANDEM_VALUES_BY_COLUMN)
    return invalid("best_scale is 1, but layout is TANDEM_VALUES_BY_COLUMN; it is for rows by key");
  if (args.rotary != nullptr && args.layout == TANDEM_VALUES_BY_COLUMN)
    return invalid("rotary is given, but layout is TANDEM_VALUES_BY_COLUMN; values are not rotated");
  if (args.k_shift.data != nullptr && args.layout == TANDEM_VALUES_BY_COLUMN)
    return invalid(
        "k_shift is given, but layout is TANDEM_VALUES_BY_COLUMN; it is for queries, which lie by key");
  return {};
}

bool has_dots(const Args& args) { return args.q_dot_k_shift.data != nullptr; }

Status check_dtypes(const Args& args) {
  if (const int dtype = number_of(args.x.dtype); dtype < TANDEM_BF16 || dtype > TANDEM_FP32)
    return invalid("x.dtype is ", describe_dtype(dtype), "; use TANDEM_BF16, TANDEM_FP16 or TANDEM_FP32");
  const int out = number_of(args.out.dtype);
  if (!is_8_bit(args.out.dtype))
    return invalid("out.dtype is ", describe_dtype(out), "; it has to be TANDEM_E4M3 or TANDEM_INT8");
  if (out == TANDEM_INT8 && args.amplitude != 0)
    return invalid("amplitude is ", args.amplitude, ", but out.dtype is ", describe_dtype(out), "; pass 0");
  if (out == TANDEM_INT8 && args.best_scale == 1)
    return invalid("best_scale is 1, but out.dtype is ", describe_dtype(out), "; it is for TANDEM_E4M3");
  if (out == TANDEM_INT8 && args.layout == TANDEM_VALUES_BY_COLUMN)
    return invalid("out.dtype is ", describe_dtype(out),
                   ", but layout is TANDEM_VALUES_BY_COLUMN; values are TANDEM_E4M3");
  if (const int dtype = number_of(args.scale.dtype); dtype != TANDEM_FP32)
    return invalid("scale.dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
  if (const int dtype = number_of(args.q_dot_k_shift.dtype); has_dots(args) && dtype != TANDEM_FP32)
    return invalid("q_dot_k_shift.dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
  return {};
}

ShortList<Named> named_tensors(const Args& args) {
  ShortList<Named> all = {{"x", &args.x}, {"out", &args.out}, {"scale", &args.scale}};
  for (const Named& own :
       {Named{"shift", &args.shift}, {"k_shift", &args.k_shift}, {"q_dot_k_shift", &args.q_dot_k_shift}})
    if (own.tensor->data != nullptr) all.push_back(own);
  return all;
}

/// Of an x without elements the dots are empty, and may be NULL.
Status check_pairing_of_k_shift(const Args& args) {
  if ((args.k_shift.data != nullptr) == has_dots(args) || is_empty(core::Region::of(args.x))) return {};
  return invalid(has_dots(args) ? "k_shift.data is NULL, but q_dot_k_shift is given"
                                : "q_dot_k_shift.data is NULL, but k_shift is given",
                 "; pass both or neither");
}

Status check_shapes(const Args& args) {
  if (Status s = check_sizes(named_tensors(args)); !s.ok()) return s;
  if (Status s = check_head_dim({"x", &args.x}); !s.ok()) return s;
  if (Status s = check_hadamard({"x", &args.x}, "hadamard", args.hadamard); !s.ok()) return s;
  if (Status s = check_pairing_of_k_shift(args); !s.ok()) return s;
  if (args.rotary != nullptr)
    if (Status s = check_rotary("rotary", args.own_rotary, {"x", &args.x}); !s.ok()) return s;
  const Named x{"x", &args.x}, out{"out", &args.out};
  ShortList<Agreement> agreements = {{out, x, 0}, {out, x, 2}};
  if (args.layout == TANDEM_VALUES_BY_KEY) agreements.append({{out, x, 1}, {out, x, 3}});
  const Named dots{"q_dot_k_shift", &args.q_dot_k_shift};
  if (has_dots(args)) agreements.append({{dots, x, 0}, {dots, x, 1}, {dots, x, 2}});
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  if (has_dots(args))
    if (Status s = check_columns_of_lse(dots); !s.ok()) return s;
  for (const Named& shift : {Named{"shift", &args.shift}, {"k_shift", &args.k_shift}})
    if (Status s = check_shift(shift, x, /*any_divisor=*/true); !s.ok()) return s;
  if (args.layout == TANDEM_VALUES_BY_COLUMN)
    if (Status s = check_columns(out, x, number_of_terms(args.terms) * args.x.shape[3]); !s.ok()) return s;
  if (Status s = check_shape_of_scales({{"scale", &args.scale}, "block", args.block, x, {args.x.shape[2]}});
      !s.ok())
    return s;
  if (args.scale.data == nullptr && args.x.shape[0] > 0 && args.x.shape[1] > 0 && args.x.shape[2] > 0)
    return invalid("scale.data is NULL, but x has elements, whose scales it has to hold");
  return {};
}

}  // namespace

Status validate_quantize(const tandem_quantize_args* args, core::QuantizeProblem* problem) {
  Args known;
  if (Status s = read_struct<tandem_quantize_args>(args_name, args, &known); !s.ok()) return s;
  if (Status s = read_rotary("rotary", known.rotary, &known.own_rotary); !s.ok()) return s;
  if (Status s = check_backend(known.backend); !s.ok()) return s;
  for (Tensor* tensor :
       {&known.x, &known.out, &known.scale, &known.shift, &known.k_shift, &known.q_dot_k_shift})
    drop_unused_strides(*tensor);
  for (const auto check : {check_options, check_dtypes, check_shapes})
    if (Status s = check(known); !s.ok()) return s;
  *problem = {
      .x = known.x,
      .out = known.out,
      .by_column = known.layout == TANDEM_VALUES_BY_COLUMN,
      .terms = number_of_terms(known.terms),
      .amplitude = known.amplitude > 0 ? core::rounded_down_to_e4m3(known.amplitude) : core::E4m3::largest,
      .scale = {known.scale, tokens_of_block(known.block)},
      .scale_given = known.scale_given == 1,
      .best_scale = known.best_scale == 1,
      .hadamard = known.hadamard == 1,
      .seed = known.seed,
      .shift = resolve_shift(known.shift),
      .k_shift = resolve_shift(known.k_shift),
      .q_dot_k_shift = has_dots(known) ? known.q_dot_k_shift : Tensor{}};
  if (known.rotary != nullptr) {
    problem->rotary = resolve_rotary(known.own_rotary);
    problem->first_positions = known.first_positions;
  }
  return check_tensors(tensors_of(*problem), /*need_data=*/true);
}

}  // namespace tandem::api
