// The H200 as a machine of tests/hw/conformance.h.
#pragma once

#include <cstddef>
#include <cstring>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime.h>
#include <ostream>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include "hw/hw.h"
#include "tests/gpu/device.h"
#include "tests/hw/map_request.h"

namespace tandem::test::machine {

/// The chip has one way of running kernels.
struct Mode {
  friend std::ostream& operator<<(std::ostream& out, const Mode&) { return out << "chip"; }
};
inline std::vector<Mode> modes() { return {Mode{}}; }

inline std::string why_unusable() {
  static const std::string why = why_no_hopper();
  return why;
}

template <typename T>
class Buffer {
 public:
  explicit Buffer(const std::vector<T>& values)
      : count_(values.size()), memory_(std::as_bytes(std::span(values))) {}

  T* data() const { return reinterpret_cast<T*>(memory_.data()); }
  std::vector<T> read() const {
    std::vector<T> values(count_);
    memory_.read(std::as_writable_bytes(std::span(values)));
    return values;
  }

 private:
  std::size_t count_;
  DeviceMemory memory_;
};

inline CUtensorMapSwizzle swizzle_of(hw::Swizzle swizzle) {
  switch (swizzle) {
    case hw::Swizzle::bytes128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
    case hw::Swizzle::bytes64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case hw::Swizzle::bytes32:
      return CU_TENSOR_MAP_SWIZZLE_32B;
    case hw::Swizzle::none:
      break;
  }
  return CU_TENSOR_MAP_SWIZZLE_NONE;
}

inline hw::TensorMap encode(const MapRequest& request) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check_cuda(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found),
      "cuTensorMapEncodeTiled");
  const CUtensorMapDataType type =
      request.element_bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  CUtensorMap encoded;  // which is aligned more strictly than the hardware wants
  const CUresult result = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function)(
      &encoded, type, static_cast<cuuint32_t>(request.rank), const_cast<void*>(request.address), request.dims,
      request.stride_bytes, request.box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      swizzle_of(request.swizzle), CU_TENSOR_MAP_L2_PROMOTION_NONE, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    throw std::runtime_error("cuTensorMapEncodeTiled refused the map: error " + std::to_string(result));
  }
  hw::TensorMap map;
  static_assert(sizeof(map) == sizeof(encoded));
  std::memcpy(&map, &encoded, sizeof(map));
  return map;
}

template <typename Body>
__global__ void __launch_bounds__(Body::threads, 1) trampoline(const __grid_constant__ Body body) {
  body();
}

template <typename Body>
void run(const Mode&, int blocks, const Body& body) {
  const void* kernel = reinterpret_cast<const void*>(&trampoline<Body>);
  constexpr std::size_t shared_bytes =
      std::is_empty_v<typename Body::Shared> ? 0 : sizeof(typename Body::Shared);
  check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_bytes),
             "shared memory of a test kernel");
  Body argument = body;
  void* parameters[] = {&argument};
  check_cuda(cudaLaunchKernel(kernel, dim3(static_cast<unsigned>(blocks)), dim3(Body::threads), parameters,
                              shared_bytes, nullptr),
             "launch of a test kernel");
  check_cuda(cudaDeviceSynchronize(), "a test kernel");
}

}  // namespace tandem::test::machine
