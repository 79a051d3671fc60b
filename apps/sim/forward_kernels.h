// The compiled kernels, as the simulator's launcher finds them. One file for each head dim, like the .cu
// files.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "forward/kernel.h"
#include "forward/variants.h"

namespace tandem::sim {

struct Kernel {
  forward::ForwardVariant variant;
  int shared_bytes;
  void (*body)(const forward::ForwardArguments&);
};

std::span<const Kernel> kernels_d64();
std::span<const Kernel> kernels_d128();
std::span<const Kernel> kernels_d256();

/// What is built for a head dim, and every pair of overlap and turn policy in bf16 with band masks.
template <int head_dim>
constexpr auto simulated_variants() {
  constexpr auto table = forward::candidates<head_dim>();
  constexpr std::size_t built = table.size();
  std::array<forward::ForwardVariant, built + 6> variants{};
  for (std::size_t c = 0; c < built; ++c) variants[c] = table[c].variant;
  const auto is_band = [](const auto& v) { return v.mask == forward::MaskKind::band && !v.softcap; };
  const auto first_band = *std::find_if(variants.begin(), variants.end(), is_band);  // bf16 comes first
  std::size_t i = built;
  for (auto overlap :
       {forward::Overlap::serial, forward::Overlap::two_stage, forward::Overlap::three_stage}) {
    for (auto turn : {forward::TurnPolicy::free, forward::TurnPolicy::pingpong}) {
      variants[i] = first_band;
      variants[i].overlap = overlap;
      variants[i++].turn = turn;
    }
  }
  return variants;
}

template <int head_dim, std::size_t... i>
constexpr auto make_kernels(std::index_sequence<i...>) {
  constexpr auto variants = simulated_variants<head_dim>();
  return std::array{Kernel{variants[i], static_cast<int>(sizeof(forward::ForwardShared<variants[i]>)),
                           &forward::forward_kernel<variants[i]>}...};
}

template <int head_dim>
std::span<const Kernel> kernels() {
  static const auto table =
      make_kernels<head_dim>(std::make_index_sequence<simulated_variants<head_dim>().size()>{});
  return table;
}

}  // namespace tandem::sim
