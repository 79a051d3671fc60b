// Validation: every check on a call, once, for all backends, before anything is launched.
//
// Each turns the caller's arguments into a consistent problem, or says which argument is wrong, what it was
// and what is allowed. `need_data` is false for queries, whose data may be anything. The problem's mask is
// the simplest one with the same meaning: a side of the band that hides nothing is unlimited.
#pragma once

#include <tandem/tandem.h>

#include "core/backward_problem.h"
#include "core/decode_problem.h"
#include "core/merge_problem.h"
#include "core/problem.h"
#include "core/quantize_problem.h"
#include "core/status.h"

namespace tandem::api {

core::Status validate(const tandem_forward_args* args, bool need_data, core::ForwardProblem* problem);

core::Status validate_backward(const tandem_backward_args* args, bool need_data,
                               core::BackwardProblem* problem);

core::Status validate_decode(const tandem_decode_args* args, bool need_data, core::DecodeProblem* problem);

core::Status validate_merge(const tandem_merge_args* args, core::MergeProblem* problem);
core::Status validate_quantize(const tandem_quantize_args* args, core::QuantizeProblem* problem);

}  // namespace tandem::api
