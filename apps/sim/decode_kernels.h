// The compiled decode kernels, as the simulator's launcher finds them.
#pragma once

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
void make_decode_plan(const decode::DecodeArguments& args, std::int32_t* plan, int grid);

/// What is built for a head dim in bf16. With head dim 64 also the narrowest tile of each algorithm in fp16,
/// and with blocks of 128 keys.
template <int head_dim>
constexpr auto simulated_decode_variants() {
  constexpr auto built = decode::variants<head_dim>();
  constexpr std::size_t bf16 = built.size() / 2;  // bf16 comes first
  std::array<decode::DecodeVariant, bf16 + (head_dim == 64 ? 6 : 0)> all{};
  for (std::size_t i = 0; i < bf16; ++i) all[i] = built[i];
  std::size_t next = bf16;
  for (std::size_t i = 0; head_dim == 64 && i < bf16; ++i) {
    if (i > 0 && built[i].algorithm == built[i - 1].algorithm) continue;
    all[next] = built[i];
    all[next++].operand = hw::Operand::fp16;
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
