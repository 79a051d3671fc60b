// The kernel of a variant.
#pragma once

#include "backward/keys_kernel.h"
#include "backward/prepare.h"
#include "backward/queries_kernel.h"
#include "backward/roles_kernel.h"

namespace tandem::backward {

/// The kernel's shared memory.
template <BackwardVariant V>
struct SharedOf {
  using Type = KeysShared<V>;
};
template <BackwardVariant V>
requires(V.kernel == Kernel::keys_in_roles) struct SharedOf<V> {
  using Type = RolesShared<V>;
};
template <BackwardVariant V>
requires(V.kernel == Kernel::queries) struct SharedOf<V> {
  using Type = QueriesShared<V>;
};

template <BackwardVariant V>
inline constexpr int shared_bytes_of = static_cast<int>(sizeof(typename SharedOf<V>::Type));

/// The body of the kernel with the products.
template <BackwardVariant V>
TANDEM_DEVICE void backward_kernel(const BackwardArguments& args) {
  if constexpr (V.kernel == Kernel::queries) {
    queries_kernel<V>(args);
  } else if constexpr (V.kernel == Kernel::keys_in_roles) {
    roles_kernel<V>(args);
  } else {
    keys_kernel<V>(args);
  }
}

}  // namespace tandem::backward
