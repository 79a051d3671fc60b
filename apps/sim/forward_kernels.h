// The compiled kernels, as the simulator's launcher finds them. One file for each head dim and purpose, like
// the .cu files.
#pragma once

#include <array>
#include <span>
#include <utility>

#include "forward/kernel.h"
#include "forward/table.h"

namespace tandem::sim {

struct Kernel {
  forward::ForwardVariant variant;
  int shared_bytes;
  bool stages_output;
  void (*body)(const forward::ForwardArguments&);
};

/// Kernels of one head dim and purpose, each pair compiled in a file of its own.
template <int head_dim, forward::Purpose purpose>
std::span<const Kernel> kernels();

template <int head_dim, forward::Purpose purpose, std::size_t... i>
constexpr auto make_kernels(std::index_sequence<i...>) {
  constexpr auto table = forward::built<head_dim, purpose>();
  return std::array{
      Kernel{table[i].variant, static_cast<int>(sizeof(forward::ForwardShared<table[i].variant>)),
             forward::stages_output<table[i].variant>, &forward::forward_kernel<table[i].variant>}...};
}

template <int head_dim, forward::Purpose purpose>
std::span<const Kernel> kernels() {
  static const auto table =
      make_kernels<head_dim, purpose>(std::make_index_sequence<forward::built<head_dim, purpose>().size()>{});
  return table;
}

}  // namespace tandem::sim
