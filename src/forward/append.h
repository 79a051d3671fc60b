// What comes ahead of the forward where a call appends to caches or rotates: new keys, rotated, and values go
// to their places, and queries, rotated, to the workspace, where the forward reads them.
//
// All of it is bytes that are read and written once. A warp takes a piece of a token, so that a few tokens of
// many heads are many warps.
#pragma once

#include "forward/arguments.h"
#include "forward/few_list.h"
#include "forward/sequence.h"
#include "forward/tile_list.h"
#include "forward/variant.h"
#include "hw/hw.h"
#include "tile/rotary.h"
#include "tile/warp_reduce.h"

namespace tandem::forward {

/// A row of a tensor of variable lengths by its sequence.
struct SequenceRow {
  int sequence;  ///< none: it belongs to no sequence
  int row;       ///< of the sequence

  static constexpr int none = -1;
};

/// Warp: how many of the lanes' numbers, which ascend, are at most `row`.
TANDEM_DEVICE int count_begun(const std::int32_t* cu_seqlens, int first, int step, int past, int row) {
  const int own = first + static_cast<int>(hw::lane_index()) * step;
  return tile::warp_sum(own < past && hw::load_global(cu_seqlens + own) <= row ? 1 : 0);
}

/// Warp: whose the row of packed ones is, of the last sequence that begins at it or before. 32 numbers are
/// looked at at a time. Where they do not ascend it is one that has the row, or nobody's.
TANDEM_DEVICE SequenceRow find_row(const std::int32_t* cu_seqlens, int sequences, int row) {
  int first = 0, past = sequences, step = 1;
  while (step * static_cast<int>(hw::warp_size) < past) step *= hw::warp_size;
  for (; step > 0; step /= hw::warp_size) {
    const int begun = count_begun(cu_seqlens, first, step, past, row);
    if (begun == 0) return {SequenceRow::none, 0};
    first += (begun - 1) * step;
    past = first + step < past ? first + step : past;
  }
  const int begin = hw::load_global(cu_seqlens + first), end = hw::load_global(cu_seqlens + first + 1);
  const bool has_row = begin <= row && row < end;
  return {has_row ? first : SequenceRow::none, row - (begin < 0 ? 0 : begin)};
}

/// A token of a tensor, and which piece of it a warp has.
struct TokenPiece {
  int entry, row;  ///< of the tensor
  SequenceRow of;
  int first_chunk;
};

TANDEM_DEVICE TokenPiece piece_of(const TokenRows& tokens, const std::int32_t* cu_seqlens, int sequences,
                                  int warp) {
  const auto [token, piece] = tokens.pieces.divide(warp);
  const auto [entry, row] = tokens.length.divide(token);
  const SequenceRow of =
      cu_seqlens == nullptr ? SequenceRow{entry, row} : find_row(cu_seqlens, sequences, row);
  return {entry, row, of, piece * AppendVariant::piece_chunks()};
}

/// Calls act(head, column) for the lane's chunks of a piece of a token of so many heads.
template <typename Act>
TANDEM_DEVICE void for_each_chunk(const AppendArguments& args, int first_chunk, int heads, Act act) {
  TANDEM_UNROLL
  for (int i = 0; i < AppendVariant::lane_chunks; ++i) {
    const int chunk = first_chunk + i * hw::warp_size + static_cast<int>(hw::lane_index());
    const auto [head, own] = args.row_chunks.divide(chunk);
    if (head < heads) act(head, own * tile::chunk_columns);
  }
}

/// Warp: a piece of a query, rotated by the position of the key that it is aligned with.
template <AppendVariant V>
TANDEM_DEVICE void rotate_query(const AppendArguments& args, int warp) {
  const VarlenArguments& varlen = args.varlen;
  const TokenPiece piece = piece_of(args.queries, varlen.cu_seqlens_q, varlen.sequences, warp);
  if (piece.of.sequence == SequenceRow::none) return;
  const Sequence s = read_sequence(varlen, args.cache, piece.of.sequence);
  if (piece.of.row >= s.q_len) return;
  const int first_position = varlen.cu_seqlens_k == nullptr ? s.k_begin : 0;
  const int position = first_position + s.k_len - s.q_len + piece.of.row;
  for_each_chunk(args, piece.first_chunk, args.q_heads, [&](int head, int column) {
    const auto* from = args.q.row<std::uint16_t>(piece.entry, piece.row, head);
    auto* to = args.rotated_q.row<std::uint16_t>(piece.entry, piece.row, head);
    hw::store_global(static_cast<void*>(to + column),
                     tile::load_rotated<V.operand>(from, column, args.rotary, position).words);
  });
}

/// Where a row of a cache lies.
struct CachePlace {
  int entry, row;
};
TANDEM_DEVICE CachePlace place_of(const AppendArguments& args, int sequence, int position) {
  const VarlenArguments& varlen = args.varlen;
  if (varlen.page_table == nullptr) return {entry_of(args.cache, sequence), position};
  const int page = hw::load_global(varlen.page_table + sequence * varlen.page_table_stride +
                                   (position >> varlen.log2_page_size));
  return {page, position & ((1 << varlen.log2_page_size) - 1)};
}

/// Warp: a piece of a new token: its keys' heads, then its values'.
template <AppendVariant V>
TANDEM_DEVICE void append_token(const AppendArguments& args, int warp) {
  const TokenPiece piece = piece_of(args.added, args.cache.cu_seqlens_new, args.varlen.sequences, warp);
  if (piece.of.sequence == SequenceRow::none) return;
  const core::CacheRows rows = cache_rows_of(args.varlen, args.cache, piece.of.sequence);
  const int position = rows.before + piece.of.row;
  if (position >= rows.past) return;
  const CachePlace place = place_of(args, piece.of.sequence, position);
  if (place.entry < 0 || place.entry >= args.cache.entries) return;
  for_each_chunk(args, piece.first_chunk, 2 * args.kv_heads, [&](int head, int column) {
    const bool is_value = head >= args.kv_heads;
    const int own_head = is_value ? head - args.kv_heads : head;
    const core::TensorView &from = is_value ? args.v_new : args.k_new,
                           &to = is_value ? args.v_cache : args.k_cache;
    const auto* row = from.row<std::uint16_t>(piece.entry, piece.row, own_head);
    tile::Chunk chunk = tile::load_chunk(row + column);
    if (!is_value) chunk = tile::rotated_chunk<V.operand>(chunk, row, column, args.rotary, position);
    hw::store_global(static_cast<void*>(to.row<std::uint16_t>(place.entry, place.row, own_head) + column),
                     chunk.words);
  });
}

/// The body of the kernel.
template <AppendVariant V>
TANDEM_DEVICE void append_and_rotate(const AppendArguments& args) {
  hw::release_next_grid();
  hw::wait_for_prior_grid();
  const int warp = static_cast<int>(hw::block_index()) * V.warps() + static_cast<int>(hw::warp_index());
  if (warp < args.queries.warps) {
    rotate_query<V>(args, warp);
  } else if (warp < args.queries.warps + args.added.warps) {
    append_token<V>(args, warp - args.queries.warps);
  } else if (args.few.most_queries > 0) {
    list_few(args.varlen, args.cache, args.few, warp - args.queries.warps - args.added.warps);
  }
}

}  // namespace tandem::forward
