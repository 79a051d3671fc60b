// Problems of the backward pass of variable lengths for tests: one printable description, the tensors that
// belong to it, and what their gradients have to be, from a problem of fixed lengths for each sequence.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "cpu/backward.h"
#include "tests/support/backward_case.h"
#include "tests/support/standard.h"

namespace tandem::test {

struct VarlenBackwardCase {
  /// What all sequences share. Layouts are of the whole tensors; batch and lengths are not read.
  BackwardCase each = {};
  /// Rows that each sequence has in the tensors. Where there are entries, all have the most of any.
  std::vector<std::int64_t> q_rows = {}, k_rows = {};
  bool q_packed = true, k_packed = true;
  /// seqused_k: maybe more than there are, or less than 0. Empty: not given.
  std::vector<std::int64_t> used = {};
  std::int64_t max_seqlen_q = 0, max_seqlen_k = 0;  ///< as callers give them; 0: not known
  std::int64_t q_before = 2, k_before = 3;          ///< rows before the first sequence, where packed

  std::int64_t sequences() const { return static_cast<std::int64_t>(q_rows.size()); }
  /// Those that count.
  std::int64_t q_len(std::size_t sequence) const;
  std::int64_t k_len(std::size_t sequence) const;
};

std::ostream& operator<<(std::ostream& out, const VarlenBackwardCase& c);

/// Everything drawn but the dtype: 1 to 6 sequences of up to `max_len` rows, some empty; packed or entries,
/// bounds below some lengths, keys that are not in use. `for_tma`: layouts that TMA can take.
VarlenBackwardCase random_varlen_backward_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t max_len,
                                               bool for_tma = false);

/// Tensors of a case: o and lse as the forward gives them in the case's dtype, outputs poisoned. Rows that
/// belong to no sequence, and keys that are not in use, hold NaN, and so do rows within the sequences that
/// the mask hides altogether.
struct VarlenBackwardTensors {
  explicit VarlenBackwardTensors(const VarlenBackwardCase& c);

  /// As api::validate_backward would build it, over these tensors.
  core::BackwardProblem problem() const;

  VarlenBackwardCase setup;
  std::vector<BackwardTensors> alone;  ///< each sequence as a call of its own, of the same values
  HostTensor q, k, v, o, lse, dout, dlse, dq, dk, dv;
  HostTensor sinks, dsinks;                                         ///< of heads, as the last dimension
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k, seqused_k;  ///< empty: not given

  /// The first row of a sequence, and its entry.
  struct Place {
    std::int64_t entry, row;
  };
  Place q_place(std::size_t sequence) const;
  Place k_place(std::size_t sequence) const;
};

/// What the gradients have to be: rows in use of all sequences, one after another.
struct VarlenBackwardExpected {
  explicit VarlenBackwardExpected(const VarlenBackwardTensors& tensors);

  cpu::ReferenceGradients reference;  ///< in float64; of sinks none: those are of o and lse as they are
  BackwardValues standard;
  std::vector<BackwardTensors::SinkGradient> dsinks;
  Allowance allowance;
};

/// What is wrong with the outputs, rows that nobody may write included; "" if nothing is.
std::string failure_of(const VarlenBackwardTensors& tensors, const VarlenBackwardExpected& expected);

/// Whether the rows from a place on are those of `alone`, to the bit.
bool has_rows(const HostTensor& whole, const VarlenBackwardTensors::Place& place, const HostTensor& alone);
/// The same of all gradients of a sequence: of those that `alone` got as a call of its own.
bool has_gradients(const VarlenBackwardTensors& whole, std::size_t sequence, const BackwardTensors& alone);

}  // namespace tandem::test
