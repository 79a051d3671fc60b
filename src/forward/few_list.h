// The list of sequences of few queries, which have no tiles of the forward's: decode's kernels serve them.
#pragma once

#include "core/listed_queries.h"
#include "forward/arguments.h"
#include "forward/sequence.h"
#include "forward/tile_order.h"
#include "tile/store_words.h"
#include "tile/warp_reduce.h"

namespace tandem::forward {

/// Writes what decode's kernels have to know of a sequence.
TANDEM_DEVICE void write_few(const FewArguments& few, int place, const Sequence& s) {
  std::int32_t* to = few.list + core::listed_header + std::int64_t{core::listed_sequence_words} * place;
  tile::store_words(to, s.k_len, s.q_len, s.k_batch, s.k_begin);
  tile::store_words(to + 4, s.q_batch, s.q_begin, 0, 0);
}

TANDEM_DEVICE bool is_few(const FewArguments& few, int queries) {
  return queries > 0 && queries <= few.most_queries;
}

/// Warp: how many of the sequences before this one are listed.
TANDEM_DEVICE int few_before(const VarlenArguments& varlen, const FewArguments& few, int sequence) {
  int before = 0;
  for (int i = static_cast<int>(hw::lane_index()); i < sequence; i += hw::warp_size) {
    const SequenceRows q = rows_of_sequence(varlen.cu_seqlens_q, i, varlen.q_rows, varlen.max_seqlen_q);
    before += is_few(few, q.span.length) ? 1 : 0;
  }
  return tile::warp_sum(before);
}

/// Warp: how many keys each of 32 sequences has, for kernels that find the rest for themselves.
TANDEM_DEVICE void write_lengths(const VarlenArguments& varlen, const CacheArguments& cache,
                                 std::int32_t* lengths, int first) {
  const int own = first + static_cast<int>(hw::lane_index());
  if (own >= varlen.sequences) return;
  const int keys = keys_of_sequence(varlen, cache, own).span.length;
  hw::store_global(reinterpret_cast<std::uint32_t*>(lengths + own), static_cast<std::uint32_t>(keys));
}

/// Warp number `warp` lists those of 32 sequences, in their order. The first clears the counters, says
/// for whom the list is, and how many blocks have a share where nobody runs beside; the last says how many
/// sequences there are.
TANDEM_DEVICE void list_few(const VarlenArguments& varlen, const CacheArguments& cache,
                            const FewArguments& few, int warp) {
  const int lane = static_cast<int>(hw::lane_index()), first = warp * hw::warp_size;
  const int sequences = varlen.sequences;
  if (warp == 0)
    for (int i = lane; i < few.counter_count; i += hw::warp_size) hw::store_global(few.counters + i, 0u);
  if (few.lengths != nullptr) return write_lengths(varlen, cache, few.lengths, first);
  auto* header = reinterpret_cast<std::uint32_t*>(few.list);
  if (warp == 0) {
    if (lane == 0) hw::store_global(header + 2, varlen.list_key);
    if (lane == 0 && few.share.multiprocessors == 0)
      hw::store_global(header + 1, static_cast<std::uint32_t>(few.step_blocks));
  }
  if (first >= sequences) return;
  Sequence s{};
  if (first + lane < sequences) s = read_sequence(varlen, cache, first + lane);
  const int own = is_few(few, s.q_len) ? 1 : 0;
  const int past = few_before(varlen, few, first) + tile::warp_scan_sum(own);
  if (own == 1) write_few(few, past - 1, s);
  if (first + hw::warp_size >= sequences && lane == hw::warp_size - 1)
    hw::store_global(header, static_cast<std::uint32_t>(past));
}

}  // namespace tandem::forward
