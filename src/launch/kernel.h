// Tables of compiled kernels, and how one is found: the same for the chip and the simulator.
//
// A family is all kernels that take the same arguments:
//   struct Family {
//     using Variant;    // what a kernel is specialised on: a structural type with == and threads()
//     using Arguments;  // what it is told at run time
//     static constexpr const char* name;   // for errors
//     static constexpr bool starts_early;  // may begin before the grid ahead has ended: it waits by itself
//     static constexpr int min_blocks;     // of a multiprocessor, for __launch_bounds__; 0: not said.
//                                          // A variant's `resident` goes first
//     static constexpr void for_each_group(visit);  // visit.operator()<Group>() for each; as Groups has it
//   };
// A group of it is compiled in one file, which the build makes for either machine (cmake/kernels.cmake):
//   struct Group {
//     using Family;
//     static constexpr std::array<Variant, n> variants;
//     template <Variant V>
//     using Body;  // shared_bytes, and run(arguments): what each thread does. Complete in kernel.h
//     static constexpr bool for_study;  // may be left out: true where AUTO takes none of these
//   };
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace tandem::launch {

/// What a family inherits that has these groups.
template <typename... Group>
struct Groups {
  template <typename Visit>
  static constexpr void for_each_group(Visit visit) {
    (visit.template operator()<Group>(), ...);
  }
};

/// Whether a group's kernels serve only where a call asks for them; libraries may lack them (chip_kernels.h).
template <typename Group>
inline constexpr bool is_for_study = requires {
  requires Group::for_study;
};

/// Of the array that make() makes those elements for which keep(element) holds.
template <typename Make, typename Keep>
constexpr auto selected(Make, Keep) {
  constexpr auto all = Make()();
  constexpr auto count = static_cast<std::size_t>(std::count_if(all.begin(), all.end(), Keep()));
  std::array<typename decltype(all)::value_type, count> kept{};
  std::copy_if(all.begin(), all.end(), kept.begin(), Keep());
  return kept;
}

/// Blocks of a multiprocessor that a kernel is compiled for, by its variant where that has a say.
template <typename Family>
constexpr int min_blocks(const typename Family::Variant& variant) {
  if constexpr (requires { variant.resident(); }) {
    return variant.resident();
  } else if constexpr (requires { variant.resident; }) {
    return variant.resident;
  } else {
    return Family::min_blocks;
  }
}

/// A compiled kernel. `Handle` is how a machine calls it.
template <typename Variant, typename Handle>
struct Kernel {
  Variant variant;
  int shared_bytes;
  Handle handle;
};

/// A group's kernels; handle_of.operator()<i>() is the handle of that of variants[i].
template <typename Group, typename Handle, typename HandleOf, std::size_t... i>
auto make_kernels(HandleOf handle_of, std::index_sequence<i...>) {
  using Variant = typename Group::Family::Variant;
  return std::array{Kernel<Variant, Handle>{Group::variants[i],
                                            Group::template Body<Group::variants[i]>::shared_bytes,
                                            handle_of.template operator()<i>()}...};
}

template <typename Group>
using Indices = std::make_index_sequence<Group::variants.size()>;

template <typename Family, typename Handle>
using Table = std::span<const Kernel<typename Family::Variant, Handle>>;

/// The kernel of a variant among those of a family, or nullptr; table_of.operator()<Group>() is the table of
/// a group.
template <typename Family, typename Handle, typename TableOf>
const Kernel<typename Family::Variant, Handle>* find_kernel(const typename Family::Variant& variant,
                                                            TableOf table_of) {
  const Kernel<typename Family::Variant, Handle>* found = nullptr;
  Family::for_each_group([&]<typename Group>() {
    for (const auto& kernel : table_of.template operator()<Group>())
      if (kernel.variant == variant) found = &kernel;
  });
  return found;
}

/// All that a family has.
template <typename Family>
std::vector<typename Family::Variant> variants_of() {
  std::vector<typename Family::Variant> all;
  Family::for_each_group([&all]<typename Group>() {
    for (const auto& variant : Group::variants) all.push_back(variant);
  });
  return all;
}

}  // namespace tandem::launch
