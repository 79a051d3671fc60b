// The chip as operations run kernels on it: what a launch needs of it, and how a launch record is enqueued.
#pragma once

#include <cstddef>
#include <utility>

#include "core/status.h"
#include "core/tensor_list.h"
#include "hw/cuda/device.h"
#include "launch/chip_kernels.h"
#include "launch/record.h"
#include "launch/tape.h"

namespace tandem::launch {

/// find_chip_kernel, for a caller who comes back with the same variant: the search is as long as a fifth of a
/// call.
template <typename Family>
const ChipKernel<Family>* known_chip_kernel(const typename Family::Variant& variant) {
  thread_local const ChipKernel<Family>* last = nullptr;
  if (last == nullptr || !(last->variant == variant)) last = find_chip_kernel<Family>(variant);
  return last;
}

/// The current device with a stream of it.
class Chip {
 public:
  explicit Chip(void* stream) : stream_(stream) {}

  /// OK if the current device can run the kernels and reach all memory of a call. To be asked before anything
  /// else.
  core::Status open(const core::TensorList& tensors) {
    if (core::Status s = hw::hopper_device(&device_); !s.ok()) return s;
    for (const core::ListedTensor& tensor : tensors)
      if (core::Status s = hw::check_memory(tensor.address_name().c_str(), tensor.region.data); !s.ok())
        return s;
    if (recording != nullptr) recording->open(device_.ordinal, tensors);
    return {};
  }
  int sm_count() const { return device_.sm_count; }

  /// Enqueues one kernel. It may begin before the one ahead of it in the stream has ended, and waits by
  /// itself.
  template <typename Family>
  core::Status run(Record<Family>&& record) const {
    if (record.blocks == 0) return {};
    for (std::size_t i = 0; i < record.map_count; ++i) {
      const auto& [name, tensor, box, map] = record.maps[i];
      if (core::Status s = hw::encode(name, tensor, box, &(record.arguments.*map)); !s.ok()) return s;
    }
    const ChipKernel<Family>* kernel = known_chip_kernel<Family>(record.variant);
    if (kernel == nullptr) return check_linked<Family>(record.variant);
    if (kernel->shared_bytes > 0)
      if (core::Status s = hw::allow_shared_bytes(kernel->handle, device_.ordinal, kernel->shared_bytes);
          !s.ok())
        return s;
    const hw::Launch launch{kernel->handle, record.blocks, record.variant.threads(), kernel->shared_bytes,
                            record.starts_early};
    if (recording != nullptr)
      recording->add(Family::name, launch, &record.arguments, sizeof record.arguments);
    return hw::enqueue(Family::name, launch, &record.arguments, stream_);
  }
  /// Several, one after another, until one fails.
  template <typename... Families>
  core::Status run_all(Record<Families>&&... records) const {
    core::Status status;
    static_cast<void>(((status = run(std::move(records))).ok() && ...));
    return status;
  }

 private:
  hw::Device device_{};
  void* stream_;
};

}  // namespace tandem::launch
