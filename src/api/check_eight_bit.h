// Checks of scales and of values by column: of 8-bit inputs, and of what quantising writes. Each returns OK,
// or words that name the argument, its value and what is allowed.
#pragma once

#include <string>
#include <vector>

#include <tandem/tandem.h>

#include "api/checks.h"

namespace tandem::api {

core::Status read_scales(const tandem_scales* given, tandem_scales* known);

/// Those that are given.
ShortList<Named> scales_of(const tandem_scales& scales);

/// Scales are given, but the inputs have more than 8 bits.
core::Status unused_scales(const core::Tensor& q);

core::Status check_dtype_of_output(const core::Tensor& o);
core::Status check_dtypes_of_scales(const tandem_scales& scales);
/// Of k and v: e4m3 have e4m3 beside them, integers are q and k.
core::Status check_dtypes_beside(const core::Tensor& q, const core::Tensor& k, const core::Tensor& v);
/// Of v where its layout is by column, and of all scales.
core::Status check_shapes_of_8_bit(const tandem_forward_args& args, const tandem_scales& scales);

/// Scales of one tensor, and what they belong to.
struct ScalesOf {
  Named scales;
  std::string block_name;
  std::int64_t block;
  Named tensor;                     ///< b, tokens, heads, d
  std::vector<std::int64_t> heads;  ///< that the scales may have besides 1
};
core::Status check_shape_of_scales(const ScalesOf& own);

/// A shift of a tensor of b, tokens, heads, d: one for each batch entry and `heads` heads; both may be fewer,
/// where `any_divisor` a divisor of them, else 1.
core::Status check_shift(const Named& shift, const Named& tensor, bool any_divisor);

core::Status check_layout_of_values(const char* name, const tandem_value_layout& layout);
/// Of values by column: `tokens` has the keys, `columns` are those of the head, of all terms.
core::Status check_columns(const Named& values, const Named& tokens, std::int64_t columns);

/// Of values: 0 and 1 are one, and two are by column.
core::Status check_terms(const char* name, std::int32_t terms, const tandem_value_layout& layout);
constexpr int number_of_terms(std::int32_t terms) { return terms == 2 ? 2 : 1; }

/// As the backends take them: block 0 is one of all tokens.
std::int64_t tokens_of_block(std::int64_t block);
core::Scales resolve_scales(const core::Tensor& scales, std::int64_t block);
core::Shift resolve_shift(const core::Tensor& shift);
core::Quantisation resolve_scales(const tandem_scales& scales);

}  // namespace tandem::api
