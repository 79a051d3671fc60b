// Which variant serves a step, and what none does.
#include <algorithm>
#include <bit>
#include <limits>
#include <string>

#include "core/dtype.h"
#include "core/hopper.h"
#include "core/integers.h"
#include "decode/cost.h"
#include "decode/plan.h"
#include "hw/operand.h"
#include "hw/tensor_map.h"

namespace tandem::decode {
namespace {

using core::DecodeProblem;
using core::Status;

/// Option 0 is ahead where a step is short, and none is where it waits for memory (docs/decode.md).
tandem_decode_kernel resolve(const DecodeProblem& problem) {
  return problem.kernel == TANDEM_DECODE_AUTO ? TANDEM_DECODE_SHARED_P : problem.kernel;
}

/// What serves only where there is much to read, or streams are short; of wide tiles there are always two.
bool is_narrow_twin(const DecodeVariant& variant) { return !variant.is_alone() && variant.query_rows <= 16; }

/// Whether values have as many columns as keys; those that have fewer lie in the keys.
bool values_are_as_wide(const DecodeProblem& problem) { return problem.value_dim() == problem.head_dim(); }

/// Whether the cost model (cost.h) knows the step's kernels, and may choose by the batch.
bool has_prices(const DecodeProblem& problem) {
  return problem.kernel == TANDEM_DECODE_AUTO && problem.split_size == 0 && !problem.eight_bit() &&
         !problem.listed.given;
}

/// Without prices: the narrowest tile with room for all rows (they come first), or else the widest; at most
/// 32 rows where the step is not for study, since 64 would merge its fixed splits for too long.
bool is_better_by_rows(const DecodeProblem& problem, const DecodeVariant& variant,
                       const DecodeVariant* chosen) {
  const int most_rows = problem.kernel == TANDEM_DECODE_AUTO ? 32 : 64;
  if (is_narrow_twin(variant)) return false;
  return chosen == nullptr || (chosen->query_rows < rows_of(problem) &&
                               variant.query_rows > chosen->query_rows && variant.query_rows <= most_rows);
}

/// Whether an 8-bit step reads so much, or has so many short streams, that two blocks of a multiprocessor are
/// worth twice as many parts.
bool is_worth_two(const DecodeProblem& problem, const DecodeVariant& twin, const DecodeVariant* chosen) {
  constexpr std::int64_t fewest_units = 8 * core::hopper_sm_count;
  constexpr std::int64_t most_bytes = 512 * 1024;  // of a short stream's keys and values
  if (problem.kernel != TANDEM_DECODE_AUTO || !twin.eight_bit() || !is_narrow_twin(twin) ||
      chosen == nullptr || chosen->query_rows < rows_of(problem))
    return false;
  const bool has_short_streams = problem.split_size == 0 &&
                                 2 * problem.capacity() * problem.head_dim() <= most_bytes &&
                                 problem.batch() * streams_of(problem, *chosen) >= 2 * core::hopper_sm_count;
  return has_short_streams || most_units(problem, *chosen) > fewest_units;
}

Algorithm algorithm_of(const DecodeProblem& problem) {
  if (problem.eight_bit()) return Algorithm::eight_bit;
  const tandem_decode_kernel kernel = resolve(problem);
  if (kernel == TANDEM_DECODE_PLAIN) return Algorithm::plain;
  return kernel == TANDEM_DECODE_SHARED_P ? Algorithm::shared_p : Algorithm::register_p;
}

/// Whether the kernel is of the algorithm, or one that AUTO weighs beside it; and of what a call asks for.
bool is_asked_for(const DecodeProblem& problem, const DecodeVariant& variant) {
  return (variant.algorithm == algorithm_of(problem) || (variant.paired() && has_prices(problem)) ||
          variant.shares_prefixes()) &&
         (problem.block_m == 0 || problem.block_m == variant.query_rows) &&
         (problem.block_n == 0 || problem.block_n == variant.block_n);
}

/// Whether the kernel takes queries as they are said. Of a list, and of fixed splits, it has a multiprocessor
/// for itself: it reads fastest on a part of the chip, and all of these have the same bits.
bool knows_queries(const DecodeVariant& variant, const DecodeProblem& problem) {
  if (variant.lists_queries() != (problem.listed.given || problem.packed.given())) return false;
  if (variant.shares_prefixes() != problem.lists_prefixes) return false;
  if (problem.packed.given() && problem.split_size > 0) return variant.is_alone();
  return !problem.listed.given || problem.lists_prefixes || (variant.narrows_tiles() && variant.is_alone());
}

/// Whether the kernel knows the cache's elements and what belongs to them, of e4m3 no more than that.
bool knows_elements(const DecodeVariant& variant, const DecodeProblem& problem) {
  if (variant.token_scales != problem.scales.per_token) return false;
  if (problem.k_cache.dtype == TANDEM_INT8) return variant.element == Element::int8;
  return variant.element == Element::e4m3 && variant.hadamard == problem.scales.hadamard;
}

Status unsupported(const std::string& what, std::int64_t value, const std::string& allowed) {
  return {TANDEM_UNSUPPORTED,
          what + " is " + std::to_string(value) + "; the Hopper backend takes " + allowed};
}

Status check_tensors(const DecodeProblem& problem) {
  for (auto [name, tensor] : {std::pair{"q", &problem.q},
                              {"qv", &problem.qv},
                              {"cache.k", &problem.k_cache},
                              {"cache.v", &problem.v_cache},
                              {"k_new", &problem.k_new},
                              {"v_new", &problem.v_new},
                              {"o", &problem.o}}) {
    const bool added = tensor == &problem.k_new || tensor == &problem.v_new;
    if (added && problem.new_len() == 0) continue;
    if (Status s = hw::check_tensor(name, *tensor); !s.ok()) return s;
  }
  return hw::check_rotary("rotary", problem.rotary);
}

/// Values of another head dim have no place of their own in the kernels.
Status check_values(const DecodeProblem& problem) {
  if (problem.has_qv()) {
    const bool latent = problem.head_dim() == latent_dim - latent_value_dim &&
                        problem.value_dim() == latent_value_dim && !problem.eight_bit();
    if (latent) return {};
    return {
        TANDEM_UNSUPPORTED,
        std::string("qv is given, q.shape[3] (head dim) is ") + std::to_string(problem.head_dim()) +
            ", cache.v.shape[3] " + std::to_string(problem.value_dim()) + " and cache.k.dtype " +
            core::name_of(problem.k_cache.dtype) +
            "; with qv the Hopper backend takes head dim 64 with 512 columns of values, of bf16 and fp16"};
  }
  if (values_are_as_wide(problem) || problem.values_in_keys()) return {};
  return {TANDEM_UNSUPPORTED,
          "cache.v has head dim " + std::to_string(problem.value_dim()) + " and cache.k " +
              std::to_string(problem.head_dim()) +
              "; the Hopper backend takes fewer columns of values only where they are the first of the keys: "
              "cache.v has the address and strides of cache.k, and v_new those of k_new"};
}

/// What a call for study asks for besides.
std::string of_study(const DecodeProblem& problem) {
  std::string words;
  if (problem.block_m > 0) words += ", study.block_m " + std::to_string(problem.block_m);
  if (problem.block_n > 0) words += ", study.block_n " + std::to_string(problem.block_n);
  return words;
}

bool has_room(const DecodeVariant& variant, const DecodeProblem& problem) {
  return variant.head_dim >= problem.key_columns() && variant.value_dim >= problem.value_dim() &&
         variant.values_in_keys() != values_are_as_wide(problem) && variant.two_part_keys == problem.has_qv();
}

/// Whether the tile's ring does for the streams. Three blocks of a multiprocessor, or two of one stage,
/// hardly have one: they are for steps of which the prices know them, or where each multiprocessor has a
/// stream and none takes an only stage often. With one to two streams three blocks took up to 1.35 times as
/// long as two.
bool has_ring_for(const DecodeProblem& problem, const DecodeVariant& variant) {
  constexpr std::int64_t most_keys = 1024, sm_count = core::hopper_sm_count;
  const std::int64_t streams = problem.batch() * streams_of(problem, variant);
  const bool has_ring = variant.resident == 1 || (variant.resident == 2 && variant.stages > 1);
  if (has_ring || is_short(problem, variant) || has_short_parts(problem, variant)) return true;
  if (variant.resident == 3 && 10 * streams > 13 * sm_count && streams <= 2 * sm_count) return false;
  return streams > sm_count && (variant.stages > 1 || problem.capacity() <= most_keys);
}

/// Tiles that were measured, of which up to four have room for all rows, or for 64. Of one whose warpgroups
/// split the keys three quarters may be empty: that takes no longer.
bool may_serve(const DecodeProblem& problem, const DecodeVariant& variant) {
  if (!can_count_positions(problem, variant)) return false;
  if (problem.block_m > 0) return true;  // for study
  if (!has_ring_for(problem, variant)) return false;
  constexpr std::int64_t narrowest = 8, widest = 64;
  const std::int64_t rows = rows_of(problem);
  return 4 * variant.query_rows >= std::min(rows, widest) &&
         (variant.query_rows < (variant.splits_keys() ? 4 : 2) * rows || variant.query_rows == narrowest);
}

}  // namespace

const DecodeVariant* choose_variant(const DecodeProblem& problem) {
  static constexpr auto table = all_variants();
  if (problem.dtype() == TANDEM_FP32) return nullptr;
  const auto operand = hw::operand_of(problem.dtype());
  const DecodeVariant* chosen = nullptr;
  double least_us = 0;
  for (const DecodeVariant& variant : table) {
    if (!is_asked_for(problem, variant) || variant.operand != operand || !has_room(variant, problem) ||
        !knows_queries(variant, problem) || !knows_elements(variant, problem))
      continue;
    if (chosen != nullptr && variant.head_dim > chosen->head_dim)
      break;  // head dims ascend: it only pads more
    if (!has_prices(problem)) {
      if (is_better_by_rows(problem, variant, chosen) || is_worth_two(problem, variant, chosen))
        chosen = &variant;
    } else {
      constexpr double never = std::numeric_limits<double>::infinity();
      const double us = may_serve(problem, variant) ? estimated_us(problem, variant) : never;
      if (chosen == nullptr || us < least_us) chosen = &variant, least_us = us;
    }
  }
  return chosen;
}

Status supported(const DecodeProblem& problem) {
  if (Status s = check_values(problem); !s.ok()) return s;
  const DecodeVariant* variant = choose_variant(problem);
  if (variant == nullptr) {
    return {TANDEM_UNSUPPORTED,
            std::string("no Hopper decode kernel is built for dtype ") + core::name_of(problem.dtype()) +
                " with head dim " + std::to_string(problem.head_dim()) + of_study(problem) +
                "; built are bf16 and fp16 with head dims up to 512, and up to 576 for up to 512 "
                "columns of values that lie in the keys: pass such, or everything in host memory to "
                "TANDEM_BACKEND_CPU"};
  }
  if (const auto size = static_cast<std::uint64_t>(problem.page_size());
      problem.paged() && !std::has_single_bit(size)) {
    return unsupported("cache.k.shape[1] (page size)", problem.page_size(),
                       "powers of two: use " + std::to_string(std::bit_floor(size)) + " or " +
                           std::to_string(2 * std::bit_floor(size)));
  }
  if (problem.mask.chunk > 0)
    return unsupported("mask.chunk", problem.mask.chunk,
                       "no chunks in a decoding step: tandem_forward with varlen does");
  if (problem.slopes.given() || problem.tree != nullptr)
    return {TANDEM_UNSUPPORTED,
            std::string(problem.slopes.given() ? "alibi_slopes are" : "a tree is") +
                " given; the Hopper backend takes none in a decoding step: tandem_forward with varlen does"};
  constexpr std::int64_t longest = core::BasicMask<std::int32_t>::max_length;
  if (problem.capacity() > longest)
    return unsupported("the cache's capacity", problem.capacity(), "at most 2^28 keys of a sequence");
  if (!can_count_positions(problem, *variant))
    return unsupported(
        "batch * heads * (capacity in key blocks + " + std::to_string(overhead_of(problem, *variant)) + ")",
        most_positions(problem, *variant), "fewer than 2^30; split the batch");
  return check_tensors(problem);
}

}  // namespace tandem::decode
