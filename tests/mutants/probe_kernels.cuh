// The device side of a probe: the kernels of a list of variants, launched as tests launch theirs.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "forward/decisions.h"
#include "forward/kernel.h"
#include "tests/gpu/machine.cuh"
#include "tests/mutants/probe.h"

namespace tandem::test {

/// bf16 with band masks, which serve any mask: what the overlap and turn policies are tried with.
constexpr forward::ForwardVariant probe_variant(int head_dim, forward::Overlap overlap,
                                                forward::TurnPolicy turn, int block_m) {
  return forward::decided(
      {hw::Operand::bf16, head_dim, forward::MaskKind::band, false, overlap, turn, block_m, 128, 2});
}

/// Variant number i of List::variants as a body that machine::run takes.
template <typename List, std::size_t i>
struct ProbeBody {
  static constexpr forward::ForwardVariant variant = List::variants[i];
  static constexpr int threads = variant.threads();
  using Shared = forward::ForwardShared<variant>;

  forward::ForwardArguments args;

  TANDEM_DEVICE void operator()() const { forward::forward_kernel<variant>(args); }
};

template <typename List, std::size_t... i>
std::span<const ProbeKernel> make_probe_kernels(std::index_sequence<i...>) {
  static const std::array kernels{
      ProbeKernel{List::variants[i], [](const forward::ForwardArguments& args, int blocks) {
                    machine::run(machine::Mode{}, blocks, ProbeBody<List, i>{args});
                  }}...};
  return kernels;
}

/// One kernel for each of List::variants.
template <typename List>
std::span<const ProbeKernel> make_probe_kernels() {
  return make_probe_kernels<List>(std::make_index_sequence<List::variants.size()>{});
}

hw::TensorMap encode_map(const hw::TensorMapRequest& request) {
  MapRequest map{};
  map.address = request.address;
  std::copy_n(request.dims, 4, map.dims);
  std::copy_n(request.stride_bytes, 3, map.stride_bytes);
  std::copy_n(request.box, 4, map.box);
  return machine::encode(map);
}

}  // namespace tandem::test
