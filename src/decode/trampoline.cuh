// The __global__ functions of decode: they call the kernels' bodies.
#pragma once

#include <array>
#include <utility>

#include "decode/kernel.h"
#include "decode/kernels.h"
#include "decode/variants.h"

namespace tandem::decode {

// Named by its place in the table: nvcc 13.0's host stubs can't spell a template argument of class type.
template <int head_dim, std::size_t index>
__global__ void __launch_bounds__(DecodeVariant::threads, 1)
    decode_trampoline(const __grid_constant__ DecodeArguments args) {
  decode_kernel<variants<head_dim>()[index]>(args);
}

/// One kernel for each variant of a head dim.
template <int head_dim, std::size_t... i>
auto make_kernels(std::index_sequence<i...>) {
  constexpr auto table = variants<head_dim>();
  return std::array{Kernel{table[i], static_cast<int>(sizeof(DecodeShared<table[i]>)),
                           reinterpret_cast<const void*>(&decode_trampoline<head_dim, i>)}...};
}

template <int head_dim>
std::span<const Kernel> kernels() {
  static const auto table = make_kernels<head_dim>(std::make_index_sequence<variants<head_dim>().size()>{});
  return table;
}

}  // namespace tandem::decode
