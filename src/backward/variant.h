// Variants: what a kernel of the backward pass is specialised on, as a value.
#pragma once

#include "core/varlen.h"
#include "hw/types.h"

namespace tandem::backward {

using core::Lengths;

/// What a kernel computes of one tile, and in which order.
enum class Kernel {
  keys_serial,     ///< tiles of keys: dK, dV, and sums of dQ. Algorithm 3, products waited for as printed
  keys_pipelined,  ///< the same; S of a block of queries and dQ of another run beside a third's softmax
  keys_in_roles,   ///< a tile of keys of wide heads: one warpgroup computes dV, the other dK
  queries,         ///< a tile of queries: dQ, where no tile of keys adds it
};

/// The template argument of a kernel. Structural, so that values are types' arguments.
struct BackwardVariant {
  hw::Operand operand;
  int head_dim;  ///< smaller head dims run padded: TMA fills with zeros, the epilogue stores what exists
  bool softcap;
  Kernel kernel;
  int block_m;   ///< queries of a block, or of a tile
  int block_n;   ///< keys of a tile, or of a block
  int q_stages;  ///< stages of Q, where the loop visits queries
  int stages;    ///< stages of dO, or of K and V
  Lengths lengths = Lengths::uniform;

  static constexpr int consumers = 2;
  static constexpr int threads() { return (1 + consumers) * hw::warpgroup_size; }
  /// setmaxnreg's budgets: together what the launch allots.
  static constexpr int producer_registers = 24, consumer_registers = 240;

  constexpr bool is_varlen() const { return lengths == Lengths::varlen; }
  constexpr bool is_of_keys() const { return kernel != Kernel::queries; }
  /// Whether tiles add their parts of dQ to sums; then a block of the grid takes one tile after another. If
  /// not, a kernel of tiles of queries computes dQ.
  constexpr bool adds_dq() const { return kernel == Kernel::keys_serial || kernel == Kernel::keys_pipelined; }

  friend constexpr bool operator==(const BackwardVariant&, const BackwardVariant&) = default;
};

/// Threads of a block of the kernels below: a warpgroup, for 64 rows.
inline constexpr int small_threads = hw::warpgroup_size;

/// Of the kernels before and after the products.
struct RowsVariant {
  hw::Operand operand;
  int head_dim;  ///< of the products' variants
  Lengths lengths = Lengths::uniform;

  static constexpr int threads() { return small_threads; }
  friend constexpr bool operator==(const RowsVariant&, const RowsVariant&) = default;
};

/// The kernel that lists tiles where lengths vary has one: a block for each sequence.
struct ListVariant {
  static constexpr int threads() { return small_threads; }
  friend constexpr bool operator==(const ListVariant&, const ListVariant&) = default;
};

/// The kernel of the sinks' gradients has one: a block for each head, whose rows may be many.
struct SinksVariant {
  static constexpr int threads() { return 512; }
  friend constexpr bool operator==(const SinksVariant&, const SinksVariant&) = default;
};

/// The kernel that clears gradients has one.
struct ClearVariant {
  static constexpr int threads() { return small_threads; }
  friend constexpr bool operator==(const ClearVariant&, const ClearVariant&) = default;
};

}  // namespace tandem::backward
