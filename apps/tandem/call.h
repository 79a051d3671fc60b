// One forward call of the C interface with its tensors, prepared in a place, timed, and fetched.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <tandem/attention.hpp>
#include <tandem/study.h>

#include "failure.h"
#include "place.h"
#include "quantised_inputs.h"
#include "tensor.h"

namespace tandem::cli {

/// What the library says of itself and of this machine.
tandem_info query_info();

/// Throws what `status` and the library's message say; `if_invalid`: whose fault invalid arguments are.
void require(tandem_status status, Exit if_invalid);

/// The backend that serves `requested` for `dtype`: for AUTO the Hopper kernels where they are usable and
/// serve the dtype, else the CPU. Throws Failure(Exit::unavailable) if Hopper is asked for and is not usable.
tandem_backend resolve_backend(tandem_backend requested, tandem_dtype dtype);
std::string name_of(tandem_backend backend);  ///< "cpu", "hopper", "reference", "auto"

/// A call with inputs on the host.
struct Call {
  tandem_backend backend = TANDEM_BACKEND_CPU;  ///< resolved: not AUTO
  HostTensor q, k, v;
  tandem_mask mask = Mask::full().c_mask();
  float scale = 0;                    ///< 0: 1 / sqrt(head dim)
  float softcap = 0;                  ///< 0: off
  std::vector<float> slopes;          ///< ALiBi's, of each query head; empty: none
  std::optional<tandem_study> study;  ///< which kernel serves, on Hopper
  bool want_lse = true;
  std::optional<EightBit> eight_bit;  ///< q, k and v are quantised first, which is not timed
  Layout o_layout = Layout::bshd();
  Layout lse_layout = Layout::bshd();
  Exit if_invalid = Exit::usage;  ///< whose fault invalid arguments are: the command line's or the file's
};

struct Output {
  HostTensor o;
  HostTensor lse;  ///< empty where it was not wanted
};

/// Half-open.
struct KeyRange {
  std::int64_t begin, end;
};
/// Keys that one query sees.
KeyRange visible_keys(const Call& call, std::int64_t query);
/// Matrix FLOPs by the field's convention: 2 * batch * heads * (head dim of keys + of values) * visible
/// pairs.
double flops_of(const Call& call);

/// A call whose tensors lie in `place`, ready to be enqueued any number of times.
class PreparedCall {
 public:
  /// Both have to outlive it.
  PreparedCall(Place& place, const Call& call);
  void enqueue();
  /// Waits, and copies the results to the host.
  Output fetch();
  /// Milliseconds of each of `runs` calls; waits for them.
  std::vector<double> time(int runs);
  /// Microseconds that a call keeps the caller's thread: the median of short bursts, after each of which it
  /// waits for the device.
  double host_microseconds();

 private:
  Place& place_;
  Exit if_invalid_;
  Output output_;  ///< poisoned, as uploaded
  std::unique_ptr<Buffer> q_, k_, v_, o_, lse_, slopes_, workspace_;
  std::size_t workspace_bytes_ = 0;
  tandem_forward_args args_{};
  std::optional<QuantisedInputs> quantised_;
};

struct TimingOptions {
  int warmup = 2;             ///< untimed runs, at least 1
  int repeats = 10;           ///< timed runs, at least 1
  double budget_seconds = 2;  ///< for all runs of one call; slow calls get fewer, at least one
};

struct Timing {
  double median_ms = 0, min_ms = 0;
  int runs = 0;
};

/// `time`: milliseconds of each of so many runs.
Timing measure(const std::function<std::vector<double>(int runs)>& time, const TimingOptions& options);

}  // namespace tandem::cli
