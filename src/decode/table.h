// The table of what is built.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <tuple>
#include <utility>

#include "decode/arguments.h"
#include "decode/variant.h"
#include "launch/kernel.h"

namespace tandem::decode {

/// One line of the table, for both operand types.
struct Recipe {
  Algorithm algorithm;
  int query_rows, block_n, stages;
  int resident = 1;
};

/// Stages, by measurement: about 100 to 130 KB on their way to a multiprocessor are enough, and with more L2
/// has less room for outputs (docs/decode.md). Short streams are mostly latency, which two or three
/// blocks of a multiprocessor hide from one another. Registers limit query rows: O^T has head_dim / 2 of them
/// for 64 rows, and the probabilities of register_p stay in registers beside it.
template <int head_dim>
constexpr auto recipes() {
  using enum Algorithm;
  if constexpr (head_dim == 64) {
    return std::array{
        Recipe{plain, 64, 128, 3},       Recipe{shared_p, 8, 128, 3},    Recipe{shared_p, 16, 128, 3},
        Recipe{shared_p, 32, 128, 3, 2}, Recipe{register_p, 8, 128, 3},  Recipe{register_p, 16, 128, 3},
        Recipe{register_p, 32, 128, 3},  Recipe{shared_p, 8, 128, 3, 2}, Recipe{shared_p, 16, 128, 3, 2},
        Recipe{shared_p, 8, 64, 4, 3},   Recipe{shared_p, 8, 128, 2, 3}, Recipe{shared_p, 16, 128, 2, 3}};
  } else if constexpr (head_dim == 128) {
    return std::array{
        Recipe{plain, 64, 128, 3},      Recipe{shared_p, 8, 128, 2},   Recipe{shared_p, 16, 128, 2},
        Recipe{shared_p, 32, 64, 3, 2}, Recipe{shared_p, 64, 128, 2},  Recipe{register_p, 8, 128, 3},
        Recipe{register_p, 16, 128, 3}, Recipe{register_p, 32, 64, 5}, Recipe{shared_p, 8, 64, 3, 2},
        Recipe{shared_p, 16, 64, 3, 2}, Recipe{shared_p, 8, 64, 2, 3}, Recipe{shared_p, 16, 64, 2, 3}};
  } else if constexpr (head_dim == 256) {
    return std::array{Recipe{plain, 64, 64, 2},      Recipe{shared_p, 8, 64, 2},
                      Recipe{shared_p, 16, 64, 2},   Recipe{shared_p, 32, 64, 3},
                      Recipe{register_p, 8, 64, 3},  Recipe{register_p, 16, 64, 3},
                      Recipe{shared_p, 8, 64, 1, 2}, Recipe{shared_p, 8, 64, 1, 3}};
  } else {
    static_assert(head_dim == 512);  // a block of keys and one of values are 128 KB
    return std::array{Recipe{shared_p, 16, 64, 1}, Recipe{shared_p, 32, 64, 1}};
  }
}

/// Two warpgroups for many rows. Those of 64 rows split the keys: stages are even in number. At head dim 128
/// blocks are small, so that each warpgroup has two on their way. Stages as above.
template <int head_dim>
constexpr auto paired_recipes() {
  using enum Algorithm;
  if constexpr (head_dim == 64) {
    return std::array{Recipe{paired, 64, 128, 4}, Recipe{paired, 128, 128, 4}};
  } else {
    static_assert(head_dim == 128);
    return std::array{Recipe{paired, 64, 64, 4}, Recipe{paired, 128, 128, 2}};
  }
}

/// Over keys that hold their values: 576 columns, of which 512 are the values.
constexpr std::array latent_recipes{Recipe{Algorithm::shared_p, 16, 64, 2},
                                    Recipe{Algorithm::shared_p, 32, 64, 2}};
inline constexpr int latent_dim = 576, latent_value_dim = 512;

template <std::size_t count>
constexpr auto latent_variants_of(const std::array<Recipe, count>& lines, bool two_part_keys) {
  std::array<DecodeVariant, 2 * count> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16})
    for (const Recipe& r : lines)
      all[i++] = {r.algorithm, operand,    latent_dim, r.query_rows,     r.block_n,
                  r.stages,    r.resident, false,      latent_value_dim, two_part_keys};
  return all;
}

template <bool two_part_keys>
constexpr auto latent_variants() {
  return latent_variants_of(latent_recipes, two_part_keys);
}

/// By two warpgroups, which share every block: with the queries shared memory has room for two.
constexpr auto paired_latent_variants() {
  constexpr std::array lines{Recipe{Algorithm::paired, 64, 64, 2}};
  std::array<DecodeVariant, 4 * lines.size()> all{};
  auto next = all.begin();
  for (const bool two_part_keys : {false, true})
    for (const DecodeVariant& v : latent_variants_of(lines, two_part_keys)) *next++ = v;
  return all;
}

/// Over a cache of 8 bits. Where there is much to read two blocks of a multiprocessor hide from one another
/// that a block's steps wait for each other; where there is little, fewer parts are merged.
template <int head_dim>
constexpr auto eight_bit_recipes() {
  using enum Algorithm;
  if constexpr (head_dim == 256) {
    return std::array{Recipe{eight_bit, 16, 64, 4}, Recipe{eight_bit, 16, 64, 3, 2},
                      Recipe{eight_bit, 32, 64, 4}};
  } else {
    return std::array{Recipe{eight_bit, 16, 128, 4}, Recipe{eight_bit, 16, 128, 3, 2},
                      Recipe{eight_bit, 32, 64, 5, 2}};
  }
}

/// All of those, with and without a scale for each token.
template <int head_dim, Element element, bool hadamard>
constexpr auto eight_bit_variants() {
  constexpr auto lines = eight_bit_recipes<head_dim>();
  std::array<DecodeVariant, 4 * lines.size()> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const bool token_scales : {false, true}) {
      for (const Recipe& r : lines) {
        all[i++] = {r.algorithm, operand,      head_dim, r.query_rows, r.block_n, r.stages,
                    r.resident,  token_scales, head_dim, false,        element,   hadamard};
      }
    }
  }
  return all;
}

/// Some recipes of one head dim, for both operand types.
template <std::size_t count>
constexpr auto variants_of(int head_dim, const std::array<Recipe, count>& lines) {
  std::array<DecodeVariant, 2 * count> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : lines) {
      all[i++] = {r.algorithm, operand, head_dim, r.query_rows, r.block_n, r.stages, r.resident};
    }
  }
  return all;
}

/// Everything of one warpgroup that is built for one head dim, narrow tiles first.
template <int head_dim>
constexpr auto variants() {
  return variants_of(head_dim, recipes<head_dim>());
}

/// Over queries that a list on the device says, or cu_seqlens. Wide tiles are narrow where a sequence has few
/// rows; the last line serves lists (plan.cpp), the others what all sequences of a call may have.
template <int head_dim>
constexpr auto listed_recipes() {
  using enum Algorithm;
  if constexpr (head_dim == 64) {
    return std::array{Recipe{shared_p, 8, 128, 3},     Recipe{shared_p, 16, 128, 3},
                      Recipe{shared_p, 32, 128, 3, 2}, Recipe{shared_p, 8, 128, 3, 2},
                      Recipe{shared_p, 8, 128, 2, 3},  Recipe{shared_p, 32, 128, 6}};
  } else if constexpr (head_dim == 128) {
    return std::array{Recipe{shared_p, 8, 128, 2},    Recipe{shared_p, 16, 128, 2},
                      Recipe{shared_p, 32, 64, 3, 2}, Recipe{shared_p, 8, 64, 3, 2},
                      Recipe{shared_p, 8, 64, 2, 3},  Recipe{shared_p, 32, 128, 3}};
  } else {
    static_assert(head_dim == 256);
    return std::array{Recipe{shared_p, 8, 64, 2}, Recipe{shared_p, 16, 64, 2}, Recipe{shared_p, 8, 64, 1, 2},
                      Recipe{shared_p, 8, 64, 1, 3}, Recipe{shared_p, 32, 64, 3}};
  }
}

template <int head_dim>
constexpr auto listed_variants() {
  constexpr auto lines = listed_recipes<head_dim>();
  std::array<DecodeVariant, 2 * lines.size()> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : lines) {
      all[i] = {r.algorithm, operand, head_dim, r.query_rows, r.block_n, r.stages, r.resident};
      all[i++].queries = Queries::listed;
    }
  }
  return all;
}

/// Over prefixes that sequences share. A tile's rows are queries of several, so it is wide; and those of one
/// sequence, behind its prefix, are few, so it has to be fast with few of them: one whose warpgroups split
/// the keys is, where it is built. Their parts are always merged apart.
template <int head_dim>
constexpr auto sharing_variants() {
  constexpr Recipe line = head_dim == 256 ? Recipe{Algorithm::shared_p, 32, 64, 3}
                                          : Recipe{Algorithm::paired, 64, 64, head_dim == 64 ? 6 : 4};
  std::array<DecodeVariant, 2> all = variants_of(head_dim, std::array{line});
  for (DecodeVariant& v : all) v.queries = Queries::sharing;
  return all;
}

/// Of the kernels of one warpgroup: AUTO takes shared_p always (plan.cpp), or eight_bit.
constexpr bool is_for_study(const DecodeVariant& variant) { return variant.algorithm != Algorithm::shared_p; }

/// The family of the step's kernels (launch/kernel.h).
struct Family {
  using Variant = DecodeVariant;
  using Arguments = DecodeArguments;
  static constexpr const char* name = "the decode kernel";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 1;

  template <typename Visit>
  static constexpr void for_each_group(Visit visit);
};

template <DecodeVariant V>
struct KernelBody;  // kernel.h

/// What the groups of the step's kernels have in common.
struct StepGroup {
  using Family = decode::Family;
  template <DecodeVariant V>
  using Body = KernelBody<V>;
};

template <int head_dim>
struct Group : StepGroup {
  static constexpr auto variants = launch::selected([] { return decode::variants<head_dim>(); },
                                                    [](const auto& v) { return !is_for_study(v); });
};

template <int head_dim>
struct StudyGroup : StepGroup {
  static constexpr auto variants = launch::selected([] { return decode::variants<head_dim>(); },
                                                    [](const auto& v) { return is_for_study(v); });
  static constexpr bool for_study = true;
};

template <int head_dim>
struct ListedGroup : StepGroup {
  static constexpr auto variants = listed_variants<head_dim>();
};

template <int head_dim>
struct SharingGroup : StepGroup {
  static constexpr auto variants = sharing_variants<head_dim>();
};

template <int head_dim>
struct PairedGroup : StepGroup {
  static constexpr auto variants = variants_of(head_dim, paired_recipes<head_dim>());
};

/// Over e4m3 kernels for a Hadamard matrix are others; those over int8 ask.
template <int head_dim>
struct EightBitGroup : StepGroup {
  static constexpr auto variants = eight_bit_variants<head_dim, Element::e4m3, false>();
};

template <int head_dim>
struct HadamardGroup : StepGroup {
  static constexpr auto variants = eight_bit_variants<head_dim, Element::e4m3, true>();
};

template <int head_dim>
struct Int8Group : StepGroup {
  static constexpr auto variants = eight_bit_variants<head_dim, Element::int8, true>();
};

template <int head_dim>
struct LatentGroup : StepGroup {
  static constexpr auto variants = latent_variants<false>();
  static_assert(head_dim == latent_dim);
};

template <int head_dim>
struct TwoPartGroup : StepGroup {
  static constexpr auto variants = latent_variants<true>();
  static_assert(head_dim == latent_dim);
};

template <int head_dim>
struct PairedLatentGroup : StepGroup {
  static constexpr auto variants = paired_latent_variants();
  static_assert(head_dim == latent_dim);
};

template <typename Visit>
constexpr void Family::for_each_group(Visit visit) {
  const auto all = [&visit]<int head_dim>() {
    visit.template operator()<Group<head_dim>>();
    visit.template operator()<ListedGroup<head_dim>>();
    visit.template operator()<SharingGroup<head_dim>>();
    if constexpr (head_dim <= 128) visit.template operator()<PairedGroup<head_dim>>();
    visit.template operator()<EightBitGroup<head_dim>>();
    visit.template operator()<HadamardGroup<head_dim>>();
    visit.template operator()<Int8Group<head_dim>>();
    visit.template operator()<StudyGroup<head_dim>>();
  };
  all.template operator()<64>();
  all.template operator()<128>();
  all.template operator()<256>();
  visit.template operator()<Group<512>>();
  visit.template operator()<LatentGroup<latent_dim>>();
  visit.template operator()<TwoPartGroup<latent_dim>>();
  visit.template operator()<PairedLatentGroup<latent_dim>>();
}

/// For each shape that large tiles have.
constexpr auto combine_variants() {
  using enum Queries;
  constexpr std::array shapes{std::tuple{64, 32, uniform},
                              std::tuple{128, 32, uniform},
                              std::tuple{128, 64, uniform},
                              std::tuple{256, 32, uniform},
                              std::tuple{latent_value_dim, 16, uniform},
                              std::tuple{latent_value_dim, 32, uniform},
                              std::tuple{latent_value_dim, 64, uniform},
                              std::tuple{64, 32, listed},
                              std::tuple{128, 32, listed},
                              std::tuple{256, 32, listed},
                              std::tuple{64, 64, uniform},
                              std::tuple{64, 128, uniform},
                              std::tuple{128, 128, uniform},
                              std::tuple{64, 64, sharing},
                              std::tuple{128, 64, sharing},
                              std::tuple{256, 32, sharing}};
  std::array<CombineVariant, 2 * shapes.size()> all{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16})
    for (const auto& [value_dim, query_rows, queries] : shapes)
      all[i++] = {operand, value_dim, query_rows, queries};
  return all;
}

struct CombineGroup;

/// That of the kernel that merges.
struct CombineFamily : launch::Groups<CombineGroup> {
  using Variant = CombineVariant;
  using Arguments = CombineArguments;
  static constexpr const char* name = "the kernel that merges a step's parts";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};

template <CombineVariant V>
struct CombineBody;  // kernel.h

struct CombineGroup {
  using Family = CombineFamily;
  static constexpr auto variants = combine_variants();
  template <CombineVariant V>
  using Body = CombineBody<V>;
};

struct PlanGroup;

/// That of the kernel that makes a plan.
struct PlanFamily : launch::Groups<PlanGroup> {
  using Variant = PlanVariant;
  using Arguments = PlanArguments;
  static constexpr const char* name = "the plan kernel";
  static constexpr bool starts_early = false;
  static constexpr int min_blocks = 0;
};

template <PlanVariant V>
struct PlanBody;  // kernel.h

struct PlanGroup {
  using Family = PlanFamily;
  static constexpr std::array variants{PlanVariant{}};
  template <PlanVariant V>
  using Body = PlanBody<V>;
};

struct PrefixListGroup;

/// That of the kernel that lists what sequences share.
struct PrefixListFamily : launch::Groups<PrefixListGroup> {
  using Variant = PrefixListVariant;
  using Arguments = PrefixListArguments;
  static constexpr const char* name = "the kernel that lists shared prefixes";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};

template <PrefixListVariant V>
struct PrefixListBody;  // kernel.h

struct PrefixListGroup {
  using Family = PrefixListFamily;
  static constexpr std::array variants{PrefixListVariant{}};
  template <PrefixListVariant V>
  using Body = PrefixListBody<V>;
};

struct ClearGroup;

/// That of the kernel that clears counters.
struct ClearFamily : launch::Groups<ClearGroup> {
  using Variant = ClearVariant;
  using Arguments = ClearArguments;
  static constexpr const char* name = "the kernel that clears counters";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};

template <ClearVariant V>
struct ClearBody;  // kernel.h

struct ClearGroup {
  using Family = ClearFamily;
  static constexpr std::array variants{ClearVariant{}};
  template <ClearVariant V>
  using Body = ClearBody<V>;
};

template <typename... Variants>
constexpr auto joined(const Variants&... lists) {
  std::array<DecodeVariant, (std::tuple_size_v<Variants> + ...)> all{};
  auto next = all.begin();
  ((next = std::copy(lists.begin(), lists.end(), next)), ...);
  return all;
}
/// Over caches of 8 bits, of all head dims.
template <Element element, bool hadamard>
constexpr auto all_eight_bit_variants() {
  return joined(eight_bit_variants<64, element, hadamard>(), eight_bit_variants<128, element, hadamard>(),
                eight_bit_variants<256, element, hadamard>());
}
constexpr auto all_variants() {
  return joined(variants<64>(), variants_of(64, paired_recipes<64>()), variants<128>(),
                variants_of(128, paired_recipes<128>()), variants<256>(), variants<512>(),
                listed_variants<64>(), listed_variants<128>(), listed_variants<256>(), sharing_variants<64>(),
                sharing_variants<128>(), sharing_variants<256>(),
                all_eight_bit_variants<Element::e4m3, false>(), all_eight_bit_variants<Element::e4m3, true>(),
                all_eight_bit_variants<Element::int8, true>(), latent_variants<false>(),
                latent_variants<true>(), paired_latent_variants());
}

}  // namespace tandem::decode
