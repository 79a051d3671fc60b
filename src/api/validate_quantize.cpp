#include <bit>
#include <limits>

#include "api/check_eight_bit.h"
#include "api/checks.h"
#include "api/validate.h"

namespace tandem::api {
namespace {

using core::Status;
using core::Tensor;
using Args = tandem_quantize_args;

constexpr StructName args_name{"args", "tandem_quantize_args", TANDEM_SIZE_UP_TO(Args, seed)};

Status check_switch(const char* name, std::int32_t value) {
  if (value == 0 || value == 1) return {};
  return invalid(name, " is ", value, "; it has to be 0 or 1");
}

Status check_options(const Args& args) {
  if (Status s = check_layout_of_values("layout", args.layout); !s.ok()) return s;
  if (Status s = check_switch("scale_given", args.scale_given); !s.ok()) return s;
  return check_switch("hadamard", args.hadamard);
}

Status check_dtypes(const Args& args) {
  if (const int dtype = number_of(args.x.dtype); dtype < TANDEM_BF16 || dtype > TANDEM_FP32)
    return invalid("x.dtype is ", describe_dtype(dtype), "; use TANDEM_BF16, TANDEM_FP16 or TANDEM_FP32");
  if (const int dtype = number_of(args.out.dtype); dtype != TANDEM_E4M3)
    return invalid("out.dtype is ", describe_dtype(dtype), "; it has to be TANDEM_E4M3");
  if (const int dtype = number_of(args.scale.dtype); dtype != TANDEM_FP32)
    return invalid("scale.dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
  return {};
}

ShortList<Named> named_tensors(const Args& args) {
  return {{"x", &args.x}, {"out", &args.out}, {"scale", &args.scale}};
}

Status check_head_dim_of_x(const Args& args) {
  const std::int64_t d = args.x.shape[3];
  if (d == 0 || d % 8 != 0 || d > 256)
    return invalid("x.shape[3] (head dim) is ", d, "; it has to be a multiple of 8 from 8 to 256");
  if (args.hadamard && !std::has_single_bit(static_cast<std::uint64_t>(d)))
    return invalid("x.shape[3] (head dim) is ", d, ", but hadamard is 1, which needs a power of two");
  return {};
}

Status check_shapes(const Args& args) {
  if (Status s = check_sizes(named_tensors(args)); !s.ok()) return s;
  if (Status s = check_head_dim_of_x(args); !s.ok()) return s;
  const Named x{"x", &args.x}, out{"out", &args.out};
  ShortList<Agreement> agreements = {{out, x, 0}, {out, x, 2}};
  if (args.layout == TANDEM_VALUES_BY_KEY) agreements.append({{out, x, 1}, {out, x, 3}});
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  if (args.layout == TANDEM_VALUES_BY_COLUMN)
    if (Status s = check_columns(out, x, args.x.shape[3]); !s.ok()) return s;
  return check_shape_of_scales({{"scale", &args.scale}, "block", args.block, x, {args.x.shape[2]}});
}

}  // namespace

Status validate_quantize(const tandem_quantize_args* args, core::QuantizeProblem* problem) {
  Args known;
  if (Status s = read_struct(args_name, args, &known); !s.ok()) return s;
  if (Status s = check_backend(known.backend); !s.ok()) return s;
  for (Tensor* tensor : {&known.x, &known.out, &known.scale}) drop_unused_strides(*tensor);
  for (const auto check : {check_options, check_dtypes, check_shapes})
    if (Status s = check(known); !s.ok()) return s;
  *problem = {.x = known.x,
              .out = known.out,
              .by_column = known.layout == TANDEM_VALUES_BY_COLUMN,
              .scale = {known.scale, tokens_of_block(known.block)},
              .scale_given = known.scale_given == 1,
              .hadamard = known.hadamard == 1,
              .seed = known.seed};
  return check_tensors(tensors_of(*problem), /*need_data=*/true);
}

}  // namespace tandem::api
