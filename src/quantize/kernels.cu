// The __global__ functions of quantising: they call the kernel's body.
#include <array>
#include <utility>

#include "quantize/kernel.h"
#include "quantize/kernels.h"

namespace tandem::quantize {
namespace {

constexpr auto variants = all_variants();

// Named by its place in the table: nvcc 13.0's host stubs can't spell a template argument of class type.
template <std::size_t index>
__global__ void __launch_bounds__(variants[index].threads())
    quantize_trampoline(const __grid_constant__ QuantizeArguments args) {
  quantize_kernel<variants[index]>(args);
}

template <std::size_t... i>
auto make_kernels(std::index_sequence<i...>) {
  return std::array{Kernel{variants[i], static_cast<int>(sizeof(QuantizeShared<variants[i]>)),
                           reinterpret_cast<const void*>(&quantize_trampoline<i>)}...};
}

}  // namespace

std::span<const Kernel> kernels() {
  static const auto table = make_kernels(std::make_index_sequence<variants.size()>{});
  return table;
}

}  // namespace tandem::quantize
