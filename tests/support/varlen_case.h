// Problems of variable lengths for tests: one printable description, and the tensors that belong to it.
#pragma once

#include <cstdint>
#include <ostream>
#include <vector>

#include "core/problem.h"
#include "tests/support/host_tensor.h"
#include "tests/support/standard.h"

namespace tandem::test {

/// How keys and values lie in memory.
enum class KeyLayout {
  packed,   ///< cu_seqlens_k: one sequence behind the other
  entries,  ///< an entry for each sequence, of which seqused_k are in use
  paged     ///< a pool of pages, and seqused_k
};

struct VarlenCase {
  tandem_dtype dtype = TANDEM_BF16;
  std::vector<std::int64_t> q_lens, k_lens;  ///< of each sequence
  bool q_packed = true;                      ///< else an entry of the longest for each sequence
  KeyLayout keys = KeyLayout::packed;
  std::int64_t page_size = 16;
  std::int64_t q_heads = 1, kv_heads = 1, head_dim = 64;
  core::Mask mask = core::Mask::full();
  float softcap = 0;
  bool lse = true;
  bool sinks = false;
  std::uint64_t seed = 1;
};

std::ostream& operator<<(std::ostream& out, const VarlenCase& c);

/// A case with 1 to `most_sequences` sequences whose lengths lie around multiples of the blocks, all the rest
/// drawn too, but for dtype, head dim and softcap.
struct VarlenBlocks {
  int block_m, block_n;
  int most_sequences = 5;
};
VarlenCase draw_varlen_case(Random& random, const VarlenBlocks& blocks);

/// Tensors of a case. Rows that belong to no sequence hold NaN, in inputs and outputs.
struct VarlenTensors {
  explicit VarlenTensors(const VarlenCase& c);

  /// As api::validate would build it, over these tensors.
  core::ForwardProblem problem() const;

  VarlenCase setup;
  HostTensor q, k, v, o, lse;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k, seqused_k, page_table;
  std::int64_t pages_per_sequence = 0;
  std::vector<float> sinks;
};

/// The rows of all sequences, one after another: of o and lse as they are, and as they ought to be.
struct VarlenValues {
  ForwardValues result, standard, reference;
};
VarlenValues varlen_values(const VarlenTensors& tensors);

/// Whether the rows of o and lse that belong to no sequence still hold their poison.
bool others_untouched(const VarlenTensors& tensors);

}  // namespace tandem::test
