#include "cpu/varlen.h"

#include <cstring>

#include "core/dtype.h"

namespace tandem::cpu {
namespace {

using core::Tensor;

/// The rows of one entry.
Tensor rows_of(const Tensor& tensor, std::int64_t entry, const core::RowSpan& span) {
  Tensor rows = tensor;
  const std::int64_t elements = entry * tensor.stride[0] + span.begin * tensor.stride[1];
  if (tensor.data != nullptr)
    rows.data = static_cast<std::byte*>(tensor.data) +
                elements * static_cast<std::int64_t>(core::size_of(tensor.dtype));
  rows.shape[0] = 1;
  rows.shape[1] = span.length;
  return rows;
}

struct Rows {
  std::int64_t entry;
  core::RowSpan span;
};

Rows rows_of_sequence(const std::int32_t* cu_seqlens, std::int64_t index, std::int64_t rows,
                      std::int64_t most) {
  const auto total = static_cast<std::int32_t>(rows), bound = static_cast<std::int32_t>(most);
  if (cu_seqlens == nullptr) return {index, core::span_of(0, total, total, bound)};
  return {0, core::span_of(cu_seqlens[index], cu_seqlens[index + 1], total, bound)};
}

/// The first `length` tokens of the pages that a row of the page table names, one after another in `memory`;
/// zeros for pages that do not exist.
Tensor gather(const Tensor& pool, const std::int32_t* pages, std::int64_t length,
              std::vector<std::byte>& memory) {
  const auto element = static_cast<std::int64_t>(core::size_of(pool.dtype));
  const std::int64_t heads = pool.shape[2], d = pool.shape[3], page_size = pool.shape[1];
  memory.assign(static_cast<std::size_t>(length * heads * d * element), std::byte{});
  for (std::int64_t row = 0; row < length; ++row) {
    const std::int64_t page = pages[row / page_size];
    if (page < 0 || page >= pool.shape[0]) continue;
    for (std::int64_t h = 0; h < heads; ++h) {
      const std::int64_t from = page * pool.stride[0] + row % page_size * pool.stride[1] + h * pool.stride[2];
      std::memcpy(memory.data() + (row * heads + h) * d * element,
                  static_cast<const std::byte*>(pool.data) + from * element,
                  static_cast<std::size_t>(d * element));
    }
  }
  return {memory.data(), pool.dtype, {1, length, heads, d}, {0, heads * d, d, 1}};
}

}  // namespace

SequenceProblem::SequenceProblem(const core::ForwardProblem& whole, std::int64_t index) : problem_(whole) {
  const core::Varlen& varlen = whole.varlen;
  problem_.varlen = {};
  const Rows q = rows_of_sequence(varlen.cu_seqlens_q, index, whole.q.shape[1], varlen.max_seqlen_q);
  problem_.q = rows_of(whole.q, q.entry, q.span);
  problem_.o = rows_of(whole.o, q.entry, q.span);
  if (whole.lse.data != nullptr) problem_.lse = rows_of(whole.lse, q.entry, q.span);

  const bool paged = varlen.page_table != nullptr;
  const std::int64_t room = paged ? varlen.pages_per_sequence * whole.k.shape[1] : whole.k.shape[1];
  Rows k = rows_of_sequence(varlen.cu_seqlens_k, index, room, varlen.max_seqlen_k);
  if (varlen.seqused_k != nullptr) k.span.length = core::clamp(varlen.seqused_k[index], 0, k.span.length);
  if (!paged) {
    problem_.k = rows_of(whole.k, k.entry, k.span);
    problem_.v = rows_of(whole.v, k.entry, k.span);
    return;
  }
  const std::int32_t* pages = varlen.page_table + index * varlen.page_table_stride;
  problem_.k = gather(whole.k, pages, k.span.length, keys_);
  problem_.v = gather(whole.v, pages, k.span.length, values_);
}

}  // namespace tandem::cpu
