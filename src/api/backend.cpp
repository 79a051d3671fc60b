#include "api/backend.h"

#include <cstdint>

#include "api/hopper.h"
#include "api/message.h"

namespace tandem::api {

using core::Status;

Status choose_backend(tandem_backend asked, const core::Tensor& q, bool idle, tandem_backend* chosen) {
  *chosen = asked;
  if (asked != TANDEM_BACKEND_AUTO) return {};
  if (q.data == nullptr && !idle)
    return invalid(
        "q.data is NULL, but backend TANDEM_BACKEND_AUTO follows the memory that q.data lies in; set q.data, "
        "or ask for one backend");
  *chosen = is_device_memory(q.data) ? TANDEM_BACKEND_HOPPER : TANDEM_BACKEND_CPU;
  return {};
}

Status check_workspace(const Lent& lent, Workspace workspace, std::size_t needed) {
  constexpr std::size_t alignment = 256;
  if (needed == 0) return {};
  if (workspace.bytes < needed)
    return {TANDEM_WORKSPACE_TOO_SMALL,
            text(lent.bytes_name, " is ", workspace.bytes, ", but this call needs ", needed, "; ask ",
                 lent.query, " with the same arguments")};
  if (workspace.data == nullptr)
    return invalid(lent.name, " is NULL, but this call needs ", needed, " bytes, aligned to ", alignment);
  if (reinterpret_cast<std::uintptr_t>(workspace.data) % alignment != 0)
    return invalid(lent.name, " is ", workspace.data, ", which is not aligned to ", alignment, " bytes");
  return {};
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
