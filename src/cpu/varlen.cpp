#include "cpu/varlen.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "core/dtype.h"
#include "cpu/element.h"
#include "cpu/parallel.h"
#include "cpu/sequence.h"

namespace tandem::cpu {
namespace {

using core::Tensor;

/// Rows of one entry.
struct Rows {
  std::int64_t entry;
  core::RowSpan span;
};

/// They as a tensor of their own.
Tensor take(const Tensor& tensor, const Rows& of) {
  Tensor rows = tensor;
  const std::int64_t elements = of.entry * tensor.stride[0] + of.span.begin * tensor.stride[1];
  if (tensor.data != nullptr)
    rows.data = static_cast<std::byte*>(tensor.data) +
                elements * static_cast<std::int64_t>(core::size_of(tensor.dtype));
  rows.shape[0] = 1;
  rows.shape[1] = of.span.length;
  return rows;
}

/// Lengths have 32 bits: rows beyond them are never in use.
std::int32_t within_lengths(std::int64_t rows) {
  return static_cast<std::int32_t>(std::min<std::int64_t>(rows, std::numeric_limits<std::int32_t>::max()));
}

Rows rows_of_sequence(const std::int32_t* cu_seqlens, std::int64_t index, std::int64_t rows,
                      std::int64_t most) {
  const std::int32_t total = within_lengths(rows), bound = within_lengths(most);
  if (cu_seqlens == nullptr) return {index, core::span_of(0, total, total, bound)};
  return {0, core::span_of(cu_seqlens[index], cu_seqlens[index + 1], total, bound)};
}

/// Of q and its like, which have so many rows.
Rows rows_of_queries(const core::Varlen& varlen, std::int64_t index, std::int64_t rows) {
  return rows_of_sequence(varlen.cu_seqlens_q, index, rows, varlen.max_seqlen_q);
}

/// Of k and its like where keys are neither paged nor padded: those in use.
Rows rows_of_keys(const core::Varlen& varlen, std::int64_t index, std::int64_t rows) {
  Rows keys = rows_of_sequence(varlen.cu_seqlens_k, index, rows, varlen.max_seqlen_k);
  if (varlen.seqused_k != nullptr)
    keys.span.length = core::clamp(varlen.seqused_k[index], 0, keys.span.length);
  return keys;
}

/// Rows of a sequence, one after another in `memory`; zeros for those whose page or entry does not exist.
Tensor gather(const Tensor& pool, const KeyPlaces& places, const core::RowSpan& rows, std::byte* memory) {
  const auto element = static_cast<std::int64_t>(core::size_of(pool.dtype));
  const std::int64_t heads = pool.shape[2], d = pool.shape[3];
  for (std::int64_t row = 0; row < rows.length; ++row) {
    const KeyPlace place = places[rows.begin + row];
    std::byte* const to = memory + row * heads * d * element;
    if (!exists(pool, place)) {
      std::fill_n(to, heads * d * element, std::byte{});
      continue;
    }
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t from =
          place.entry * pool.stride[0] + place.row * pool.stride[1] + h * pool.stride[2];
      std::memcpy(to + h * d * element, static_cast<const std::byte*>(pool.data) + from * element,
                  static_cast<std::size_t>(d * element));
    }
  }
  return {memory, pool.dtype, {1, rows.length, heads, d}, {0, heads * d, d, 1}};
}

/// Of so many rows of a tensor, one after another.
std::size_t bytes_of(const Tensor& tensor, std::int64_t rows, tandem_dtype dtype) {
  return static_cast<std::size_t>(rows * tensor.shape[2] * tensor.shape[3]) * core::size_of(dtype);
}

/// Of a cache, whose rows are of the pages or of the entry of a sequence.
core::CacheRows cache_rows_of(const core::ForwardProblem& whole, std::int64_t index) {
  const core::Varlen& varlen = whole.varlen;
  const bool paged = varlen.page_table != nullptr;
  const std::int32_t room =
      within_lengths(paged ? varlen.pages_per_sequence * whole.k.shape[1] : whole.k.shape[1]);
  const std::int64_t added = varlen.appends() ? varlen.k_new.shape[1] : 0;
  const Rows fresh = rows_of_sequence(varlen.cu_seqlens_k_new, index, added, added);
  return core::cache_rows(varlen.seqused_k != nullptr ? varlen.seqused_k[index] : room, fresh.span.length,
                          varlen.leftpad_k != nullptr ? varlen.leftpad_k[index] : 0, room);
}

KeyPlaces places_of(const core::ForwardProblem& whole, std::int64_t index) {
  const core::Varlen& varlen = whole.varlen;
  if (varlen.page_table != nullptr)
    return {varlen.page_table + index * varlen.page_table_stride, whole.k.shape[1], 0};
  return {nullptr, 0, varlen.batch_index != nullptr ? varlen.batch_index[index] : index};
}

/// Where keys are neither packed nor in an entry that exists, they are gathered.
bool gathers(const core::ForwardProblem& whole, const KeyPlaces& places) {
  return whole.varlen.page_table != nullptr || !exists(whole.k, {places.entry, 0});
}

core::RowSpan keys_in_cache(const core::ForwardProblem& whole, std::int64_t index) {
  return cache_rows_of(whole, index).keys(within_lengths(whole.varlen.max_seqlen_k));
}

tandem_dtype dtype_of_rotated(const Tensor& q, RotatedQueries rotated) {
  return rotated == RotatedQueries::in_fp32 ? TANDEM_FP32 : q.dtype;
}

}  // namespace

SequenceMemory::SequenceMemory(const core::ForwardProblem& whole, RotatedQueries rotated)
    : rotated_(rotated) {
  const core::Varlen& varlen = whole.varlen;
  std::int64_t most_queries = 0, most_gathered = 0;
  for (std::int64_t i = 0; i < varlen.sequences; ++i) {
    const bool packed = varlen.cu_seqlens_k != nullptr;
    const std::int64_t keys =
        packed ? rows_of_keys(varlen, i, whole.k.shape[1]).span.length : keys_in_cache(whole, i).length;
    most_keys_ = std::max(most_keys_, keys);
    if (!packed && gathers(whole, places_of(whole, i))) most_gathered = std::max(most_gathered, keys);
    if (varlen.rotates())
      most_queries =
          std::max<std::int64_t>(most_queries, rows_of_queries(varlen, i, whole.q.shape[1]).span.length);
  }
  queries_.resize(bytes_of(whole.q, most_queries, dtype_of_rotated(whole.q, rotated)));
  keys_.resize(bytes_of(whole.k, most_gathered, whole.k.dtype));
  values_.resize(bytes_of(whole.v, most_gathered, whole.v.dtype));
}

SequenceProblem::SequenceProblem(const core::ForwardProblem& whole, std::int64_t index,
                                 SequenceMemory& memory)
    : problem_(whole) {
  const core::Varlen& varlen = whole.varlen;
  problem_.varlen = {};
  problem_.slopes = whole.slopes.of_sequence(index);
  const Rows q = rows_of_queries(varlen, index, whole.q.shape[1]);
  if (q.span.length > 0) problem_.blocks = whole.blocks.of_sequence(index);  // else there may be no rows
  problem_.q = take(whole.q, q);
  problem_.o = take(whole.o, q);
  if (whole.tree != nullptr) problem_.tree = whole.tree + q.entry * whole.q.shape[1] + q.span.begin;
  if (whole.lse.data != nullptr) problem_.lse = take(whole.lse, q);
  find_keys(whole, index, memory);
  if (varlen.rotates()) rotate_queries(varlen.rotary, memory);
}

void SequenceProblem::find_keys(const core::ForwardProblem& whole, std::int64_t index,
                                SequenceMemory& memory) {
  const core::Varlen& varlen = whole.varlen;
  if (varlen.cu_seqlens_k != nullptr) {
    const Rows k = rows_of_keys(varlen, index, whole.k.shape[1]);
    problem_.k = take(whole.k, k);
    problem_.v = take(whole.v, k);
    return;
  }
  const core::RowSpan rows = keys_in_cache(whole, index);
  const KeyPlaces places = places_of(whole, index);
  first_position_ = rows.begin;
  if (gathers(whole, places)) {
    problem_.k = gather(whole.k, places, rows, memory.keys_.data());
    problem_.v = gather(whole.v, places, rows, memory.values_.data());
    return;
  }
  problem_.k = take(whole.k, {places.entry, rows});
  problem_.v = take(whole.v, {places.entry, rows});
}

void SequenceProblem::rotate_queries(const core::Rotary& rotary, SequenceMemory& memory) {
  const Tensor given = problem_.q;
  const std::int64_t d = given.shape[3], token = given.shape[2] * d;
  Tensor turned = given;
  turned.dtype = dtype_of_rotated(given, memory.rotated_);
  turned.data = memory.queries_.data();
  turned.stride[0] = 0, turned.stride[1] = token, turned.stride[2] = d;
  const std::int64_t first = first_position_ + problem_.k.shape[1] - given.shape[1];
  for_each_task(given.shape[1], [&](std::int64_t i, int) {
    std::array<double, most_columns> buffer;
    const std::span row(buffer.data(), static_cast<std::size_t>(d));
    for (std::int64_t h = 0; h < given.shape[2]; ++h) {
      load_rotated(given, {0, i, h}, rotary, first + i, row);
      for (std::int64_t e = 0; e < d; ++e) store(turned, 0, i, h, e, row[static_cast<std::size_t>(e)]);
    }
  });
  problem_.q = turned;
}

std::int64_t sequences_of(const core::BackwardProblem& p) { return p.varlen.given ? p.varlen.sequences : 1; }

core::BackwardProblem sequence_of(const core::BackwardProblem& whole, std::int64_t index) {
  core::BackwardProblem own = whole;
  own.dsinks = nullptr;
  if (!whole.varlen.given) return own;
  own.varlen = {};
  const Rows q = rows_of_queries(whole.varlen, index, whole.q.shape[1]);
  for (Tensor* tensor : {&own.q, &own.o, &own.lse, &own.dout, &own.dlse, &own.dq}) *tensor = take(*tensor, q);
  const Rows k = rows_of_keys(whole.varlen, index, whole.k.shape[1]);
  for (Tensor* tensor : {&own.k, &own.v, &own.dk, &own.dv}) *tensor = take(*tensor, k);
  return own;
}

void append(const core::ForwardProblem& p) {
  const core::Varlen& varlen = p.varlen;
  if (!varlen.appends()) return;
  const Appended appended{varlen.k_new, varlen.v_new, p.k, p.v, varlen.rotary};
  for (std::int64_t i = 0; i < varlen.sequences; ++i) {
    const std::int64_t most = varlen.k_new.shape[1];
    const Rows fresh = rows_of_sequence(varlen.cu_seqlens_k_new, i, most, most);
    const core::CacheRows rows = cache_rows_of(p, i);
    const KeyPlaces places = places_of(p, i);
    for (std::int64_t row = rows.before; row < rows.past; ++row)
      append_token(appended, fresh.entry, fresh.span.begin + row - rows.before, places[row], row);
  }
}

}  // namespace tandem::cpu
