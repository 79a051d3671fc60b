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
  spec.rank = request.rank;
  std::copy_n(request.dims, request.rank, spec.dims);
  std::copy_n(request.stride_bytes, request.rank - 1, spec.stride_bytes);
  std::copy_n(request.box, request.rank, spec.box);
  spec.swizzle = request.swizzle;
  spec.element_bytes = tensor.dtype == TANDEM_FP32 ? 4 : 2;  // 8-bit elements count in pairs
  return hw::sim::encode_tensor_map(spec);
}

namespace {

std::size_t bytes_of(const core::Region& region) {
  std::int64_t last = 0;
  for (int i = 0; i < core::Region::dimensions; ++i) {
    if (region.shape[i] == 0) return 0;
    last += (region.shape[i] - 1) * region.stride[i];
  }
  return static_cast<std::size_t>((last + 1) * region.element_bytes);
}

}  // namespace

hw::sim::Buffer buffer_of(const core::Tensor& tensor, const char* name, bool writable) {
  return {tensor.data, bytes_of(core::Region::of(tensor)), name, writable};
}

std::vector<hw::sim::Buffer> buffers_of(const core::TensorList& tensors) {
  std::vector<hw::sim::Buffer> buffers;
  for (const core::ListedTensor& tensor : tensors) {
    const hw::sim::Buffer buffer{tensor.region.data, bytes_of(tensor.region), tensor.name,
                                 tensor.role != core::Role::input};
    buffers.push_back(tensor.role == core::Role::output ? unwritten(buffer) : buffer);
  }
  return buffers;
}

hw::sim::Buffer unwritten(hw::sim::Buffer buffer) {
  buffer.uninitialised = true;
  return buffer;
}

}  // namespace tandem::sim
