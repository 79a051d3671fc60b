// The family of the quantising kernels (launch/kernel.h): one group.
#pragma once

#include "launch/kernel.h"
#include "quantize/arguments.h"
#include "quantize/variant.h"

namespace tandem::quantize {

struct Group;

struct Family : launch::Groups<Group> {
  using Variant = QuantizeVariant;
  using Arguments = QuantizeArguments;
  static constexpr const char* name = "the quantising kernel";
  static constexpr bool starts_early = true;
  static constexpr int min_blocks = 0;
};

template <QuantizeVariant V>
struct KernelBody;  // kernel.h

struct Group {
  using Family = quantize::Family;
  static constexpr auto variants = all_variants();
  template <QuantizeVariant V>
  using Body = KernelBody<V>;
};

}  // namespace tandem::quantize
