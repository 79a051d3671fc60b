#include "merge/plan.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "core/dtype.h"
#include "core/integers.h"
#include "hw/types.h"

namespace tandem::merge {
namespace {

using core::MergeProblem;
using core::Status;
using core::Tensor;

constexpr std::int64_t most_threads = std::numeric_limits<int>::max() - threads;

PartsView view_of(const Tensor& t, std::int64_t part_stride) {
  return {core::TensorView::of(t), part_stride};
}

/// log2 of the threads that have a row together: a chunk each, at most a warp.
int lanes_shift(const MergeProblem& problem) {
  const auto chunks = static_cast<std::uint64_t>(problem.head_dim() / chunk_columns);
  return std::bit_width(std::min<std::uint64_t>(chunks, hw::warp_size) - 1);
}

MergeArguments make_arguments(const MergeProblem& problem) {
  MergeArguments args{};
  args.o_parts = view_of(problem.o_parts, problem.o_part_stride);
  args.lse_parts = view_of(problem.lse_parts, problem.lse_part_stride);
  args.o = view_of(problem.o, 0);
  args.lse = view_of(problem.lse, 0);
  args.parts = static_cast<int>(problem.parts);
  args.rows = static_cast<int>(problem.rows());
  args.chunks = static_cast<int>(problem.head_dim() / chunk_columns);
  args.lanes_shift = lanes_shift(problem);
  args.heads = core::Divisor(static_cast<int>(std::max<std::int64_t>(1, problem.heads())));
  args.length = core::Divisor(static_cast<int>(std::max<std::int64_t>(1, problem.length())));
  return args;
}

/// Rows of 16-byte words: what an access of a chunk needs.
Status check_alignment(const char* name, const Tensor& tensor, std::int64_t part_stride) {
  const auto size = static_cast<std::int64_t>(core::size_of(tensor.dtype));
  const auto refuse = [&](const std::string& what, const std::string& value) {
    return Status{TANDEM_UNSUPPORTED,
                  what + " is " + value + "; the Hopper backend takes multiples of 16 bytes"};
  };
  for (int i = 0; i < 3; ++i)
    if (tensor.stride[i] * size % 16 != 0)
      return refuse(std::string(name) + ".stride[" + std::to_string(i) + "]",
                    std::to_string(tensor.stride[i]) + " elements of " + std::to_string(size) + " bytes");
  if (part_stride * size % 16 != 0)
    return refuse("o_part_stride",
                  std::to_string(part_stride) + " elements of " + std::to_string(size) + " bytes");
  if (const auto address = reinterpret_cast<std::uintptr_t>(tensor.data); address % 16 != 0)
    return refuse(std::string(name) + ".data", std::to_string(address));
  return {};
}

}  // namespace

Status supported(const MergeProblem& problem) {
  if (problem.parts > std::numeric_limits<int>::max() / 2)
    return {TANDEM_UNSUPPORTED,
            "parts is " + std::to_string(problem.parts) + "; the Hopper backend takes fewer than 2^30"};
  if (problem.rows() > most_threads >> lanes_shift(problem) || problem.head_dim() > most_threads)
    return {TANDEM_UNSUPPORTED, "o has " + std::to_string(problem.rows()) + " rows of " +
                                    std::to_string(problem.head_dim()) +
                                    " elements; the Hopper backend takes fewer than 2^31 threads' work, of "
                                    "8 elements each; merge in pieces"};
  if (Status s = check_alignment("o_parts", problem.o_parts, problem.parts > 1 ? problem.o_part_stride : 0);
      !s.ok())
    return s;
  return check_alignment("o", problem.o, 0);
}

launch::Record<Family> make_record(const MergeProblem& problem) {
  const MergeArguments args = make_arguments(problem);
  const std::int64_t all = std::int64_t{args.rows} << args.lanes_shift;
  const MergeVariant variant{problem.o_parts.dtype, problem.o.dtype};
  return {variant, static_cast<int>(core::ceil_div(all, threads)), args};
}

}  // namespace tandem::merge
