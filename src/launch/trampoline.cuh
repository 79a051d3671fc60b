// The one __global__ function of all families: it calls a kernel's body.
#pragma once

#include "launch/chip_kernels.h"

namespace tandem::launch {

// Named by its place in the group: nvcc 13.0's host stubs can't spell a template argument of class type.
template <typename Group, std::size_t index>
__global__ void __launch_bounds__(Group::variants[index].threads(),
                                  min_blocks<typename Group::Family>(Group::variants[index]))
    trampoline(const __grid_constant__ typename Group::Family::Arguments args) {
  Group::template Body<Group::variants[index]>::run(args);
}

template <typename Group>
struct TrampolineOf {
  template <std::size_t index>
  const void* operator()() const {
    return reinterpret_cast<const void*>(&trampoline<Group, index>);
  }
};

template <typename Group>
ChipTable<Group> chip_kernels() {
  static const auto table = make_kernels<Group, const void*>(TrampolineOf<Group>(), Indices<Group>());
  return table;
}

}  // namespace tandem::launch
