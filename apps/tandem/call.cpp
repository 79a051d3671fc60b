#include "call.h"

#include <algorithm>
#include <chrono>
#include <span>

#include "element.h"

namespace tandem::cli {
namespace {

/// At least one value.
double sort_for_median(std::vector<double>& values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace

void require(tandem_status status, Exit if_invalid) {
  switch (status) {
    case TANDEM_OK:
      return;
    case TANDEM_INVALID_ARGUMENT:
      throw Failure(if_invalid, tandem_last_error());
    case TANDEM_UNSUPPORTED:
    case TANDEM_NO_DEVICE:
      throw Failure(Exit::unavailable, tandem_last_error());
    default:
      throw Failure(Exit::other, std::string(tandem_status_name(status)) + ": " + tandem_last_error());
  }
}

tandem_info query_info() {
  tandem_info info{};
  info.struct_size = sizeof info;
  require(tandem_get_info(&info), Exit::other);
  return info;
}

tandem_backend resolve_backend(tandem_backend requested, tandem_dtype dtype) {
  if (requested != TANDEM_BACKEND_AUTO && requested != TANDEM_BACKEND_HOPPER) return requested;
  const tandem_info info = query_info();
  if (requested == TANDEM_BACKEND_AUTO) {
    return info.hopper_usable != 0 && dtype != TANDEM_FP32 ? TANDEM_BACKEND_HOPPER : TANDEM_BACKEND_CPU;
  }
  if (info.hopper_usable == 0) {
    throw Failure(Exit::unavailable, "the Hopper backend can't be used: " + std::string(info.hopper_reason) +
                                         "; use --backend cpu or auto");
  }
  if (dtype == TANDEM_FP32) {
    throw Failure(Exit::unavailable,
                  "the Hopper backend takes bf16 and fp16, not fp32; add --dtype bf16 or use --backend cpu");
  }
  return requested;
}

std::string name_of(tandem_backend backend) {
  switch (backend) {
    case TANDEM_BACKEND_AUTO:
      return "auto";
    case TANDEM_BACKEND_CPU:
      return "cpu";
    case TANDEM_BACKEND_HOPPER:
      return "hopper";
    case TANDEM_BACKEND_REFERENCE:
      return "reference";
  }
  return "unknown";
}

KeyRange visible_keys(const Call& call, std::int64_t query) {
  const std::int64_t keys = call.k.shape[1], position = query + keys - call.q.shape[1];
  KeyRange range{0, keys};
  if (call.mask.kind == TANDEM_MASK_CAUSAL) range.end = position + 1;
  if (call.mask.kind == TANDEM_MASK_WINDOW) {
    const std::int64_t left = call.mask.window_left, right = call.mask.window_right;
    // Compared, not added: a window may be as wide as an int64.
    if (left != TANDEM_UNLIMITED && left < position) range.begin = position - left;
    if (right != TANDEM_UNLIMITED && right < keys - position) range.end = position + right + 1;
  }
  if (const std::int64_t chunk = call.mask.chunk; chunk > 0 && position >= 0) {
    const std::int64_t first = position / chunk * chunk;
    range.begin = std::max(range.begin, first);
    range.end = std::min(range.end, first + chunk);
  } else if (chunk > 0) {
    range.end = 0;
  }
  range.begin = std::min(range.begin, keys);
  range.end = std::clamp(range.end, range.begin, keys);
  return range;
}

double flops_of(const Call& call) {
  double pairs = 0;
  for (std::int64_t query = 0; query < call.q.shape[1]; ++query) {
    const KeyRange range = visible_keys(call, query);
    pairs += static_cast<double>(range.end - range.begin);
  }
  return 2.0 * static_cast<double>(call.q.shape[0]) * static_cast<double>(call.q.shape[2]) *
         static_cast<double>(call.q.shape[3] + call.v.shape[3]) * pairs;
}

PreparedCall::PreparedCall(Place& place, const Call& call)
    : place_(place),
      if_invalid_(call.if_invalid),
      q_(uploaded(place, call.q.storage)),
      k_(uploaded(place, call.k.storage)),
      v_(uploaded(place, call.v.storage)) {
  const Shape& q = call.q.shape;
  output_.o = HostTensor::poisoned(call.q.dtype, {q[0], q[1], q[2], call.v.shape[3]}, call.o_layout);
  o_ = uploaded(place, output_.o.storage);
  args_.struct_size = sizeof args_;
  args_.backend = call.backend;
  args_.q = call.q.view(q_->data());
  args_.k = call.k.view(k_->data());
  args_.v = call.v.view(v_->data());
  args_.o = output_.o.view(o_->data());
  if (call.want_lse) {
    output_.lse = HostTensor::poisoned(TANDEM_FP32, {q[0], q[1], q[2], 1}, call.lse_layout);
    lse_ = uploaded(place, output_.lse.storage);
    args_.lse = output_.lse.view(lse_->data());
  }
  args_.mask = &call.mask;
  args_.scale = call.scale;
  args_.softcap = call.softcap;
  if (!call.slopes.empty()) {
    slopes_ = uploaded(place, std::as_bytes(std::span(call.slopes)));
    args_.alibi_slopes = static_cast<const float*>(slopes_->data());
  }
  if (call.study) args_.study = &*call.study;
  if (call.eight_bit) quantised_.emplace(place_, args_, *call.eight_bit, if_invalid_);
  require(tandem_forward_workspace(&args_, &workspace_bytes_), if_invalid_);
  workspace_ = std::make_unique<Buffer>(place_, workspace_bytes_);
}

void PreparedCall::enqueue() {
  require(tandem_forward(&args_, workspace_->data(), workspace_bytes_, place_.stream()), if_invalid_);
}

Output PreparedCall::fetch() {
  Output result = output_;
  place_.download(result.o.storage.data(), o_->data(), result.o.storage.size());
  if (lse_) place_.download(result.lse.storage.data(), lse_->data(), result.lse.storage.size());
  return result;
}

std::vector<double> PreparedCall::time(int runs) {
  return place_.time(runs, [this] { enqueue(); });
}

double PreparedCall::host_microseconds() {
  constexpr int bursts = 21, calls = 20;
  using Clock = std::chrono::steady_clock;
  std::vector<double> each(bursts);
  for (double& microseconds : each) {
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < calls; ++i) enqueue();
    microseconds = std::chrono::duration<double, std::micro>(Clock::now() - begin).count() / calls;
    time(1);
  }
  return sort_for_median(each);
}

Timing measure(const std::function<std::vector<double>(int runs)>& time, const TimingOptions& options) {
  const double budget_ms = options.budget_seconds * 1000;
  double spent_ms = 0, last_ms = 0;
  for (int run = 0; run < options.warmup && (run == 0 || spent_ms + last_ms < budget_ms / 2); ++run) {
    last_ms = time(1).front();
    spent_ms += last_ms;
  }
  const double affordable = last_ms > 0 ? (budget_ms - spent_ms) / last_ms : options.repeats;
  const int runs = static_cast<int>(std::clamp(affordable, 1.0, static_cast<double>(options.repeats)));
  std::vector<double> times = time(runs);
  const double median = sort_for_median(times);
  return {median, times.front(), runs};
}

}  // namespace tandem::cli
