// All operations.
#pragma once

#include "api/operation.h"

namespace tandem::api {

extern const Operation<tandem_forward_args, core::ForwardProblem> forward_operation;
extern const Operation<tandem_backward_args, core::BackwardProblem> backward_operation;
extern const Operation<tandem_decode_args, core::DecodeProblem> decode_operation;
extern const Operation<tandem_merge_args, core::MergeProblem> merge_operation;
extern const Operation<tandem_quantize_args, core::QuantizeProblem> quantize_operation;

}  // namespace tandem::api
