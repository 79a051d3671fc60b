#include "apps/sim/machine.h"

#include <algorithm>

#include "core/dtype.h"

namespace tandem::sim {

hw::sim::LaunchConfig Machine::launch_config() const {
  hw::sim::LaunchConfig config;
  config.policy = policy;
  config.seed = seed;
  config.replay = replay;
  config.trace = trace;
  return config;
}

hw::TensorMap encode(const core::Tensor& tensor, hw::BoxRows box) {
  const hw::TensorMapRequest request = hw::tensor_map_request(tensor, box);
  hw::sim::TensorMapSpec spec{};
  spec.address = request.address;
  std::copy_n(request.dims, 4, spec.dims);
  std::copy_n(request.stride_bytes, 3, spec.stride_bytes);
  std::copy_n(request.box, 4, spec.box);
  return hw::sim::encode_tensor_map(spec);
}

hw::sim::Buffer buffer_of(const core::Tensor& tensor, const char* name, bool writable) {
  std::int64_t last = tensor.shape[3] - 1;
  for (int i = 0; i < 3; ++i) {
    if (tensor.shape[i] == 0) last = -1;
    if (last >= 0) last += (tensor.shape[i] - 1) * tensor.stride[i];
  }
  return {tensor.data, static_cast<std::size_t>(last + 1) * core::size_of(tensor.dtype), name, writable};
}

hw::sim::Buffer unwritten(hw::sim::Buffer buffer) {
  buffer.uninitialised = true;
  return buffer;
}

}  // namespace tandem::sim
