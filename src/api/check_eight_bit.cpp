#include "api/check_eight_bit.h"

#include <algorithm>
#include <limits>
#include <string>

namespace tandem::api {

using core::Status;
using core::Tensor;

namespace {

std::vector<ScalesOf> all_of(const tandem_forward_args& args, const tandem_scales& scales) {
  const std::int64_t q_heads = args.q.shape[2], kv_heads = args.k.shape[2];
  return {{{"scales.q", &scales.q}, "scales.q_block", scales.q_block, {"q", &args.q}, {q_heads, kv_heads}},
          {{"scales.k", &scales.k}, "scales.k_block", scales.k_block, {"k", &args.k}, {kv_heads}},
          {{"scales.v", &scales.v}, "scales.v_block", scales.v_block, {"k", &args.k}, {kv_heads}}};
}

/// Products of queries and the keys' shift.
Status check_dots(const tandem_forward_args& args, const Named& dots) {
  if (dots.tensor->data == nullptr) return {};
  if (args.softcap > 0)
    return invalid(dots.name, " is given, but softcap is ", args.softcap,
                   "; the cap of a score is another one without the keys' shift: pass 0 as softcap, or keys "
                   "without a shift");
  const Named q{"q", &args.q};
  const Agreement agreements[] = {{dots, q, 0}, {dots, q, 1}, {dots, q, 2}};
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  return check_columns_of_lse(dots);
}

}  // namespace

Status check_shape_of_scales(const ScalesOf& own) {
  const Tensor &scales = *own.scales.tensor, &tensor = *own.tensor.tensor;
  const char* name = own.scales.name;
  if (own.block < 0)
    return invalid(own.block_name, " is ", own.block, "; it has to be the tokens of a block, or 0 for all");
  if (scales.data == nullptr) return {};
  if (scales.shape[0] != 1 && scales.shape[0] != tensor.shape[0])
    return invalid(name, ".shape[0] (batch) is ", scales.shape[0], "; it has to be 1 or ", own.tensor.name,
                   ".shape[0], which is ", tensor.shape[0]);
  const std::int64_t tokens = tensor.shape[1];
  const std::int64_t blocks = own.block == 0 ? 1 : tokens / own.block + (tokens % own.block != 0);
  if (scales.shape[1] != blocks)
    return invalid(name, ".shape[1] (blocks) is ", scales.shape[1], "; with ", own.block_name, " = ",
                   own.block, " and ", tokens, " tokens it has to be ", blocks);
  if (scales.shape[2] != 1 && std::ranges::find(own.heads, scales.shape[2]) == own.heads.end())
    return invalid(name, ".shape[2] (heads) is ", scales.shape[2], "; it has to be 1 or ", own.heads.front(),
                   own.heads.size() > 1 ? " or " + std::to_string(own.heads.back()) : "", ", the heads of ",
                   own.tensor.name, own.heads.size() > 1 ? " or k" : "");
  if (scales.shape[3] != 1) return invalid(name, ".shape[3] is ", scales.shape[3], "; it has to be 1");
  return {};
}

Status check_shift(const Named& shift, const Named& tensor, bool any_divisor) {
  const Tensor &own = *shift.tensor, &of = *tensor.tensor;
  const auto refuse = [&](int dimension, const char* meaning, const std::string& allowed) {
    return invalid(shift.name, ".shape[", dimension, "] (", meaning, ") is ", own.shape[dimension],
                   "; it has to be ", allowed);
  };
  if (own.data == nullptr) return {};
  if (const int dtype = number_of(own.dtype); dtype != TANDEM_FP32)
    return invalid(shift.name, ".dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
  const auto of_tensor = [&](int dimension) {
    return std::string(tensor.name) + ".shape[" + std::to_string(dimension) + "], which is " +
           std::to_string(of.shape[dimension]);
  };
  if (own.shape[0] != 1 && own.shape[0] != of.shape[0]) return refuse(0, "batch", "1 or " + of_tensor(0));
  if (own.shape[1] != 1) return refuse(1, "tokens", "1");
  const std::int64_t heads = own.shape[2];
  const bool divides = any_divisor && heads > 0 && of.shape[2] % heads == 0;
  if (heads != 1 && heads != of.shape[2] && !divides)
    return refuse(2, "heads", (any_divisor ? "a divisor of " : "1 or ") + of_tensor(2));
  if (own.shape[3] != of.shape[3]) return refuse(3, "head dim", of_tensor(3));
  return {};
}

Status check_layout_of_values(const char* name, const tandem_value_layout& layout) {
  const int number = number_of(layout);
  if (number == TANDEM_VALUES_BY_KEY || number == TANDEM_VALUES_BY_COLUMN) return {};
  return invalid(name, " is ", number,
                 ", which is no tandem_value_layout; use TANDEM_VALUES_BY_KEY or TANDEM_VALUES_BY_COLUMN");
}

Status check_columns(const Named& values, const Named& tokens, std::int64_t columns) {
  const Tensor& v = *values.tensor;
  constexpr std::uint64_t group = core::key_group;  // unsigned: any number of keys can be rounded up
  const std::uint64_t padded =
      (static_cast<std::uint64_t>(tokens.tensor->shape[1]) + group - 1) / group * group;
  if (v.shape[1] != columns)
    return invalid(values.name, ".shape[1] is ", v.shape[1],
                   "; values by column have a row for each column of the head there, and for each term, "
                   "which is ",
                   columns);
  if (static_cast<std::uint64_t>(v.shape[3]) != padded)
    return invalid(values.name, ".shape[3] is ", v.shape[3],
                   "; values by column have the keys there, up to a multiple of 16: ", padded);
  return {};
}

Status check_terms(const char* name, std::int32_t terms, const tandem_value_layout& layout) {
  if (terms < 0 || terms > 2) return invalid(name, " is ", terms, "; it has to be 1 or 2, or 0 for 1");
  if (terms == 2 && number_of(layout) != TANDEM_VALUES_BY_COLUMN)
    return invalid(name, " is 2, but values lie by key; two terms are by column: TANDEM_VALUES_BY_COLUMN");
  return {};
}

Status read_scales(const tandem_scales* given, tandem_scales* known) {
  const StructName name{"scales", "tandem_scales", TANDEM_SIZE_UP_TO(tandem_scales, v_layout)};
  if (Status s = read_optional(name, given, known); !s.ok()) return s;
  if (Status s = check_layout_of_values("scales.v_layout", known->v_layout); !s.ok()) return s;
  if (!(known->qk_amplitude >= 0 && known->qk_amplitude <= core::E4m3::largest))
    return invalid("scales.qk_amplitude is ", known->qk_amplitude, "; it has to be from 0 to 448");
  return check_terms("scales.v_terms", known->v_terms, known->v_layout);
}

ShortList<Named> scales_of(const tandem_scales& scales) {
  ShortList<Named> given;
  for (const Named& own : {Named{"scales.q", &scales.q},
                           {"scales.k", &scales.k},
                           {"scales.v", &scales.v},
                           {"scales.v_shift", &scales.v_shift},
                           {"scales.q_dot_k_shift", &scales.q_dot_k_shift}})
    if (own.tensor->data != nullptr) given.push_back(own);
  return given;
}

Status unused_scales(const Tensor& q) {
  return invalid("scales is given, but q.dtype is ", describe_dtype(number_of(q.dtype)),
                 "; only 8-bit inputs have scales: pass NULL");
}

Status check_dtype_of_output(const Tensor& o) {
  const int dtype = number_of(o.dtype);
  if (dtype == TANDEM_BF16 || dtype == TANDEM_FP16 || dtype == TANDEM_FP32) return {};
  return invalid("o.dtype is ", describe_dtype(dtype),
                 "; of 8-bit q, k and v the output is TANDEM_BF16, TANDEM_FP16 or TANDEM_FP32");
}

Status check_dtypes_beside(const Tensor& q, const Tensor& k, const Tensor& v) {
  if (Status s = check_dtype_as_q({"k", &k}, q); !s.ok()) return s;
  if (const int dtype = number_of(v.dtype); dtype != TANDEM_E4M3)
    return invalid("v.dtype is ", describe_dtype(dtype), ", but q.dtype is ",
                   describe_dtype(number_of(q.dtype)), "; values of 8 bits are TANDEM_E4M3");
  return {};
}

Status check_dtypes_of_scales(const tandem_scales& scales) {
  for (const Named& own : scales_of(scales))
    if (const int dtype = number_of(own.tensor->dtype); dtype != TANDEM_FP32)
      return invalid(own.name, ".dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
  return {};
}

Status check_shapes_of_8_bit(const tandem_forward_args& args, const tandem_scales& scales) {
  for (const ScalesOf& own : all_of(args, scales))
    if (Status s = check_shape_of_scales(own); !s.ok()) return s;
  if (Status s = check_shift({"scales.v_shift", &scales.v_shift}, {"k", &args.k}, false); !s.ok()) return s;
  if (Status s = check_dots(args, {"scales.q_dot_k_shift", &scales.q_dot_k_shift}); !s.ok()) return s;
  if (scales.v_layout == TANDEM_VALUES_BY_KEY) return {};
  return check_columns({"v", &args.v}, {"k", &args.k}, number_of_terms(scales.v_terms) * args.q.shape[3]);
}

std::int64_t tokens_of_block(std::int64_t block) {
  return block == 0 ? std::numeric_limits<std::int64_t>::max() : block;
}

core::Scales resolve_scales(const Tensor& scales, std::int64_t block) {
  if (scales.data == nullptr) return {};
  return {scales, tokens_of_block(block)};
}

core::Shift resolve_shift(const Tensor& shift) {
  return shift.data != nullptr ? core::Shift{shift} : core::Shift{};
}

core::Quantisation resolve_scales(const tandem_scales& scales) {
  return {.q = resolve_scales(scales.q, scales.q_block),
          .k = resolve_scales(scales.k, scales.k_block),
          .v = resolve_scales(scales.v, scales.v_block),
          .v_transposed = scales.v_layout == TANDEM_VALUES_BY_COLUMN,
          .v_terms = number_of_terms(scales.v_terms),
          .amplitude = scales.qk_amplitude,
          .v_shift = resolve_shift(scales.v_shift),
          .q_dot_k_shift = scales.q_dot_k_shift.data != nullptr ? scales.q_dot_k_shift : Tensor{}};
}

}  // namespace tandem::api
