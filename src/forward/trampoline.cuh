// The only __global__ function of the forward: it calls the kernel's body.
#pragma once

#include <array>
#include <utility>

#include "forward/kernel.h"
#include "forward/kernels.h"
#include "forward/table.h"

namespace tandem::forward {

// Named by its place in the table: nvcc 13.0's host stubs can't spell a template argument of class type.
template <int head_dim, Purpose purpose, std::size_t index>
__global__ void __launch_bounds__(built<head_dim, purpose>()[index].threads(), 1)
    forward_trampoline(const __grid_constant__ ForwardArguments args) {
  forward_kernel<built<head_dim, purpose>()[index]>(args);
}

/// One kernel for each variant of a head dim and purpose: the loop that makes launchers.
template <int head_dim, Purpose purpose, std::size_t... i>
auto make_kernels(std::index_sequence<i...>) {
  constexpr auto table = built<head_dim, purpose>();
  return std::array{Kernel{table[i], static_cast<int>(sizeof(ForwardShared<table[i]>)),
                           stages_output<table[i]>,
                           reinterpret_cast<const void*>(&forward_trampoline<head_dim, purpose, i>)}...};
}

template <int head_dim, Purpose purpose>
std::span<const Kernel> kernels() {
  static const auto table =
      make_kernels<head_dim, purpose>(std::make_index_sequence<built<head_dim, purpose>().size()>{});
  return table;
}

}  // namespace tandem::forward
