#include "hw/cuda/device.h"

#include <array>
#include <cstdint>
#include <cstring>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <mutex>
#include <set>
#include <utility>

#include "core/remembered.h"
#include "hw/cuda/capability.h"
#include "hw/tensor_map.h"

namespace tandem::hw {
namespace {

using core::Status;

/// A function of the driver, or nullptr, through the runtime, so that the library loads where there is no
/// driver.
template <typename Function>
Function driver_function(const char* name, unsigned version) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &function, version, cudaEnableDefault, &found);
  const bool ok = error == cudaSuccess && found == cudaDriverEntryPointSuccess;
  return ok ? reinterpret_cast<Function>(function) : nullptr;
}

PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
  static const auto encoder =
      driver_function<PFN_cuTensorMapEncodeTiled_v12000>("cuTensorMapEncodeTiled", 12000);
  return encoder;
}

cudaPointerAttributes pointer_attributes(const void* address) {
  cudaPointerAttributes attributes{};
  if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) cudaGetLastError();
  return attributes;
}

/// Whether a device has a context. Where none has, nobody has memory on one.
bool has_context() {
  static const auto state =
      driver_function<PFN_cuDevicePrimaryCtxGetState_v7000>("cuDevicePrimaryCtxGetState", 7000);
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) cudaGetLastError();
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    unsigned flags = 0;
    int active = 0;
    if (state == nullptr || state(ordinal, &flags, &active) != CUDA_SUCCESS || active != 0) return true;
  }
  return false;
}

/// Gives the thread the current device's context. A thread has none before its first call that needs one, and
/// without one the driver knows no memory: so it is in a thread that PyTorch's autograd has just started. In
/// a process that has not used a device it makes none, for that takes memory of the device.
void bind_context() {
  int ordinal = 0;
  if (!has_context()) return;
  if (cudaGetDevice(&ordinal) != cudaSuccess || cudaSetDevice(ordinal) != cudaSuccess) cudaGetLastError();
}

/// Asks the runtime.
Status query_current_device(Device* device) {
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

/// Asks about a device once in a row: its answers do not change, and every call of the library needs them.
Status current_device(Device* device) {
  thread_local Device known{-1, 0, 0, 0};
  int ordinal = 0;
  if (cudaGetDevice(&ordinal) != cudaSuccess || ordinal != known.ordinal)
    if (Status s = query_current_device(&known); !s.ok()) {
      known.ordinal = -1;
      return s;
    }
  *device = known;
  return {};
}

/// What a map depends on, as numbers.
struct MapQuestion {
  std::array<std::uint64_t, 17> numbers;

  MapQuestion(const TensorMapRequest& r, CUtensorMapDataType type)
      : numbers{reinterpret_cast<std::uintptr_t>(r.address),
                r.dims[0],
                r.dims[1],
                r.dims[2],
                r.dims[3],
                r.dims[4],
                r.stride_bytes[0],
                r.stride_bytes[1],
                r.stride_bytes[2],
                r.stride_bytes[3],
                r.box[0],
                r.box[1],
                r.box[2],
                r.box[3],
                static_cast<std::uint64_t>(r.rank),
                static_cast<std::uint64_t>(r.swizzle),
                static_cast<std::uint64_t>(type)} {}
  std::uint64_t hash() const {
    std::uint64_t hash = 0;
    for (const std::uint64_t number : numbers) hash = core::mixed(hash, number);
    return hash >> 32;
  }
  friend bool operator==(const MapQuestion&, const MapQuestion&) = default;
};

struct EncodedMap {
  CUresult result;
  CUtensorMap map;
};

EncodedMap encoded_by_driver(const TensorMapRequest& request, CUtensorMapDataType type) {
  const CUtensorMapSwizzle swizzle =
      request.swizzle == Swizzle::none ? CU_TENSOR_MAP_SWIZZLE_NONE : CU_TENSOR_MAP_SWIZZLE_128B;
  const cuuint32_t element_strides[5] = {1, 1, 1, 1, 1};
  // A row of a box is one line of L2. Promotion to two lines fetches the neighbour's as well, which another
  // box asks for at the same time: measured 6 % of the bandwidth of HBM.
  EncodedMap encoded;
  encoded.result = tensor_map_encoder()(
      &encoded.map, type, static_cast<cuuint32_t>(request.rank), request.address, request.dims,
      request.stride_bytes, request.box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
      CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  return encoded;
}

/// What a caller can do about an error.
const char* next_step(cudaError_t error) {
  switch (error) {
    case cudaErrorMemoryAllocation:
      return "a kernel takes some device memory when it is first called: free some, or call it earlier";
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
      return "make the same call once before it is captured in a graph";
    case cudaErrorInvalidResourceHandle:
      return "the stream has to be one of the current device";
    case cudaErrorIllegalAddress:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
      return "a kernel that was enqueued before, of any library, has failed: start the process anew, and "
             "look for it with compute-sanitizer";
    default:
      return "what the call writes may be partly written";
  }
}

}  // namespace

Status device_error(const std::string& what, cudaError_t error) {
  cudaGetLastError();
  return {TANDEM_DEVICE_ERROR, what + " failed: " + cudaGetErrorString(error) + "; " + next_step(error)};
}

Status encode(const char* name, const core::Tensor& tensor, BoxRows box, TensorMap* map) {
  // Callers come back with the same buffers; the driver takes ten times as long as looking them up.
  thread_local core::Remembered<MapQuestion, EncodedMap, 64> known;
  const TensorMapRequest request = tensor_map_request(tensor, box);
  const CUtensorMapDataType type = tensor.dtype == TANDEM_FP32   ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32
                                   : tensor.dtype == TANDEM_BF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                   : tensor.dtype == TANDEM_FP16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                                                 : CU_TENSOR_MAP_DATA_TYPE_UINT16;
  static_assert(sizeof(CUtensorMap) == sizeof(*map));
  const EncodedMap& encoded =
      known.of(MapQuestion(request, type), [&] { return encoded_by_driver(request, type); });
  if (encoded.result != CUDA_SUCCESS) {
    return {TANDEM_DEVICE_ERROR, std::string("the driver refused a tensor map for ") + name +
                                     " (cuTensorMapEncodeTiled, error " + std::to_string(encoded.result) +
                                     ")"};
  }
  std::memcpy(map, &encoded.map, sizeof(*map));
  return {};
}

bool is_reachable(const void* address) {
  // The driver says so at once; the runtime asks it for more.
  static const auto attribute =
      driver_function<PFN_cuPointerGetAttribute_v4000>("cuPointerGetAttribute", 4000);
  CUdeviceptr reached = 0;
  const auto driver_knows = [&] {
    return attribute != nullptr && attribute(&reached, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                             reinterpret_cast<CUdeviceptr>(address)) == CUDA_SUCCESS;
  };
  if (driver_knows()) return reached != 0;
  bind_context();
  if (driver_knows()) return reached != 0;
  return pointer_attributes(address).devicePointer != nullptr;
}

Status check_memory(const char* name, const void* address) {
  if (address == nullptr || is_reachable(address)) return {};
  const cudaPointerAttributes own = pointer_attributes(address);
  if (own.type == cudaMemoryTypeDevice)
    return {TANDEM_INVALID_ARGUMENT, std::string(name) + " is memory of GPU " + std::to_string(own.device) +
                                         ", which the current GPU can't reach; make that one current, or "
                                         "enable access between them (cudaDeviceEnablePeerAccess)"};
  return {TANDEM_INVALID_ARGUMENT, std::string(name) +
                                       " is host memory, which the GPU can't reach; pass device memory or "
                                       "choose TANDEM_BACKEND_CPU"};
}

Status hopper_device(Device* device) {
  if (Status s = current_device(device); !s.ok()) return s;
  if (Status s = check_capability(device->ordinal, device->major, device->minor); !s.ok()) return s;
  if (tensor_map_encoder() == nullptr) {
    return {TANDEM_NO_DEVICE, "the CUDA driver has no cuTensorMapEncodeTiled; it needs to be 525 or newer"};
  }
  return {};
}

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
  cudaMemoryType type = pointer_attributes(address).type;
  if (type == cudaMemoryTypeUnregistered) {
    bind_context();
    type = pointer_attributes(address).type;
  }
  return type == cudaMemoryTypeDevice || type == cudaMemoryTypeManaged;
}

core::Status allow_shared_bytes(const void* kernel, int ordinal, int bytes) {
  static std::mutex mutex;
  static std::set<std::pair<const void*, int>> allowed;
  const std::lock_guard lock(mutex);
  if (allowed.contains({kernel, ordinal})) return {};
  if (cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
      e != cudaSuccess) {
    return device_error("cudaFuncSetAttribute for " + std::to_string(bytes) + " bytes of shared memory", e);
  }
  allowed.insert({kernel, ordinal});
  return {};
}

core::Status enqueue(const char* name, const Launch& launch, const void* arguments, void* stream) {
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(launch.blocks));
  config.blockDim = dim3(static_cast<unsigned>(launch.threads));
  config.dynamicSmemBytes = static_cast<std::size_t>(launch.shared_bytes);
  config.stream = static_cast<cudaStream_t>(stream);
  config.attrs = &early;
  config.numAttrs = launch.early ? 1 : 0;
  void* parameters[] = {const_cast<void*>(arguments)};
  const cudaError_t error = cudaLaunchKernelExC(&config, launch.handle, parameters);
  return error == cudaSuccess ? Status{} : device_error(std::string("the launch of ") + name, error);
}

}  // namespace tandem::hw
