// Is a result right? The float64 oracle, a standard implementation in the same precision, and the rule that
// compares both.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "call.h"

namespace tandem::cli {

/// Distance of two tensors. Infinite where one is NaN or infinite and the other is not the same.
struct Error {
  double max_abs = 0;
  double rmse = 0;  ///< over the elements that are expected to be finite
};
Error compare(std::span<const float> values, std::span<const float> expected);

/// A result in the order b, s, h, d of o and b, s, h of lse.
struct Values {
  std::vector<float> o, lse;
};

/// The library's float64 oracle on the same inputs, widened to fp32 so that its output is not rounded to 16
/// bits. Of a call in 8 bits, on the inputs before they are quantised.
Values run_oracle(const Call& call);

/// Attention as a plain implementation computes it: scores and softmax in fp32, probabilities rounded to the
/// dtype of q, sums in fp32, output rounded. The yardstick of the rule below.
Values run_standard(const Call& call);

struct Verdict {
  Error error;     ///< of the output against the oracle
  Error standard;  ///< of run_standard against the oracle, where it is not infinite
  double lse_max_abs = 0;
  std::string complaint;  ///< empty if the result is within tolerance
};

/// Results in the order b, s, h, d, and what they have to be near to.
struct Judged {
  Values result;  ///< lse is empty where it was not wanted
  Values exact, standard;
};

/// What a kind of result is granted beside the error of the standard implementation.
struct Allowance {
  double max_factor = 2;  ///< of the standard's largest error
  double noise = 0;       ///< RMSE of rounding in another order, where terms cancel
};

/// The rule: against the oracle, RMSE at most 1.1 times that of the standard implementation, and the largest
/// error at most twice its largest (or max_factor times) plus 1e-5; lse within 1e-4, relative above 1, or
/// within twice the largest error of the standard implementation's. The RMSE of few elements scatters, so it
/// is granted 3 / sqrt(elements) more, and 5e-7 of the output's own size for fp32 sums of another order. NaN
/// and infinities have to stand where the oracle has the same, and nowhere else.
/// tests/support/compare.h states the same rule for the library's own tests.
Verdict judge(const Judged& judged, const Allowance& allowance = {});

/// "" if nothing was written between and around the elements of the outputs.
std::string padding_complaint(const HostTensor& o, const HostTensor& lse);

/// judge, and that nothing was written between the elements.
Verdict verify(const Call& call, const Output& output);

}  // namespace tandem::cli
