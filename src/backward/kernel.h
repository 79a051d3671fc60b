// The kernel of a variant.
#pragma once

#include "backward/keys_kernel.h"
#include "backward/prepare.h"
#include "backward/queries_kernel.h"
#include "backward/roles_kernel.h"
#include "backward/sinks.h"
#include "backward/table.h"

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

/// As launchers find it: the kernel with the products.
template <BackwardVariant V>
struct KernelBody {
  static constexpr int shared_bytes = sizeof(typename SharedOf<V>::Type);
  static TANDEM_DEVICE void run(const BackwardArguments& args) {
    if constexpr (V.kernel == Kernel::queries) {
      queries_kernel<V>(args);
    } else if constexpr (V.kernel == Kernel::keys_in_roles) {
      roles_kernel<V>(args);
    } else {
      keys_kernel<V>(args);
    }
  }
};

/// And those around it.
template <RowsVariant V>
struct PrepareBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const PrepareArguments& args) { prepare_kernel<V>(args); }
};
template <RowsVariant V>
struct CombineBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const CombineArguments& args) { combine_kernel<V.operand, V.head_dim>(args); }
};
template <SinksVariant V>
struct SinksBody {
  static constexpr int shared_bytes = sizeof(SinksShared);
  static TANDEM_DEVICE void run(const SinksArguments& args) { sinks_kernel(args); }
};
template <ListVariant V>
struct ListBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const ListArguments& args) { list_kernel(args); }
};
template <ClearVariant V>
struct ClearBody {
  static constexpr int shared_bytes = 0;
  static TANDEM_DEVICE void run(const ClearArguments& args) { clear_kernel(args); }
};

}  // namespace tandem::backward
