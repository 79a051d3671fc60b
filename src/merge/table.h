// The family of the merge kernels (launch/kernel.h): one group.
#pragma once

#include "launch/kernel.h"
#include "merge/arguments.h"
#include "merge/variant.h"

namespace tandem::merge {

struct Group;

struct Family : launch::Groups<Group> {
  using Variant = MergeVariant;
  using Arguments = MergeArguments;
  static constexpr const char* name = "the merge kernel";
  static constexpr bool starts_early = false;
  static constexpr int min_blocks = 0;
};

template <MergeVariant V>
struct KernelBody;  // kernel.h

struct Group {
  using Family = merge::Family;
  static constexpr auto variants = all_variants();
  template <MergeVariant V>
  using Body = KernelBody<V>;
};

}  // namespace tandem::merge
