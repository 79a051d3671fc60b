// The only __global__ function of the forward: it calls the kernel's body.
#pragma once

#include <array>
#include <utility>

#include "forward/kernel.h"
#include "forward/kernels.h"
#include "forward/variants.h"

namespace tandem::forward {

// Named by its place in the table: nvcc 13.0's host stubs can't spell a template argument of class type.
template <int head_dim, std::size_t index>
__global__ void __launch_bounds__(variants_of(head_dim)[index].threads(), 1)
    forward_trampoline(const __grid_constant__ ForwardArguments args) {
  forward_kernel<variants_of(head_dim)[index]>(args);
}

/// One kernel for each variant of a head dim: the loop that makes launchers.
template <int head_dim, std::size_t... i>
auto make_kernels(std::index_sequence<i...>) {
  constexpr auto variants = variants_of(head_dim);
  return std::array{Kernel{variants[i], static_cast<int>(sizeof(ForwardShared<variants[i]>)),
                           reinterpret_cast<const void*>(&forward_trampoline<head_dim, i>)}...};
}

template <int head_dim>
std::span<const Kernel> kernels() {
  static const auto table = make_kernels<head_dim>(std::make_index_sequence<variants_of(head_dim).size()>{});
  return table;
}

}  // namespace tandem::forward
