// Makes the table of compiled kernels of one head dim and purpose.
#pragma once

#include <array>
#include <utility>

#include "apps/sim/forward_kernels.h"
#include "forward/kernel.h"

namespace tandem::sim {

template <int head_dim, forward::Purpose purpose, std::size_t... i>
constexpr auto make_kernels(std::index_sequence<i...>) {
  constexpr auto table = forward::built<head_dim, purpose>();
  return std::array{Kernel{table[i], static_cast<int>(sizeof(forward::ForwardShared<table[i]>)),
                           forward::stages_output<table[i]>, &forward::forward_kernel<table[i]>}...};
}

template <int head_dim, forward::Purpose purpose>
std::span<const Kernel> kernels() {
  static const auto table =
      make_kernels<head_dim, purpose>(std::make_index_sequence<forward::built<head_dim, purpose>().size()>{});
  return table;
}

}  // namespace tandem::sim
