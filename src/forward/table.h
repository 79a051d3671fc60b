// The table of all variants that are built, by head dim and purpose: a file of kernels for each pair.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "forward/arguments.h"
#include "forward/decisions.h"
#include "forward/eight_bit_recipes.h"
#include "forward/recipes.h"
#include "forward/study.h"
#include "launch/kernel.h"

namespace tandem::forward {

enum class Purpose { best, varlen, study, eight_bit, sparse, sparse_varlen, int8, narrow_values };

template <int head_dim, Purpose purpose>
constexpr auto undecided_candidates() {
  if constexpr (purpose == Purpose::best) {
    return candidates<head_dim>();
  } else if constexpr (purpose == Purpose::varlen) {
    return candidates_of_recipes<head_dim>(varlen_recipes<head_dim>(), Lengths::varlen, false);
  } else if constexpr (purpose == Purpose::sparse) {
    return candidates_of_recipes<head_dim>(sparse_recipes<head_dim>(), Lengths::uniform, true);
  } else if constexpr (purpose == Purpose::sparse_varlen) {
    return candidates_of_recipes<head_dim>(sparse_recipes<head_dim>(), Lengths::varlen, true);
  } else if constexpr (purpose == Purpose::eight_bit) {
    return e4m3_candidates<head_dim>();
  } else if constexpr (purpose == Purpose::int8) {
    return eight_bit_candidates<head_dim>(int8_recipes);
  } else if constexpr (purpose == Purpose::narrow_values) {
    return narrow_value_candidates<head_dim>();
  } else {
    return study_candidates<head_dim>();
  }
}

/// All candidates for a head dim and a purpose.
template <int head_dim, Purpose purpose>
constexpr auto candidates_for() {
  auto all = undecided_candidates<head_dim, purpose>();
  for (Candidate& candidate : all) candidate.variant = decided(candidate.variant);
  return all;
}

/// Moves each variant's first candidate to the front, and says how many there are.
template <std::size_t n>
constexpr std::size_t gather_variants(std::array<Candidate, n>& all) {
  const auto end = all.begin() + n;
  auto gathered = all.begin();
  for (auto next = all.begin(); next != end; ++next) {
    const auto is_its = [&](const Candidate& c) { return c.variant == next->variant; };
    if (std::none_of(all.begin(), gathered, is_its)) *gathered++ = *next;
  }
  return static_cast<std::size_t>(gathered - all.begin());
}

/// Their variants, each once: what is compiled.
template <int head_dim, Purpose purpose>
constexpr auto built() {
  constexpr std::size_t count = [] {
    auto all = candidates_for<head_dim, purpose>();
    return gather_variants(all);
  }();
  auto all = candidates_for<head_dim, purpose>();
  gather_variants(all);
  std::array<ForwardVariant, count> variants{};
  for (std::size_t i = 0; i < count; ++i) variants[i] = all[i].variant;
  return variants;
}

/// Calls `visit.operator()<head_dim, purpose>()` for every file of kernels, head dims ascending. Those in
/// between run padded to the next.
template <typename Visit>
constexpr void for_each_built(Visit&& visit) {
  const auto all = [&visit]<int head_dim>() {
    visit.template operator()<head_dim, Purpose::best>();
    visit.template operator()<head_dim, Purpose::varlen>();
    visit.template operator()<head_dim, Purpose::study>();
    if constexpr (has_narrow_value_kernels<head_dim>)
      visit.template operator()<head_dim, Purpose::narrow_values>();
    if constexpr (has_sparse_kernels<head_dim>) visit.template operator()<head_dim, Purpose::sparse>();
    if constexpr (has_sparse_varlen_kernels<head_dim>)
      visit.template operator()<head_dim, Purpose::sparse_varlen>();
    if constexpr (has_eight_bit_kernels<head_dim>) {
      visit.template operator()<head_dim, Purpose::eight_bit>();
      visit.template operator()<head_dim, Purpose::int8>();
    }
  };
  all.template operator()<64>();
  all.template operator()<96>();
  all.template operator()<128>();
  all.template operator()<192>();
  all.template operator()<256>();
  visit.template operator()<wide_head_dim, Purpose::best>();
}

/// The family of the forward's kernels (launch/kernel.h).
struct Family {
  using Variant = ForwardVariant;
  using Arguments = ForwardArguments;
  static constexpr const char* name = "the forward kernel";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 1;

  template <typename Visit>
  static constexpr void for_each_group(Visit visit);
};

template <ForwardVariant V>
struct KernelBody;  // kernel.h

template <int head_dim, Purpose purpose>
struct Group {
  using Family = forward::Family;
  static constexpr auto variants = built<head_dim, purpose>();
  static constexpr bool for_study = purpose == Purpose::study;
  template <ForwardVariant V>
  using Body = KernelBody<V>;
};

template <typename Visit>
constexpr void Family::for_each_group(Visit visit) {
  for_each_built(
      [&visit]<int head_dim, Purpose purpose>() { visit.template operator()<Group<head_dim, purpose>>(); });
}

struct ListGroup;

/// That of the kernel which lists the tiles of variable lengths.
struct ListFamily : launch::Groups<ListGroup> {
  using Variant = ListVariant;
  using Arguments = ListArguments;
  static constexpr const char* name = "the kernel that lists tiles";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 2;  // by itself ptxas stops at 64 registers, and spills
};

template <ListVariant V>
struct ListBody;  // kernel.h

struct ListGroup {
  using Family = ListFamily;
  static constexpr std::array variants{ListVariant{}};
  template <ListVariant V>
  using Body = ListBody<V>;
};

struct AppendGroup;

/// Those of the kernels which append new keys and values to caches, and rotate.
struct AppendFamily : launch::Groups<AppendGroup> {
  using Variant = AppendVariant;
  using Arguments = AppendArguments;
  static constexpr const char* name = "the kernel that appends";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};

template <AppendVariant V>
struct AppendBody;  // kernel.h

struct AppendGroup {
  using Family = AppendFamily;
  static constexpr std::array variants{AppendVariant{hw::Operand::bf16}, AppendVariant{hw::Operand::fp16}};
  template <AppendVariant V>
  using Body = AppendBody<V>;
};

/// All candidates, head dims ascending.
constexpr auto all_candidates() {
  constexpr std::size_t count = [] {
    std::size_t n = 0;
    for_each_built(
        [&n]<int head_dim, Purpose purpose>() { n += candidates_for<head_dim, purpose>().size(); });
    return n;
  }();
  std::array<Candidate, count> all{};
  std::size_t i = 0;
  for_each_built([&]<int head_dim, Purpose purpose>() {
    for (const Candidate& candidate : candidates_for<head_dim, purpose>()) all[i++] = candidate;
  });
  return all;
}

}  // namespace tandem::forward
