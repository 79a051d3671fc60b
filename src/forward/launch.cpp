#include "forward/launch.h"

#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>
#include <string>

#include "core/dtype.h"
#include "forward/capability.h"
#include "forward/kernels.h"
#include "forward/plan.h"
#include "forward/tensor_map.h"

namespace tandem::forward {
namespace {

using core::Status;

constexpr std::int64_t max_tiles = std::int64_t{1} << 30;

Status device_error(const std::string& what, cudaError_t error) {
  cudaGetLastError();  // what we report must not surface again in the caller's next check
  return {TANDEM_DEVICE_ERROR, what + " failed: " + cudaGetErrorString(error)};
}

/// cuTensorMapEncodeTiled through the runtime, so that the library loads where there is no driver.
PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &found);
    const bool ok = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
    return ok ? reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function) : nullptr;
  }();
  return encoder;
}

Status encode(const char* name, const core::Tensor& tensor, int rows, hw::TensorMap* map) {
  const TensorMapRequest request = tensor_map_request(tensor, rows);
  const CUtensorMapDataType type =
      tensor.dtype == TANDEM_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  CUtensorMap encoded;
  static_assert(sizeof(encoded) == sizeof(*map));
  const CUresult result = tensor_map_encoder()(
      &encoded, type, 4, request.address, request.dims, request.stride_bytes, request.box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) {
    return {TANDEM_DEVICE_ERROR, std::string("the driver refused a tensor map for ") + name +
                                     " (cuTensorMapEncodeTiled, error " + std::to_string(result) + ")"};
  }
  std::memcpy(map, &encoded, sizeof(*map));
  return {};
}

Status encode_maps(const core::ForwardProblem& problem, const ForwardVariant& variant,
                   ForwardArguments* args) {
  if (Status s = encode("q", problem.q, variant.block_m / variant.consumers(), &args->q); !s.ok()) return s;
  if (problem.k_len() == 0) {  // nothing will be loaded, but the maps have to be valid
    args->k = args->v = args->q;
    return {};
  }
  if (Status s = encode("k", problem.k, variant.block_n, &args->k); !s.ok()) return s;
  return encode("v", problem.v, variant.block_n, &args->v);
}

const Kernel* find_kernel(const ForwardVariant& variant) {
  for (std::span<const Kernel> kernels : {kernels_d64(), kernels_d128(), kernels_d256()}) {
    for (const Kernel& kernel : kernels) {
      if (kernel.variant == variant) return &kernel;
    }
  }
  return nullptr;
}

cudaPointerAttributes pointer_attributes(const void* address) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) cudaGetLastError();
  return attributes;
}

Status check_memory(const char* name, const core::Tensor& tensor) {
  if (tensor.data == nullptr || pointer_attributes(tensor.data).devicePointer != nullptr) return {};
  return {TANDEM_INVALID_ARGUMENT, std::string(name) +
                                       ".data is host memory, which the GPU can't reach; pass device "
                                       "memory or choose TANDEM_BACKEND_CPU"};
}

struct Device {
  int ordinal, major, minor, sm_count;
};

Status current_device(Device* device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    cudaGetLastError();
    return {TANDEM_NO_DEVICE, std::string("no CUDA device can be used: ") +
                                  (error == cudaSuccess ? "there is none" : cudaGetErrorString(error)) +
                                  "; use TANDEM_BACKEND_CPU with host memory"};
  }
  if (cudaError_t e = cudaGetDevice(&device->ordinal); e != cudaSuccess)
    return device_error("cudaGetDevice", e);
  const auto attribute = [&](cudaDeviceAttr which) {
    int value = 0;
    cudaDeviceGetAttribute(&value, which, device->ordinal);
    return value;
  };
  device->major = attribute(cudaDevAttrComputeCapabilityMajor);
  device->minor = attribute(cudaDevAttrComputeCapabilityMinor);
  device->sm_count = attribute(cudaDevAttrMultiProcessorCount);
  return {};
}

Status hopper_device(Device* device) {
  if (Status s = current_device(device); !s.ok()) return s;
  if (Status s = check_capability(device->ordinal, device->major, device->minor); !s.ok()) return s;
  if (tensor_map_encoder() == nullptr) {
    return {TANDEM_NO_DEVICE, "the CUDA driver has no cuTensorMapEncodeTiled; it needs to be 525 or newer"};
  }
  return {};
}

}  // namespace

Status device_usable() {
  Device device;
  return hopper_device(&device);
}

DeviceDescription describe_device() {
  DeviceDescription description{};
  Device device;
  cudaDeviceProp properties;
  if (!current_device(&device).ok() || cudaGetDeviceProperties(&properties, device.ordinal) != cudaSuccess) {
    return description;
  }
  static_assert(sizeof(description.name) == sizeof(properties.name));
  std::memcpy(description.name, properties.name, sizeof(description.name));
  description.sm_count = device.sm_count;
  return description;
}

bool is_device_memory(const void* address) {
  const cudaMemoryType type = pointer_attributes(address).type;
  return type == cudaMemoryTypeDevice || type == cudaMemoryTypeManaged;
}

Status supported(const core::ForwardProblem& problem) {
  if (choose_variant(problem) == nullptr) {
    return {TANDEM_UNSUPPORTED, std::string("no Hopper kernel is built for dtype ") +
                                    core::name_of(problem.dtype()) + " with head dim " +
                                    std::to_string(problem.head_dim()) +
                                    "; built are bf16 and fp16 with head dims up to 256"};
  }
  for (auto [name, tensor] :
       {std::pair{"q", &problem.q}, {"k", &problem.k}, {"v", &problem.v}, {"o", &problem.o}}) {
    if (Status s = check_tensor(name, *tensor); !s.ok()) return s;
  }
  const ForwardVariant& variant = *choose_variant(problem);
  if (tile_count(problem, variant) >= max_tiles) {
    return {TANDEM_UNSUPPORTED, "batch * heads * ceil(sq / " + std::to_string(variant.block_m) +
                                    ") exceeds 2^30 tiles; split the batch"};
  }
  return {};
}

Status launch(const core::ForwardProblem& problem, void* stream) {
  Device device;
  if (Status s = hopper_device(&device); !s.ok()) return s;
  for (auto [name, tensor] : {std::pair{"q", &problem.q},
                              {"k", &problem.k},
                              {"v", &problem.v},
                              {"o", &problem.o},
                              {"lse", &problem.lse}}) {
    if (Status s = check_memory(name, *tensor); !s.ok()) return s;
  }
  const ForwardVariant& variant = *choose_variant(problem);
  const int grid = grid_size(problem, variant, device.sm_count);
  ForwardArguments args = make_arguments(problem, variant, grid);
  if (Status s = encode_maps(problem, variant, &args); !s.ok()) return s;

  const Kernel* kernel = find_kernel(variant);
  if (cudaError_t e = cudaFuncSetAttribute(kernel->handle, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           kernel->shared_bytes);
      e != cudaSuccess) {
    return device_error("cudaFuncSetAttribute for the forward kernel", e);
  }
  void* parameters[] = {&args};
  const cudaError_t error = cudaLaunchKernel(
      kernel->handle, dim3(static_cast<unsigned>(grid)), dim3(static_cast<unsigned>(variant.threads())),
      parameters, static_cast<std::size_t>(kernel->shared_bytes), static_cast<cudaStream_t>(stream));
  return error == cudaSuccess ? Status{} : device_error("the launch of the forward kernel", error);
}

}  // namespace tandem::forward
