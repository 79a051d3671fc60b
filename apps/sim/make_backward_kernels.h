// Makes the tables of compiled kernels of one head dim.
#pragma once

#include <array>
#include <utility>

#include "apps/sim/backward_kernels.h"
#include "backward/kernel.h"
#include "backward/table.h"

namespace tandem::sim {

template <int head_dim, std::size_t... i>
constexpr auto make_backward_kernels(std::index_sequence<i...>) {
  constexpr auto table = backward::built<head_dim>();
  return std::array{
      BackwardKernel{table[i], backward::shared_bytes_of<table[i]>, &backward::backward_kernel<table[i]>}...};
}

template <int head_dim>
std::span<const BackwardKernel> backward_kernels() {
  static const auto table =
      make_backward_kernels<head_dim>(std::make_index_sequence<backward::built<head_dim>().size()>{});
  return table;
}

template <int head_dim>
std::span<const BackwardHelpers> backward_helpers() {
  using enum hw::Operand;
  static const std::array table{
      BackwardHelpers{bf16, &backward::prepare_kernel<bf16, head_dim>,
                      &backward::finish_kernel<bf16, head_dim>, &backward::clear_kernel},
      BackwardHelpers{fp16, &backward::prepare_kernel<fp16, head_dim>,
                      &backward::finish_kernel<fp16, head_dim>, &backward::clear_kernel}};
  return table;
}

}  // namespace tandem::sim
