#include "api/backend.h"

#include <cstdint>
#include <string>

#include "api/extent.h"
#include "api/hopper.h"
#include "api/message.h"
#include "core/workspace.h"

namespace tandem::api {

using core::Status;

namespace {

/// Device or managed memory. A library without CUDA cannot know.
bool is_device_memory(const void* address) { return hopper != nullptr && hopper->is_device_memory(address); }

/// What a caller would have to set: there is one where a call writes something.
std::string first_with_elements(const core::TensorList& tensors) {
  for (const core::ListedTensor& tensor : tensors)
    if (!is_empty(tensor.region)) return tensor.address_name();
  return "data";
}

}  // namespace

const void* followed_address(const core::TensorList& tensors) {
  for (const core::ListedTensor& tensor : tensors)
    if (tensor.region.data != nullptr && !is_empty(tensor.region)) return tensor.region.data;
  return nullptr;
}

Status choose_backend(const core::TensorList& tensors, bool idle, tandem_backend* chosen) {
  const void* address = followed_address(tensors);
  if (address == nullptr && !idle)
    return invalid(first_with_elements(tensors),
                   " is NULL, but backend TANDEM_BACKEND_AUTO follows the memory that data lie in, and no "
                   "other tensor has any; set it, or ask for one backend");
  *chosen = is_device_memory(address) ? TANDEM_BACKEND_HOPPER : TANDEM_BACKEND_CPU;
  return {};
}

Status check_workspace(const Lent& lent, Workspace workspace, std::size_t needed) {
  if (needed == 0) return {};
  if (workspace.bytes < needed)
    return {TANDEM_WORKSPACE_TOO_SMALL,
            text(lent.bytes_name, " is ", workspace.bytes, ", but this call needs ", needed, "; ask ",
                 lent.query, " with the same arguments")};
  if (workspace.data == nullptr)
    return invalid(lent.name, " is NULL, but this call needs ", needed, " bytes, aligned to ",
                   core::workspace_alignment);
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % core::workspace_alignment != 0)
    return invalid(lent.name, " is ", workspace.data, ", which is not aligned to ", core::workspace_alignment,
                   " bytes");
  return {};
}

Status check_answer(const std::size_t* bytes) {
  return bytes != nullptr ? Status() : invalid("bytes is NULL; pass the address of a size_t");
}

Status hopper_absent() {
  return unsupported(
      "backend TANDEM_BACKEND_HOPPER is not in this library: it was built without the Hopper kernels; build "
      "with "
      "`cmake --preset hopper`, or use TANDEM_BACKEND_CPU with host memory");
}

Status check_host_memory(const core::TensorList& tensors) {
  for (const core::ListedTensor& tensor : tensors)
    if (const void* address = tensor.region.data; address != nullptr && is_device_memory(address))
      return invalid(
          tensor.address_name(), " is ", address,
          ", which is device or managed memory, but the backend that was chosen reads host memory; "
          "pass everything in host memory, or everything in device memory");
  return {};
}

}  // namespace tandem::api
