// Decoding steps for tests: one plain description, printable, and the tensors that belong to it.
#pragma once

#include <algorithm>
#include <ostream>
#include <vector>

#include "core/decode_problem.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/host_tensor.h"
#include "tests/support/standard.h"

namespace tandem::test {

/// Everything that defines a step, its values included.
struct DecodeCase {
  tandem_dtype dtype = TANDEM_BF16;
  std::int64_t q_len = 1, q_heads = 1, kv_heads = 1, head_dim = 64, new_len = 0;
  /// 0: as queries and keys; else of values and outputs, which where they are fewer may be the keys' first.
  std::int64_t value_dim = 0;
  bool values_in_keys = false;
  std::vector<std::int32_t> lengths = {1};  ///< one a sequence; may be negative or above the capacity
  std::int64_t capacity = 64;               ///< of a sequence, at least new_len; a multiple of page_size
  std::int64_t page_size = 0;               ///< 0: contiguous
  bool batch_index = false;                 ///< sequences stand in another order in the cache, with gaps
  std::int64_t rotary_dim = 0;              ///< 0: no rotary embedding
  bool interleaved = false;
  tandem_dtype rotary_dtype = TANDEM_FP32;
  core::Mask mask = core::Mask::full();
  float scale = 0;  ///< 0: 1 / sqrt(head_dim)
  float softcap = 0;
  std::int64_t split_size = 0;
  tandem_decode_kernel kernel = TANDEM_DECODE_AUTO;
  int block_m = 0, block_n = 0;  ///< of the kernel that is asked for; 0: any
  bool lse = true;
  bool sinks = false;
  /// Scores fall with distance, by slopes of each head, or of each sequence and head.
  bool slopes = false, slopes_by_sequence = false;
  bool tree = false;  ///< of drafts
  bool qv = false;    ///< queries have a second part, which meets the values
  /// A cache of 8 bits, and its scales: of each token and head, or shared but where sequences or heads have
  /// their own; `scaled` false: none. `hadamard`: keys are kept times the matrix of the case's seed.
  struct EightBit {
    bool on = false, per_token = false, scaled = true, by_sequence = false, by_head = false;
    bool int8 = false, hadamard = false;

    tandem_dtype dtype() const { return int8 ? TANDEM_INT8 : TANDEM_E4M3; }
  } eight_bit = {};
  /// Group g's sequences, from prefix_sequences[g] to before prefix_sequences[g + 1], share as many of the
  /// first prefix_lengths[g] tokens as all of them have. Empty: none do.
  std::vector<std::int32_t> prefix_sequences = {}, prefix_lengths = {};
  Layout q = {}, cache = {}, added = {}, o = {}, lse_layout = {};
  std::uint64_t seed = 1;
  bool nearly_normal = false;  ///< elements are NormalNumbers, which cost less: for the software Hopper

  std::int64_t value_columns() const { return value_dim > 0 ? value_dim : head_dim; }
  tandem_dtype cache_dtype() const { return eight_bit.on ? eight_bit.dtype() : dtype; }
  std::int64_t batch() const { return static_cast<std::int64_t>(lengths.size()); }
  /// Tokens in the cache before the step, brought within its capacity.
  std::int64_t length(std::int64_t b) const;
  /// Calls visit(sequence, first sequence of its group, tokens that the group shares), in order.
  template <typename Visit>
  void for_each_sharing(const Visit& visit) const {
    for (std::size_t g = 0; g < prefix_lengths.size(); ++g) {
      std::int64_t shared = prefix_lengths[g];
      const std::int32_t begin = prefix_sequences[g], end = prefix_sequences[g + 1];
      for (std::int64_t b = begin; b < end; ++b) shared = std::min(shared, length(b));
      for (std::int64_t b = begin; b < end; ++b) visit(b, std::int64_t{begin}, shared);
    }
  }
};

std::ostream& operator<<(std::ostream& out, const DecodeCase& c);

/// Shapes, lengths, masks and options that every backend of the dtype can take, values and layouts included:
/// strides that TMA takes, page sizes that are powers of two.
DecodeCase random_decode_case(std::uint64_t seed, tandem_dtype dtype, std::int64_t head_dim);

/// Adds one or more of chunks, slopes and a tree.
void draw_chunks_slopes_and_tree(DecodeCase& c, Random& random);

/// Makes the cache one of 8 bits, with any scales, and a Hadamard matrix or none.
void draw_eight_bit_cache(DecodeCase& c, Random& random);

/// Values of their own head dim, which a second part of the queries meets.
void give_second_part(DecodeCase& c, std::int64_t value_dim);

/// Makes values the first columns of the keys. What the step appends is not rotated then.
void put_values_into_keys(DecodeCase& c, std::int64_t value_dim);

/// What one sequence attends with: rows of head_dim (values: value_columns), keys and queries rotated; keys
/// as the cache's dtype holds them. With qv it stands behind queries, and values behind keys.
struct SequenceValues {
  std::int64_t keys;
  std::vector<double> q;     ///< q_len x q_heads rows
  std::vector<double> k, v;  ///< keys x kv_heads rows
};

/// Tensors of a case. Everything that a step may not read is poison: rows beyond a length, pages that nobody
/// has, and slots of the page table beyond a length, which hold wild numbers.
struct DecodeTensors {
  explicit DecodeTensors(const DecodeCase& c);

  /// As api::validate_decode would build it, over these tensors.
  core::DecodeProblem problem() const;
  /// Where token `position` of sequence `b` lies in the cache.
  struct Place {
    std::int64_t page, row;
  };
  Place place(std::int64_t b, std::int64_t position) const;

  /// What the step has to do with sequence `b`, by the words of tandem.h. To be asked before the step, or
  /// after.
  SequenceValues sequence(std::int64_t b) const;
  /// What is wrong with the cache after the step, whose state before was `before`: rows that were appended
  /// hold their tokens within a rounding, all other bytes are as they were. "" if nothing is.
  std::string cache_failure(const DecodeTensors& before) const;
  /// The scale of a token's key or value.
  double scale(const HostTensor& scales, std::int64_t b, const Place& at, std::int64_t head) const;

  DecodeCase setup;
  /// Where values are.
  const HostTensor& values() const { return setup.values_in_keys ? k_cache : v_cache; }
  const HostTensor& new_values() const { return setup.values_in_keys ? k_new : v_new; }

  HostTensor q, qv, k_cache, v_cache, k_new, v_new, o, lse, cos,
      sin;                      ///< values that lie in keys have no tensor
  HostTensor k_scale, v_scale;  ///< of an 8-bit cache; those of tokens that a step may not read are poison
  std::vector<std::int32_t> page_table, batch_index;
  std::vector<float> sinks;   ///< of each head, one without weight and one that outweighs all keys among them
  std::vector<float> slopes;  ///< rows of them stand further apart than heads
  std::vector<std::uint64_t> tree;
  std::int64_t page_table_stride = 0;
};

/// Multiplies a token's keys of all heads.
void multiply_key(DecodeTensors& t, std::int64_t b, std::int64_t token, double factor);
/// Multiplies all keys by `growth` to the number of their block: later ones are the larger, or the smaller.
void grow_keys(DecodeTensors& t, int block, double growth);

/// As for a ForwardCase, of a step that appends nothing and turns nothing: every score is q_value * k_value *
/// scale, values are 1 in the first half of each sequence's tokens, 0 in the other.
void make_scores_equal(DecodeTensors& t, float q_value, float k_value);

/// The arguments of the step as callers of the C interface say them, over these tensors; backend and plan are
/// left at their defaults.
struct DecodeArgs {
  explicit DecodeArgs(const DecodeTensors& tensors);
  DecodeArgs(const DecodeArgs&) = delete;

  tandem_cache cache;
  tandem_rotary rotary;
  tandem_mask mask;
  tandem_study study;
  tandem_cache_scales scales{};
  tandem_shared_prefixes prefixes{};
  tandem_decode_args args{};  ///< points to those above
};

/// What a step's output is granted beside the standard implementation's error.
Allowance allowance_of(const DecodeCase& c);
Allowance allowance_of_lse(const DecodeCase& c);

/// The same-precision standard implementation: queries rotated and rounded, then standard_forward.
ForwardValues standard_decode(const DecodeTensors& tensors);

/// The definition in float64, in loops that share nothing with a backend.
ForwardValues plain_decode(const DecodeTensors& tensors);

}  // namespace tandem::test
