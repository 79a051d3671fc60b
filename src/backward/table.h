// The table of all variants that are built, by head dim: a file of kernels for each.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "backward/arguments.h"
#include "backward/variant.h"
#include "launch/kernel.h"

namespace tandem::backward {

/// One line of the table, built for both operand types.
struct Recipe {
  Kernel kernel;
  bool softcap;
  int block_m, block_n, q_stages, stages;
};

/// Up to head dim 128 a tile of keys adds its parts of dQ. For wider heads, whose adds would be more than L2
/// takes, dQ has a kernel of its own. The serial order is for study.
template <int head_dim>
constexpr auto recipes() {
  using enum Kernel;
  if constexpr (head_dim <= 128) {
    constexpr int block_m = head_dim == 64 ? 128 : 64;
    return std::array{Recipe{keys_pipelined, false, block_m, 128, 2, 2},
                      Recipe{keys_pipelined, true, block_m, 128, 2, 2},
                      Recipe{keys_serial, false, block_m, 128, 2, 2}};
  } else {
    return std::array{Recipe{keys_in_roles, false, 64, 64, 2, 2}, Recipe{keys_in_roles, true, 64, 64, 2, 2},
                      Recipe{queries, false, 128, 64, 1, 2},
                      Recipe{queries, true, 128, head_dim == 256 ? 48 : 64, 1, 2}};
  }
}

/// What is compiled.
template <int head_dim, Lengths lengths = Lengths::uniform>
constexpr auto built() {
  constexpr auto lines = recipes<head_dim>();
  std::array<BackwardVariant, 2 * lines.size()> variants{};
  std::size_t i = 0;
  for (hw::Operand operand : {hw::Operand::bf16, hw::Operand::fp16}) {
    for (const Recipe& r : lines) {
      variants[i++] = {operand,   head_dim,   r.softcap, r.kernel, r.block_m,
                       r.block_n, r.q_stages, r.stages,  lengths};
    }
  }
  return variants;
}

constexpr bool is_for_study(const BackwardVariant& variant) { return variant.kernel == Kernel::keys_serial; }

/// The families of the backward's kernels (launch/kernel.h). Head dims between those of the groups run padded
/// to the next.
template <int head_dim>
struct Group;
template <int head_dim>
struct VarlenGroup;
template <int head_dim>
struct StudyGroup;

struct Family : launch::Groups<Group<64>, Group<96>, Group<128>, Group<192>, Group<256>, VarlenGroup<64>,
                               VarlenGroup<96>, VarlenGroup<128>, VarlenGroup<192>, VarlenGroup<256>,
                               StudyGroup<64>, StudyGroup<96>, StudyGroup<128>> {
  using Variant = BackwardVariant;
  using Arguments = BackwardArguments;
  static constexpr const char* name = "a kernel of the backward";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 1;
};

template <BackwardVariant V>
struct KernelBody;  // kernel.h, as the bodies below

template <int head_dim>
struct Group {
  using Family = backward::Family;
  static constexpr auto variants =
      launch::selected([] { return built<head_dim>(); }, [](const auto& v) { return !is_for_study(v); });
  template <BackwardVariant V>
  using Body = KernelBody<V>;
};

template <int head_dim>
struct VarlenGroup {
  using Family = backward::Family;
  static constexpr auto variants = launch::selected([] { return built<head_dim, Lengths::varlen>(); },
                                                    [](const auto& v) { return !is_for_study(v); });
  template <BackwardVariant V>
  using Body = KernelBody<V>;
};

template <int head_dim>
struct StudyGroup {
  using Family = backward::Family;
  static constexpr auto variants =
      launch::selected([] { return built<head_dim>(); }, [](const auto& v) { return is_for_study(v); });
  static constexpr bool for_study = true;
  template <BackwardVariant V>
  using Body = KernelBody<V>;
};

/// Both operand types of some head dims.
template <Lengths lengths, int... head_dims>
constexpr auto rows_of() {
  return std::array{RowsVariant{hw::Operand::bf16, head_dims, lengths}...,
                    RowsVariant{hw::Operand::fp16, head_dims, lengths}...};
}
constexpr auto prepare_variants() {
  constexpr auto uniform = rows_of<Lengths::uniform, 64, 96, 128, 192, 256>(),
                 varlen = rows_of<Lengths::varlen, 64, 96, 128, 192, 256>();
  std::array<RowsVariant, uniform.size() + varlen.size()> all{};
  std::copy(uniform.begin(), uniform.end(), all.begin());
  std::copy(varlen.begin(), varlen.end(), all.begin() + uniform.size());
  return all;
}

/// Ahead of all others where lengths vary.
struct ListGroup;
struct ListFamily : launch::Groups<ListGroup> {
  using Variant = ListVariant;
  using Arguments = ListArguments;
  static constexpr const char* name = "the kernel that lists the backward's tiles";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 1;
};
template <ListVariant V>
struct ListBody;
struct ListGroup {
  using Family = ListFamily;
  static constexpr std::array variants{ListVariant{}};
  template <ListVariant V>
  using Body = ListBody<V>;
};

/// Before the products.
struct PrepareGroup;
struct PrepareFamily : launch::Groups<PrepareGroup> {
  using Variant = RowsVariant;
  using Arguments = PrepareArguments;
  static constexpr const char* name = "the kernel before the backward";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};
template <RowsVariant V>
struct PrepareBody;
struct PrepareGroup {
  using Family = PrepareFamily;
  static constexpr auto variants = prepare_variants();
  template <RowsVariant V>
  using Body = PrepareBody<V>;
};

/// Behind the products, where groups are split.
struct CombineGroup;
struct CombineFamily : launch::Groups<CombineGroup> {
  using Variant = RowsVariant;
  using Arguments = CombineArguments;
  static constexpr const char* name = "the kernel that adds the gradients of splits";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};
template <RowsVariant V>
struct CombineBody;
struct CombineGroup {
  using Family = CombineFamily;
  static constexpr auto variants = rows_of<Lengths::uniform, 64, 96, 128, 192, 256>();
  template <RowsVariant V>
  using Body = CombineBody<V>;
};

/// Of sinks, where their gradients are wanted.
struct SinksGroup;
struct SinksFamily : launch::Groups<SinksGroup> {
  using Variant = SinksVariant;
  using Arguments = SinksArguments;
  static constexpr const char* name = "the kernel of the sinks' gradients";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};
template <SinksVariant V>
struct SinksBody;
struct SinksGroup {
  using Family = SinksFamily;
  static constexpr std::array variants{SinksVariant{}};
  template <SinksVariant V>
  using Body = SinksBody<V>;
};

/// Of rows that nobody sees.
struct ClearGroup;
struct ClearFamily : launch::Groups<ClearGroup> {
  using Variant = ClearVariant;
  using Arguments = ClearArguments;
  static constexpr const char* name = "the kernel that clears gradients";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};
template <ClearVariant V>
struct ClearBody;
struct ClearGroup {
  using Family = ClearFamily;
  static constexpr std::array variants{ClearVariant{}};
  template <ClearVariant V>
  using Body = ClearBody<V>;
};

}  // namespace tandem::backward
