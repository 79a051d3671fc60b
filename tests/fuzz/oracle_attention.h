// What tandem.h says of the attention of one sequence, in float64: its masks, sinks, slopes, trees and block
// lists.
#pragma once

#include <cstdint>
#include <functional>

#include "tests/fuzz/oracle_memory.h"

namespace tandem::fuzz {

/// A row of queries, keys or values, as what its elements stand for.
using ReadRow = std::function<Numbers(std::int64_t token, std::int64_t head)>;

/// One sequence: `group` heads of q have one of k and v.
struct Sequence {
  std::int64_t queries = 0, keys = 0, columns = 0, group = 1;
  std::int64_t head_dim = 0;  ///< of all that a score is a sum of
  ReadRow q, k, v;
  ReadRow qv;  ///< a part of the queries that meets the values, or empty: none
  float scale = 0, softcap = 0;
  const tandem_mask* mask = nullptr;
  const float *sinks = nullptr, *slopes = nullptr;                                     ///< of each head of q
  const std::uint64_t* tree = nullptr;                                                 ///< of each query
  std::function<bool(std::int64_t query, std::int64_t head, std::int64_t key)> lists;  ///< or empty: all
};

/// Entry b of tensors.
Sequence entry_of(const tandem_tensor& q, const tandem_tensor& k, const tandem_tensor& v, std::int64_t b);

/// The keys that the mask lets a query see, half-open; what a tree or a block list hides is among them.
struct Keys {
  std::int64_t begin, end;
};
Keys keys_of(const tandem_mask* mask, std::int64_t q_len, std::int64_t k_len, std::int64_t query);

/// The result of one query of one head.
struct Result {
  Numbers o;
  double lse;
  double score_reach, value_reach;  ///< the largest sum of magnitudes of a score, and of a value
};
Result attend(const Sequence& sequence, std::int64_t query, std::int64_t head);

}  // namespace tandem::fuzz
