// One backward call of the C interface with its tensors, prepared in a place, timed, and fetched.
#pragma once

#include <memory>
#include <vector>

#include "call.h"

namespace tandem::cli {

/// A backward call with inputs on the host; o and lse come from the forward call, in the same place.
struct BackwardCall {
  Call forward;  ///< with lse
  HostTensor dout;
  HostTensor dlse;  ///< without elements in storage: lse has no gradient
  bool deterministic = false;
  Layout dq_layout = Layout::bshd(), dk_layout = Layout::bshd(), dv_layout = Layout::bshd();
};

struct BackwardOutput {
  HostTensor dq, dk, dv;
};

/// The field's convention: five products where the forward has two.
double flops_of(const BackwardCall& call);

/// A call whose forward has run and whose tensors lie in `place`, ready to be enqueued any number of times.
class PreparedBackward {
 public:
  /// Both have to outlive it.
  PreparedBackward(Place& place, const BackwardCall& call);
  void enqueue();
  /// Waits, and copies the results to the host.
  BackwardOutput fetch();
  /// Milliseconds of each of `runs` calls; waits for them.
  std::vector<double> time(int runs);

 private:
  /// A copy in the place, and the tensor there.
  tandem_tensor placed(const HostTensor& tensor);

  Place& place_;
  Exit if_invalid_;
  BackwardOutput output_;  ///< poisoned, as uploaded
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::unique_ptr<Buffer> dq_, dk_, dv_, workspace_;
  std::size_t workspace_bytes_ = 0;
  tandem_backward_args args_{};
};

}  // namespace tandem::cli
