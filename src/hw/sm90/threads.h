// Threads, registers, lanes, neighbouring grids.
#pragma once

#include "hw/hw.h"

namespace tandem::hw {

TANDEM_DEVICE std::uint32_t thread_index() { return threadIdx.x; }
TANDEM_DEVICE std::uint32_t lane_index() { return threadIdx.x % warp_size; }
// The shuffle tells the compiler that the value is the same in the whole warp, so that branches on it are
// uniform.
TANDEM_DEVICE std::uint32_t warp_index() { return __shfl_sync(0xffffffffu, threadIdx.x / warp_size, 0); }
TANDEM_DEVICE std::uint32_t warpgroup_index() {
  return __shfl_sync(0xffffffffu, threadIdx.x / warpgroup_size, 0);
}
TANDEM_DEVICE std::uint32_t thread_index_anew() {
  std::uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}
TANDEM_DEVICE std::uint32_t warpgroup_index_anew() {
  std::uint32_t index;
  asm volatile("redux.sync.min.u32 %0, %1, 0xffffffff;\n"
               : "=r"(index)
               : "r"(thread_index() / warpgroup_size));
  return index;
}
TANDEM_DEVICE std::uint32_t block_index() { return blockIdx.x; }
TANDEM_DEVICE std::uint32_t grid_size() { return gridDim.x; }

TANDEM_DEVICE bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}\n"
      : "=r"(elected));
  return elected != 0;
}

TANDEM_DEVICE void set_role(const char*) {}

template <int count>
TANDEM_DEVICE void release_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(count));
}

template <int count>
TANDEM_DEVICE void acquire_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(count));
}

TANDEM_DEVICE float shuffle_xor(float value, std::uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}
TANDEM_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, std::uint32_t mask) {
  return __shfl_xor_sync(0xffffffffu, value, static_cast<int>(mask));
}

TANDEM_DEVICE float shuffle(float value, std::uint32_t lane) {
  return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
}
TANDEM_DEVICE std::uint32_t shuffle(std::uint32_t value, std::uint32_t lane) {
  return __shfl_sync(0xffffffffu, value, static_cast<int>(lane));
}

TANDEM_DEVICE bool any_lane(bool predicate) { return __any_sync(0xffffffffu, predicate) != 0; }

TANDEM_DEVICE void wait_for_prior_grid() { asm volatile("griddepcontrol.wait;\n" ::: "memory"); }
TANDEM_DEVICE void release_next_grid() { asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory"); }

}  // namespace tandem::hw
