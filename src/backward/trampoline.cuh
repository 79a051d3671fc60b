// The only __global__ functions of the backward: they call the kernels' bodies.
#pragma once

#include <array>
#include <utility>

#include "backward/kernel.h"
#include "backward/kernels.h"
#include "backward/table.h"

namespace tandem::backward {

// Named by its place in the table: nvcc 13.0's host stubs can't spell a template argument of class type.
template <int head_dim, std::size_t index>
__global__ void __launch_bounds__(BackwardVariant::threads, 1)
    backward_trampoline(const __grid_constant__ BackwardArguments args) {
  backward_kernel<built<head_dim>()[index]>(args);
}

template <hw::Operand operand, int head_dim>
__global__ void __launch_bounds__(small_threads)
    prepare_trampoline(const __grid_constant__ PrepareArguments args) {
  prepare_kernel<operand, head_dim>(args);
}

template <hw::Operand operand, int head_dim>
__global__ void __launch_bounds__(small_threads)
    finish_trampoline(const __grid_constant__ FinishArguments args) {
  finish_kernel<operand, head_dim>(args);
}

template <int head_dim>
__global__ void __launch_bounds__(small_threads)
    clear_trampoline(const __grid_constant__ ClearArguments args) {
  clear_kernel(args);
}

/// One kernel for each variant of a head dim: the loop that makes launchers.
template <int head_dim, std::size_t... i>
auto make_kernels(std::index_sequence<i...>) {
  constexpr auto table = built<head_dim>();
  return std::array{CompiledKernel{table[i], shared_bytes_of<table[i]>,
                                   reinterpret_cast<const void*>(&backward_trampoline<head_dim, i>)}...};
}

template <int head_dim>
std::span<const CompiledKernel> kernels() {
  static const auto table = make_kernels<head_dim>(std::make_index_sequence<built<head_dim>().size()>{});
  return table;
}

template <hw::Operand operand, int head_dim>
CompiledHelpers make_helpers() {
  return {operand, reinterpret_cast<const void*>(&prepare_trampoline<operand, head_dim>),
          reinterpret_cast<const void*>(&finish_trampoline<operand, head_dim>),
          reinterpret_cast<const void*>(&clear_trampoline<head_dim>)};
}

template <int head_dim>
std::span<const CompiledHelpers> helpers() {
  static const std::array table{make_helpers<hw::Operand::bf16, head_dim>(),
                                make_helpers<hw::Operand::fp16, head_dim>()};
  return table;
}

}  // namespace tandem::backward
