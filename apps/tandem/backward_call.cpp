#include "backward_call.h"

namespace tandem::cli {
namespace {

Output forward_results(Place& place, const Call& call) {
  PreparedCall prepared(place, call);
  prepared.enqueue();
  return prepared.fetch();
}

}  // namespace

double flops_of(const BackwardCall& call) { return 2.5 * flops_of(call.forward); }

PreparedBackward::PreparedBackward(Place& place, const BackwardCall& call)
    : place_(place), if_invalid_(call.forward.if_invalid) {
  const Call& forward = call.forward;
  const Output results = forward_results(place, forward);
  output_.dq = HostTensor::poisoned(forward.q.dtype, forward.q.shape, call.dq_layout);
  output_.dk = HostTensor::poisoned(forward.q.dtype, forward.k.shape, call.dk_layout);
  output_.dv = HostTensor::poisoned(forward.q.dtype, forward.v.shape, call.dv_layout);
  dq_ = uploaded(place, output_.dq.storage);
  dk_ = uploaded(place, output_.dk.storage);
  dv_ = uploaded(place, output_.dv.storage);
  args_.struct_size = sizeof args_;
  args_.backend = forward.backend;
  args_.deterministic = call.deterministic ? 1 : 0;
  args_.q = placed(forward.q);
  args_.k = placed(forward.k);
  args_.v = placed(forward.v);
  args_.o = placed(results.o);
  args_.lse = placed(results.lse);
  args_.dout = placed(call.dout);
  if (!call.dlse.storage.empty()) args_.dlse = placed(call.dlse);
  args_.dq = output_.dq.view(dq_->data());
  args_.dk = output_.dk.view(dk_->data());
  args_.dv = output_.dv.view(dv_->data());
  args_.mask = &forward.mask;
  args_.scale = forward.scale;
  args_.softcap = forward.softcap;
  require(tandem_backward_workspace(&args_, &workspace_bytes_), if_invalid_);
  workspace_ = std::make_unique<Buffer>(place_, workspace_bytes_);
}

tandem_tensor PreparedBackward::placed(const HostTensor& tensor) {
  buffers_.push_back(uploaded(place_, tensor.storage));
  return tensor.view(buffers_.back()->data());
}

void PreparedBackward::enqueue() {
  require(tandem_backward(&args_, workspace_->data(), workspace_bytes_, place_.stream()), if_invalid_);
}

BackwardOutput PreparedBackward::fetch() {
  BackwardOutput result = output_;
  const auto download = [this](HostTensor& to, const Buffer& from) {
    place_.download(to.storage.data(), from.data(), to.storage.size());
  };
  download(result.dq, *dq_);
  download(result.dk, *dk_);
  download(result.dv, *dv_);
  return result;
}

std::vector<double> PreparedBackward::time(int runs) {
  return place_.time(runs, [this] { enqueue(); });
}

}  // namespace tandem::cli
