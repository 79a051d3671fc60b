// The merge kernels that are built: one for each dtype of the parts and of the output.
#pragma once

#include <array>
#include <cstddef>

#include <tandem/tandem.h>

#include "merge/arguments.h"

namespace tandem::merge {

struct MergeVariant {
  tandem_dtype in, out;

  static constexpr int threads() { return merge::threads; }
  friend constexpr bool operator==(const MergeVariant&, const MergeVariant&) = default;
};

constexpr auto all_variants() {
  constexpr std::array dtypes = {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32};
  std::array<MergeVariant, dtypes.size() * dtypes.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = {dtypes[i / dtypes.size()], dtypes[i % dtypes.size()]};
  return all;
}

}  // namespace tandem::merge
