// Problems of variable lengths for tests: one printable description, and the tensors that belong to it.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "core/problem.h"
#include "tests/support/block_list_case.h"
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
  /// Scores fall with distance, by slopes of each head, or of each sequence and head.
  bool slopes = false, slopes_by_sequence = false;
  std::int64_t value_dim = 0;  ///< of v and o; 0: head_dim
  bool tree = false;           ///< of drafts, where sequences have no more than 64 queries
  /// So many of each sequence's last keys are appended by the call; empty: nothing is. Keys are not packed
  /// then, and where new ones are not packed either, all sequences have as many.
  std::vector<std::int64_t> new_lens = {};
  bool new_packed = true;
  std::int64_t rotary_dim = 0;  ///< 0: no rotary embedding
  bool interleaved = false;
  bool rotary_of_dtype = false;  ///< the tables; else fp32
  /// Of them; 0: one fewer than there may be, so that the last position takes the nearest row.
  std::int64_t rotary_rows = 0;
  /// Of entries: rows before each sequence's first key, none where empty; and whether they stand in another
  /// order, with others between.
  std::vector<std::int64_t> padding = {};
  bool batch_index = false;
  std::int64_t split_size = 0;  ///< as in tandem_varlen
  BlockListCase blocks = {};    ///< of sequences, which are its entries
  std::uint64_t seed = 1;

  std::int64_t value_columns() const { return value_dim > 0 ? value_dim : head_dim; }
  bool appends() const { return !new_lens.empty(); }
  std::int64_t padding_of(std::size_t sequence) const { return padding.empty() ? 0 : padding[sequence]; }
  std::int64_t new_len(std::size_t sequence) const { return appends() ? new_lens[sequence] : 0; }
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

  /// The same of what every sequence has when all is appended and rotated, as the words of tandem.h say it,
  /// with nothing left to do but attention. Queries are rounded to the dtype, or, for the oracle, not.
  core::ForwardProblem attended(bool queries_rounded) const;
  /// What is wrong with the caches after the call: rows that were appended hold their tokens within a
  /// rounding, all other bytes are as they were. "" if nothing is.
  std::string cache_failure() const;

  VarlenCase setup;
  HostTensor q, k, v, o, lse, k_new, v_new, cos, sin;
  std::vector<std::int32_t> cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, cu_seqlens_new, leftpad,
      batch_index;
  std::int64_t pages_per_sequence = 0;
  std::vector<float> sinks, slopes;
  std::vector<std::uint64_t> tree;
  BlockListArrays blocks;

 private:
  HostTensor k_before_, v_before_;               ///< the caches before the call
  HostTensor k_after_, v_after_;                 ///< and as they ought to be behind it
  HostTensor rotated_q_, rounded_q_;             ///< fp32, and the dtype
  std::vector<std::int32_t> keys_, first_keys_;  ///< seqused_k and leftpad_k then

  void fill_keys(Random& random);
  void rotate_queries();
};

/// The rows of all sequences, one after another: of o and lse as they are, and as they ought to be.
struct VarlenValues {
  ForwardValues result, standard, reference;
};
VarlenValues varlen_values(const VarlenTensors& tensors);

/// Makes keys and values NaN that no query of their sequence and heads lists, but for appended ones; returns
/// how many. What `attended` has stays as it was.
std::int64_t spoil_unlisted(VarlenTensors& tensors);

/// Whether the rows of o and lse that belong to no sequence still hold their poison.
bool others_untouched(const VarlenTensors& tensors);

/// A batch of the usual kind: pages, causal, grouped heads.
VarlenCase paged_case(std::vector<std::int64_t> q_lens, std::vector<std::int64_t> k_lens);

}  // namespace tandem::test
