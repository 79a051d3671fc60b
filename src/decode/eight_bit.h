// Algorithm "eight_bit": shared_p over a cache of e4m3 or int8. Bytes come to shared memory as they are; each
// warp reads its part of a tile once with ldmatrix, makes fp16 of it, exactly, and multiplies from registers.
// Both products have the cache as their A operand, so that nothing else of them changes.
//
// Scales are not multiplied into the cache's elements, of which there are many, but into what is made of
// them: of keys into scores, of values into the output, or, where each token has its own, into its
// probabilities. Queries are divided by a power of two, each row by its own, so that bf16's range fits fp16.
// Where keys are kept times a Hadamard matrix, queries are multiplied by it as they are placed, and new keys
// before they are rounded.
#pragma once

#include "core/quantize_problem.h"
#include "decode/shared_p.h"
#include "tile/hadamard.h"
#include "tile/inverse.h"
#include "tile/rotary.h"
#include "tile/warp_reduce.h"

namespace tandem::decode {

/// Of a sequence's head, where tokens have none of their own.
TANDEM_DEVICE float scale_of(const core::TensorView& scales, const WorkTile& work) {
  if (scales.data == nullptr) return 1.f;
  return hw::load_global(scales.row<const float>(work.sequence, 0, work.head));
}

/// The largest magnitude of a row of which `lanes` neighbouring lanes have eight elements each.
template <int lanes>
TANDEM_DEVICE float largest_of_row(const float (&values)[8]) {
  float largest = 0.f;
  TANDEM_UNROLL
  for (const float x : values) largest = hw::max(largest, hw::max(x, -x));
  return tile::warp_max<lanes>(largest);
}

/// Warp: a chunk of a query row to shared memory, in fp16, divided by the row's power of two. Of each 16
/// columns those stand where a product looks for them whose keys' bytes a thread has: a word of four columns
/// becomes A's columns 2 * t + {0, 1} and 8 + 2 * t + {0, 1}, t being lane % 4.
template <DecodeVariant V>
TANDEM_DEVICE void place_permuted(Consumer<V>& consumer, int row, int column, const tile::Chunk& chunk) {
  constexpr int lanes = Consumer<V>::row_chunks;  // of a row
  float values[8];
  tile::unpack_chunk<V.operand>(values, chunk);
  if constexpr (V.hadamard) {
    const core::HadamardView& matrix = consumer.args.hadamard;
    if (matrix.on) tile::multiply_padded_by_hadamard(values, matrix, column, consumer.key_columns());
  }
  const float scale = core::scale_for(largest_of_row<lanes>(values));
  const float inverse = core::inverse_of(scale);
  std::uint32_t words[4];
  TANDEM_UNROLL
  for (int i = 0; i < 4; ++i)
    words[i] = hw::pack<hw::Operand::fp16>(values[2 * i] * inverse, values[2 * i + 1] * inverse);
  const int group = column / 16 * 16, first = column % 16 / 4;
  TANDEM_UNROLL
  for (int half = 0; half < 2; ++half) {
    tile::Chunk& to = consumer.shared.q.chunk(row, group + half * tile::chunk_columns);
    to.words[first] = words[half];
    to.words[first + 1] = words[2 + half];
  }
  if (column == 0) consumer.shared.own.query_scale[row] = scale;
}

/// Four elements of the cache.
template <Element element>
TANDEM_DEVICE std::uint32_t pack_elements(float x0, float x1, float x2, float x3) {
  if constexpr (element == Element::int8) {
    return hw::pack_int8(x0, x1, x2, x3);
  } else {
    return hw::pack_e4m3(x0, x1, x2, x3);
  }
}

/// As fp16, exactly, in the order that the digits of `order` name bytes in (hw::select_bytes).
template <Element element, std::uint32_t order>
TANDEM_DEVICE void unpack_elements(std::uint32_t (&pairs)[2], std::uint32_t word) {
  constexpr std::uint32_t as_they_are = 0x3210;
  if constexpr (element == Element::int8) {
    hw::unpack_int8<order>(pairs, word);
  } else if constexpr (order == as_they_are) {
    hw::unpack_e4m3(pairs, word);
  } else {
    hw::unpack_e4m3(pairs, hw::select_bytes<order>(word, 0));
  }
}

/// The scale of a row whose largest magnitude is `largest`, and its inverse.
template <Element element>
TANDEM_DEVICE float scale_found(float largest) {
  return element == Element::int8 ? core::int8_scale_for(largest) : core::scale_for(largest);
}
template <Element element>
TANDEM_DEVICE float inverse_of_found(float scale) {
  return element == Element::int8 ? tile::inverse_of_given(scale) : core::inverse_of(scale);
}

/// Eight elements of a new token's key or value, for a scale.
struct NewElements {
  std::uint32_t words[2];
  float scale;

  /// Warp: `given` 0: the row's own is found.
  template <Element element, int lanes>
  TANDEM_DEVICE static NewElements of(const float (&values)[8], float given) {
    NewElements made;
    const float found = scale_found<element>(largest_of_row<lanes>(values));
    made.scale = given == 0.f ? found : given;
    const float inverse = given == 0.f ? inverse_of_found<element>(found) : tile::inverse_of_given(given);
    TANDEM_UNROLL
    for (int i = 0; i < 2; ++i)
      made.words[i] = pack_elements<element>(values[4 * i] * inverse, values[4 * i + 1] * inverse,
                                             values[4 * i + 2] * inverse, values[4 * i + 3] * inverse);
    return made;
  }
};

/// Where eight columns of a row of a block lie.
template <DecodeVariant V>
TANDEM_DEVICE std::uint32_t* bytes_of(typename DecodeShared<V>::KeyBlock& block, int row, int column) {
  constexpr int tile_keys = DecodeShared<V>::tile_keys;
  return block.tile[row / tile_keys].chunk(row % tile_keys, column / 16 * tile::chunk_columns).words +
         column % 16 / 4;
}

/// Keys or values, as far as appending is concerned: what comes, where it goes, and its scales.
struct NewRows {
  const core::TensorView &from, &cache, &scales;
  core::RotaryView rotary;  ///< of values none
  bool are_keys;            ///< which may be multiplied by a Hadamard matrix
};

/// Eight columns of a new token's row to the cache, where the key's page exists.
template <DecodeVariant V>
TANDEM_DEVICE void store_new(const Consumer<V>& consumer, const WorkTile& work, const NewRows& rows, int key,
                             int column, const NewElements& elements) {
  const int page = consumer.page_of(work, key), row = consumer.row_of(key);
  if (page < 0 || page >= consumer.args.pages.pages) return;
  hw::store_kept(rows.cache.row<std::uint8_t>(page, row, work.head) + column, elements.words);
  if (V.token_scales && column == 0)
    hw::store_global(rows.scales.row<float>(page, row, work.head), elements.scale);
}

/// The rows of `block`, which begins at `key`, from the cache's end on: new tokens', rounded to 8 bits, and 0
/// behind them. visit(row, scale) for each new token's row.
template <DecodeVariant V, typename Visit>
TANDEM_DEVICE void quantise_block(const Consumer<V>& consumer, const WorkTile& work, int key,
                                  const NewRows& rows, typename DecodeShared<V>::KeyBlock& block,
                                  Visit visit) {
  constexpr int lanes = Consumer<V>::row_chunks;  // of a row
  const int first = key > work.length ? key : work.length, chunks = (key + V.block_n - first) * lanes;
  const float given = V.token_scales ? 0.f : scale_of(rows.scales, work);
  TANDEM_DONT_UNROLL
  for (int base = own_warp() * hw::warp_size; base < chunks; base += V.consumer_threads()) {
    const int i = base + static_cast<int>(hw::lane_index());
    const int own_key = first + i / lanes, column = i % lanes * tile::chunk_columns;
    const bool is_new = i < chunks && own_key < work.keys && column < consumer.key_columns();
    tile::Chunk chunk{};
    if (is_new)
      chunk = tile::load_rotated<V.operand>(
          rows.from.row<const std::uint16_t>(work.sequence, own_key - work.length, work.head), column,
          rows.rotary, own_key);
    hw::sync_warp();
    float values[8];
    tile::unpack_chunk<V.operand>(values, chunk);
    if constexpr (V.hadamard) {
      const core::HadamardView& matrix = consumer.args.hadamard;
      if (rows.are_keys && matrix.on)
        tile::multiply_padded_by_hadamard(values, matrix, column, consumer.key_columns());
    }
    const auto made = NewElements::of<V.element, lanes>(values, given);
    if (i < chunks) {
      std::uint32_t* to = bytes_of<V>(block, own_key - key, column);
      to[0] = made.words[0], to[1] = made.words[1];
    }
    if (is_new && column == 0) visit(own_key - key, made.scale);
    if (is_new && work.row_tile == 0 && own_key < work.end)
      store_new(consumer, work, rows, own_key, column, made);
    hw::sync_warp();
  }
}

/// As Consumer::replace_rows.
template <DecodeVariant V>
TANDEM_DEVICE void quantise_rows(Consumer<V>& consumer, const WorkTile& work, int key) {
  const DecodeArguments& args = consumer.args;
  auto& shared = consumer.shared;
  quantise_block(consumer, work, key, {args.k_new, args.k_cache, args.k_scale, args.rotary, true},
                 shared.k[consumer.k_at.stage], [&](int row, float scale) {
                   if constexpr (V.token_scales) consumer.shared.own.tokens.k[row] = scale;
                 });
  quantise_block(consumer, work, key, {args.v_new, args.v_cache, args.v_scale, {}, false}, consumer.values(),
                 [&](int row, float scale) {
                   if constexpr (V.token_scales) consumer.shared.own.tokens.v[row] = scale;
                 });
}

/// The scales of a thread's own token of each block, asked for a block ahead, and its page two.
template <DecodeVariant V>
class OwnTokens {
 public:
  TANDEM_DEVICE OwnTokens(const Consumer<V>& consumer, const WorkTile& work)
      : consumer_(consumer), work_(work) {
    page_ = look_up(work.begin);
    fetch(work.begin);
    page_ = look_up(work.begin + V.block_n);
  }

  /// Those of the block at `key` to shared memory. Tokens that the step appends write theirs themselves.
  TANDEM_DEVICE void publish(int key) {
    auto& tokens = consumer_.shared.own.tokens;
    const int token = static_cast<int>(hw::thread_index()), own = key + token;
    if (token < V.block_n && (own < work_.length || own >= work_.keys))
      tokens.k[token] = k_, tokens.v[token] = v_;
    fetch(key + V.block_n);
    page_ = look_up(key + 2 * V.block_n);
  }

 private:
  TANDEM_DEVICE bool exists(int key) const {
    const int token = static_cast<int>(hw::thread_index());
    return token < V.block_n && key + token < work_.length && key < work_.end;
  }
  TANDEM_DEVICE int look_up(int key) const {
    return exists(key) ? consumer_.page_of(work_, key + static_cast<int>(hw::thread_index())) : -1;
  }
  TANDEM_DEVICE void fetch(int key) {
    const DecodeArguments& args = consumer_.args;
    k_ = v_ = 1.f;
    if (!exists(key) || page_ < 0 || page_ >= args.pages.pages) return;
    const int row = consumer_.row_of(key + static_cast<int>(hw::thread_index()));
    k_ = hw::load_global(args.k_scale.row<const float>(page_, row, work_.head));
    v_ = hw::load_global(args.v_scale.row<const float>(page_, row, work_.head));
  }

  const Consumer<V>& consumer_;
  const WorkTile& work_;
  int page_;
  float k_, v_;
};

/// What the thread's rows of a block are multiplied by where tokens have scales of their own, and the power
/// of two that probabilities have been divided by so far, so that those times values' scales fit fp16.
template <DecodeVariant V>
struct RowScales {
  float k[2 * V.subtiles()], v[2 * V.subtiles()];

  /// All scales of the block are in shared memory. `unit` grows; returned is old / new.
  TANDEM_DEVICE float take(DecodeShared<V>& shared, float& unit) {
    const auto& tokens = shared.own.tokens;
    float largest = 0.f;
    TANDEM_UNROLL
    for (int i = 0; i < V.block_n / hw::warp_size; ++i)
      largest = hw::max(largest, tokens.v[i * hw::warp_size + static_cast<int>(hw::lane_index())]);
    largest = tile::warp_max(largest);
    const float last = unit;
    unit = hw::max(last, core::scale_for(largest));
    const float inverse = core::inverse_of(unit);
    TANDEM_UNROLL
    for (int i = 0; i < 2 * V.subtiles(); ++i) {
      const int row = i / 2 * 64 + upper_row_of_thread<V>() + i % 2 * 8;
      k[i] = tokens.k[row];
      v[i] = tokens.v[row] * inverse;
    }
    return last * inverse;
  }
};

/// O^T as the product with V^T from registers leaves it: of each 16 rows, row r + 8 * i is output column 2 *
/// r
/// + i, since ldmatrix has pairs of columns.
template <DecodeVariant V>
struct EightBitResult : TransposedResult<V> {
  template <typename Tile>
  TANDEM_DEVICE void round_to(Tile& tile) const {
    for_each_piece([&](int row, int column, float x, float y) {
      tile.chunk(row, column / tile::chunk_columns * tile::chunk_columns)
          .words[column % tile::chunk_columns / 2] = hw::pack<V.operand>(x, y);
    });
  }

  /// Warp: visit(row, column, x, y) for the thread's pairs of neighbouring elements of O.
  template <typename Visit>
  TANDEM_DEVICE void for_each_piece(Visit visit) const {
    const int lane = static_cast<int>(hw::lane_index());
    TANDEM_UNROLL
    for (int m = 0; m < V.head_dim / 64; ++m) {
      TANDEM_UNROLL
      for (int j = 0; j < V.query_rows / 2; j += 4) {
        TANDEM_UNROLL
        for (int c = 0; c < 2; ++c)
          visit(2 * j + 2 * (lane % 4) + c, 64 * m + 16 * own_warp() + lane / 4 * 2, this->output[m][j + c],
                this->output[m][j + 2 + c]);
      }
    }
  }
};

/// A fragments of four steps of a product: of the warp's 16 rows. Two of them take turns: one is made while
/// the product reads the other.
using Fragments = std::uint32_t[4][4];

/// K: of tile `tile`, from step `first` of 16 columns on.
template <DecodeVariant V>
TANDEM_DEVICE void load_keys(Consumer<V>& consumer, Fragments& a, int tile, int first) {
  auto& keys = consumer.shared.k[consumer.k_at.stage].tile[tile];
  const int lane = static_cast<int>(hw::lane_index());
  // Matrices: upper and lower rows of a chunk of 16 bytes, and of the next.
  const int row = 16 * own_warp() + lane % 16, word = lane / 16 * tile::chunk_columns;
  TANDEM_UNROLL
  for (int step = 0; step < 4; step += 2) {
    std::uint32_t bytes[4];
    hw::load_matrices(bytes, &keys.chunk(row, 8 * (first + step) + word));
    TANDEM_UNROLL
    for (int m = 0; m < 4; ++m) {
      std::uint32_t pairs[2];
      unpack_elements<V.element, 0x3210>(pairs, bytes[m]);
      a[step + m / 2][m % 2] = pairs[0];
      a[step + m / 2][2 + m % 2] = pairs[1];
    }
  }
}

/// V^T: of the warp's columns of the 64 from 64 * m on, for the keys of tile `tile`.
template <DecodeVariant V>
TANDEM_DEVICE void load_values(Consumer<V>& consumer, Fragments& a, int tile, int m) {
  auto& values = consumer.values().tile[tile];
  const int lane = static_cast<int>(hw::lane_index());
  TANDEM_UNROLL
  for (int step = 0; step < 4; step += 2) {
    // Matrices: eight keys each, of the warp's columns in pairs.
    std::uint32_t bytes[4];
    hw::load_matrices_transposed(bytes, &values.chunk(16 * step + lane, 32 * m + 8 * own_warp()));
    TANDEM_UNROLL
    for (int q = 0; q < 4; ++q) {  // two keys of an even column, and of the odd one beside it
      std::uint32_t pairs[2];
      unpack_elements<V.element, 0x3120>(pairs, bytes[q]);
      a[step + q / 2][2 * (q % 2)] = pairs[0];
      a[step + q / 2][2 * (q % 2) + 1] = pairs[1];
    }
  }
}

/// S^T = K Q^T of the block of keys that is full, which is free again after it.
template <DecodeVariant V>
TANDEM_DEVICE void multiply_keys(Consumer<V>& consumer, TransposedScores<V>& scores) {
  constexpr int parts = V.head_dim / 64;  // of a tile
  Fragments a[2];
  TANDEM_UNROLL
  for (int i = 0; i < V.subtiles() * parts; ++i) {
    const int tile = i / parts, first = i % parts * 4;
    load_keys(consumer, a[i % 2], tile, first);
    hw::wgmma_fence();
    TANDEM_UNROLL
    for (int step = 0; step < 4; ++step)
      hw::wgmma_rs<hw::Operand::fp16, V.query_rows, hw::Major::k>(
          scores[tile], a[i % 2][step], consumer.shared.q.k_major(first + step),
          first + step == 0 ? hw::Accumulate::overwrite : hw::Accumulate::add);
    hw::wgmma_commit();
    hw::wgmma_wait<1>();
  }
  hw::sync_warp();
  consumer.release_keys();
  hw::wgmma_wait<0>();
}

/// O^T += V^T P of the block of values that is full, which is free again after it.
template <DecodeVariant V>
TANDEM_DEVICE void multiply_values(Consumer<V>& consumer, EightBitResult<V>& result) {
  constexpr int parts = V.head_dim / 64;  // of a tile
  Fragments a[2];
  TANDEM_UNROLL
  for (int i = 0; i < V.subtiles() * parts; ++i) {
    const int tile = i / parts, m = i % parts;
    load_values(consumer, a[i % 2], tile, m);
    hw::wgmma_fence();
    TANDEM_UNROLL
    for (int step = 0; step < 4; ++step)
      hw::wgmma_rs<hw::Operand::fp16, V.query_rows, hw::Major::k>(
          result.output[m], a[i % 2][step], consumer.shared.own.p[tile].k_major(step), hw::Accumulate::add);
    hw::wgmma_commit();
    hw::wgmma_wait<1>();
  }
  hw::sync_warp();
  consumer.release_values();
  hw::wgmma_wait<0>();
}

/// Multiplies scores, or probabilities, by what belongs to their columns and rows.
template <DecodeVariant V>
TANDEM_DEVICE void multiply_columns(TransposedScores<V>& scores,
                                    const float (&factor)[own_columns<V.query_rows>]) {
  TANDEM_UNROLL
  for (auto& tile : scores) {
    TANDEM_UNROLL
    for (int j = 0; j < V.query_rows / 2; ++j) tile[j] *= factor[own_column(j)];
  }
}
template <DecodeVariant V>
TANDEM_DEVICE void multiply_rows(TransposedScores<V>& scores, const float (&factor)[2 * V.subtiles()]) {
  TANDEM_UNROLL
  for (int tile = 0; tile < V.subtiles(); ++tile) {
    TANDEM_UNROLL
    for (int j = 0; j < V.query_rows / 2; ++j) scores[tile][j] *= factor[2 * tile + j % 4 / 2];
  }
}

/// Of scores to probabilities in shared memory: both times their tokens' scales, where these have any.
template <DecodeVariant V>
TANDEM_DEVICE void publish_scaled(Consumer<V>& consumer, const WorkTile& work, int key,
                                  TransposedScores<V>& scores, EightBitResult<V>& result, float& unit) {
  RowScales<V> rows;
  if constexpr (V.token_scales) {
    sync_consumers<V>();
    result.scale_all(rows.take(consumer.shared, unit));
    multiply_rows<V>(scores, rows.k);
  }
  make_probabilities(consumer, work, key, scores, result);
  if constexpr (V.token_scales) multiply_rows<V>(scores, rows.v);
  publish_probabilities(consumer, scores);
}

template <DecodeVariant V>
TANDEM_DEVICE void attend_eight_bit(Consumer<V>& consumer, const WorkTile& work, EightBitResult<V>& result) {
  float by_column[result.own], unit = 0x1p-100f;
  const float k_scale = V.token_scales ? 1.f : scale_of(consumer.args.k_scale, work);
  if constexpr (!V.token_scales) unit = scale_of(consumer.args.v_scale, work);
  TANDEM_UNROLL
  for (int k = 0; k < result.own; ++k) by_column[k] = consumer.shared.own.query_scale[column_of(k)] * k_scale;

  const auto visit_block = [&](int key) {
    float scores[V.subtiles()][V.query_rows / 2];
    consumer.wait_keys(work, key);
    multiply_keys(consumer, scores);  // S = K[range(kv_start, kv_start+BN),:] @ Q'
    multiply_columns<V>(scores, by_column);
    publish_scaled(consumer, work, key, scores, result, unit);
    consumer.wait_values();
    multiply_values(consumer, result);  // O += (V[range(kv_start, kv_start+BN), :])' @ P
  };
  if constexpr (V.token_scales) {
    OwnTokens<V> tokens(consumer, work);
    for (int key = work.begin; key < work.end; key += V.block_n) {
      tokens.publish(key);
      visit_block(key);
    }
  } else {
    for (int key = work.begin; key < work.end; key += V.block_n) visit_block(key);
  }
  result.scale_all(unit);
}

}  // namespace tandem::decode
