#include "api/hopper_route.h"

#include <algorithm>

#include "api/message.h"
#include "core/hopper.h"
#include "core/remembered.h"
#include "decode/few_queries.h"
#include "decode/plan.h"
#include "forward/cost.h"
#include "forward/plan.h"
#include "forward/split.h"

namespace tandem::api {
namespace {

/// Of a step whose blocks count parts: the kernel that clears counters.
constexpr double clearing_us = 1.5;
/// Where a head has one tile of so many rows, parts of the keys are weighed against a step by so much: they
/// take longer than their price, and where it has several less (docs/performance/forward.md, Steps of several
/// tiles).
constexpr std::int64_t rows_of_tile = 128;
constexpr double lone_over_step = 1.25;
/// Where a call is that short, there is nothing to gain.
constexpr std::int64_t fewest_keys = 256;
/// Of a sequence. Of more, tiles fill the chip or the products are what counts.
constexpr std::int64_t most_queries = 1024;

/// Kernels have lengths, and positions as sums of them, in 32 bits.
core::Status check_lengths(const core::ForwardProblem& problem) {
  constexpr std::int64_t longest = core::BasicMask<std::int32_t>::max_length;
  const bool paged = problem.varlen.page_table != nullptr;
  const std::int64_t queries = problem.q.shape[1],
                     keys = problem.k.shape[1] * (paged ? problem.varlen.pages_per_sequence : 1);
  if (queries > longest)
    return unsupported("q.shape[1] (sequence length) is ", queries,
                       "; the Hopper backend takes at most 2^28 queries");
  if (keys > longest)
    return unsupported(
        paged ? "varlen.pages_per_sequence * k.shape[1] (page size)" : "k.shape[1] (sequence length)", " is ",
        keys, "; the Hopper backend takes at most 2^28 keys of a sequence");
  return {};
}

Route find_route(const core::ForwardProblem& problem) {
  Route route;
  route.one_kernel_us = forward::estimate_chosen(problem).us();
  double least = route.one_kernel_us;
  if (const forward::SplitChoice split = forward::choose_splits(problem); split.splits > 1) {
    route.splits = split.splits;
    route.parts_us = split.us;
    const bool lone_tile = problem.q_len() * problem.group() <= rows_of_tile;
    if (route.parts_us < least) {
      least = std::min(least, route.parts_us * (lone_tile ? lone_over_step : 1));
      route.way = Way::parts;
    }
  }
  if (const auto step = decode::step_of(problem)) {
    const decode::DecodeVariant& variant = *decode::choose_variant(*step);
    const bool clears = decode::counts_parts(
        decode::make_record(*step, variant, core::hopper_sm_count, /*workspace=*/nullptr));
    route.step_us = decode::estimated_us(*step, variant) + (clears ? clearing_us : 0);
    if (route.step_us < least) route.way = Way::step;
  }
  return route;
}

}  // namespace

core::Status forward_supported(const core::ForwardProblem& problem) {
  // First, since what follows multiplies them.
  if (core::Status s = check_lengths(problem); !s.ok()) return s;
  return forward::supported(problem);
}

Route route_of(const core::ForwardProblem& problem) {
  thread_local core::Remembered<forward::ShapeOfProblem, Route> known;
  if (problem.k_len() < fewest_keys || problem.q_len() > most_queries || problem.needs_list() ||
      problem.blocks.given())
    return {};
  return known.of(forward::ShapeOfProblem(problem), [&] { return find_route(problem); });
}

const char* name_of(Way way) {
  static constexpr const char* names[] = {"one kernel", "parts of the keys, merged", "a decoding step"};
  return names[static_cast<int>(way)];
}

}  // namespace tandem::api
