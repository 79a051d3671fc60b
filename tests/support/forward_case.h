// Forward problems for tests: one plain description, printable, and the tensors that belong to it.
#pragma once

#include <ostream>

#include "core/dtype.h"
#include "core/problem.h"
#include "tests/support/block_list_case.h"
#include "tests/support/compare.h"
#include "tests/support/host_tensor.h"

namespace tandem::test {

/// Scales of one tensor of 8-bit inputs.
struct ScaleCase {
  bool each_batch = false;
  std::int64_t block = 0;  ///< tokens that share one; 0: all
  std::int64_t heads = 0;  ///< of the scales; 0: there are none at all
};

/// What a problem of 8-bit inputs has besides. Read where they are of 8 bits.
struct EightBitCase {
  tandem_dtype output = TANDEM_BF16;
  bool v_transposed = false;
  int v_terms = 1;      ///< two only where v is transposed
  float amplitude = 0;  ///< as callers say it: elements of q and k are normal numbers, which 8 bounds
  ScaleCase q = {}, k = {}, v = {};
  bool v_shift = false, q_dot_k_shift = false;  ///< the latter without a softcap; each batch and head its own
};

/// Everything that defines a problem, its values included.
struct ForwardCase {
  tandem_dtype dtype = TANDEM_BF16;  ///< of q and k; v's is v_dtype()
  std::int64_t batch = 1, q_len = 1, k_len = 1, q_heads = 1, kv_heads = 1, head_dim = 64;
  core::Mask mask = core::Mask::full();
  float scale = 0;  ///< 0: 1 / sqrt(head_dim)
  float softcap = 0;
  bool lse = true;
  tandem_overlap overlap = TANDEM_OVERLAP_AUTO;  ///< which kernel serves, on Hopper
  tandem_turn turn = TANDEM_TURN_AUTO;
  int block_m = 0, block_n = 0;  ///< of the kernel that is asked for; 0: any
  Layout q = {}, k = {}, v = {}, o = {}, lse_layout = {};
  std::uint64_t seed = 1;      ///< of the normally distributed values
  bool nearly_normal = false;  ///< these are NormalNumbers, which cost less: for the software Hopper
  EightBitCase eight_bit = {};
  std::int64_t value_dim = 0;  ///< of v and o, not of 8 bits; 0: head_dim
  BlockListCase blocks = {};

  std::int64_t value_columns() const { return value_dim > 0 ? value_dim : head_dim; }
  bool is_8_bit() const { return core::is_8_bit(dtype); }
  tandem_dtype v_dtype() const { return is_8_bit() ? TANDEM_E4M3 : dtype; }
  tandem_dtype o_dtype() const { return is_8_bit() ? eight_bit.output : dtype; }
};

std::ostream& operator<<(std::ostream& out, const ForwardCase& c);

/// Full, causal or a window, with limits around the lengths; often one that hides all keys from some queries.
core::Mask random_mask(Random& random, std::int64_t q_len, std::int64_t k_len);

/// What a problem of 8-bit inputs has besides, and layouts that TMA can take: of what kernels are built for.
void draw_eight_bit(ForwardCase& c, Random& random);

/// The mask as callers of the C interface say it.
tandem_mask to_c(const core::Mask& mask);

/// The arguments of a case as callers of the C interface say them, without its tensors.
struct ForwardArgs {
  explicit ForwardArgs(const ForwardCase& c);
  ForwardArgs(const ForwardArgs&) = delete;

  tandem_mask mask;
  tandem_study study;
  tandem_scales scales;            ///< without tensors
  tandem_block_list block_list{};  ///< without arrays
  tandem_forward_args args{};      ///< points to those above
};

/// A list as callers of the C interface say it.
tandem_block_list to_c(const core::BlockList& blocks);

/// The case's problem without memory, for what reads shapes only.
core::ForwardProblem shapes_of(const ForwardCase& c);

/// Tensors of a case: inputs filled, outputs poisoned.
struct ForwardTensors {
  explicit ForwardTensors(const ForwardCase& c);

  /// As api::validate would build it, over these tensors.
  core::ForwardProblem problem() const;

  ForwardCase setup;
  HostTensor q, k, v, o, lse;
  HostTensor q_scale, k_scale, v_scale;  ///< of 8-bit inputs
  HostTensor v_shift, q_dot_k_shift;     ///< the same
  BlockListArrays blocks;
};

/// What a problem's output is granted beside the standard implementation's error.
Allowance allowance_of(const ForwardCase& c);

/// Makes every score the same: q_value * k_value * scale. Values are 1 in the first half of the keys and 0 in
/// the other, so that o is 1/2 where all keys, an even number, are seen.
void make_scores_equal(ForwardTensors& t, float q_value, float k_value);
/// Makes NaN of the keys and values that no query of their heads has listed; returns how many keys.
std::int64_t spoil_unlisted(ForwardTensors& t);
/// Adds to every score the same offset, q_value * k_value * scale, by way of the first column.
void offset_scores(ForwardTensors& t, float q_value, float k_value);

}  // namespace tandem::test
