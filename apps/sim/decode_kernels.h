// The compiled decode kernels, as the simulator's launcher finds them.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "decode/kernel.h"
#include "decode/variants.h"

namespace tandem::sim {

struct DecodeKernel {
  decode::DecodeVariant variant;
  int shared_bytes;
  void (*body)(const decode::DecodeArguments&);
};

std::span<const DecodeKernel> decode_kernels_d64();
std::span<const DecodeKernel> decode_kernels_d128();
std::span<const DecodeKernel> decode_kernels_d256();
void make_decode_plan(const decode::DecodeArguments& args, std::int32_t* plan);

/// Everything that is built for a head dim. With head dim 64 also the narrowest tile of each algorithm with
/// blocks of 128 keys.
template <int head_dim>
constexpr auto simulated_decode_variants() {
  constexpr auto built = decode::variants<head_dim>();
  std::array<decode::DecodeVariant, built.size() + (head_dim == 64 ? 3 : 0)> all{};
  std::copy(built.begin(), built.end(), all.begin());
  std::size_t next = built.size();
  for (std::size_t i = 0; next < all.size(); ++i) {
    if (i > 0 && built[i].algorithm == built[i - 1].algorithm) continue;
    all[next] = built[i];
    all[next].block_n = 128;
    all[next++].stages = 2;
  }
  return all;
}

template <int head_dim, std::size_t... i>
constexpr auto make_decode_kernels(std::index_sequence<i...>) {
  constexpr auto variants = simulated_decode_variants<head_dim>();
  return std::array{DecodeKernel{variants[i], static_cast<int>(sizeof(decode::DecodeShared<variants[i]>)),
                                 &decode::decode_kernel<variants[i]>}...};
}

template <int head_dim>
std::span<const DecodeKernel> decode_kernels() {
  static const auto table =
      make_decode_kernels<head_dim>(std::make_index_sequence<simulated_decode_variants<head_dim>().size()>{});
  return table;
}

}  // namespace tandem::sim
