#include <cstdio>
#include <string>

#include "api/hopper_mixed.h"
#include "api/hopper_route.h"
#include "core/hopper.h"
#include "forward/cost.h"
#include "forward/plan.h"

namespace tandem::api {
namespace {

using core::ForwardProblem;
using core::Status;

std::string micros(double us) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f us", us);
  return text;
}

std::string line_of(const forward::Candidate& candidate, const forward::CostEstimate& cost) {
  const forward::ForwardVariant& v = candidate.variant;
  std::string dims = std::to_string(v.head_dim);
  if (v.has_narrow_values()) dims.append("/").append(std::to_string(v.value_dim));
  char text[200];
  std::snprintf(
      text, sizeof text,
      "d%s %s, tiles of %d x %d %s: %lld tiles of %.1f key blocks, %.2f rounds, products %s, memory %s",
      dims.c_str(), v.mask == forward::MaskKind::band ? "bands" : "prefixes", v.block_m, v.block_n,
      v.turn == forward::TurnPolicy::free ? "free" : "in turns", static_cast<long long>(cost.tiles),
      cost.key_blocks, cost.rounds, micros(cost.compute_us).c_str(), micros(cost.memory_us).c_str());
  return text;
}

std::string explanation(const ForwardProblem& problem) {
  const Route route = route_of(problem);
  const forward::Candidate* chosen = forward::choose_candidate(problem);
  std::string text = std::string("way: ") + name_of(route.way) + "\n";
  for (const auto& [way, us] : {std::pair{Way::one_kernel, route.one_kernel_us},
                                {Way::parts, route.parts_us},
                                {Way::step, route.step_us}})
    if (us > 0) text += std::string("  ") + name_of(way) + ": " + micros(us) + "\n";
  if (const auto few = few_queries_of(problem))
    text += "sequences of up to " + std::to_string(few->step.q_len()) + " queries: decode's body, tiles of " +
            std::to_string(few->variant->query_rows) + " rows" +
            (few->is_all() || few->step.listed.alone ? "; there are no others\n" : "\n");
  text += "kernels:\n";
  for (const forward::Candidate* candidate : forward::candidates_of(problem)) {
    text += candidate == chosen ? "* " : "  ";
    text += line_of(*candidate, forward::estimate(problem, candidate->variant, core::hopper_sm_count)) + "\n";
  }
  return text;
}

}  // namespace

Status explain(const ForwardProblem& given, std::string* words) {
  const ForwardProblem problem = forward::for_kernels(given);
  if (Status status = forward_supported(problem); !status.ok()) return status;
  *words = explanation(problem);
  return {};
}

}  // namespace tandem::api
