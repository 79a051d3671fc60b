// Steps with a plan that was made for other lengths. What they write is nobody's business, but they end, and
// stay in their tensors.
#include <cstdint>
#include <gtest/gtest.h>
#include <vector>

#include "decode/plan.h"
#include "tests/sim/decode_runs.h"

namespace tandem::test {
namespace {

/// A step over one key/value head, by the kernel that dispatch has for it.
struct PlannedStep {
  std::int64_t head_dim, group;

  DecodeCase of(std::vector<std::int32_t> lengths) const {
    DecodeCase c;
    c.head_dim = head_dim, c.kv_heads = 1, c.q_heads = group, c.capacity = 4096;
    c.lengths = std::move(lengths);
    return c;
  }
  std::vector<std::int32_t> plan_of(const DecodeCase& c, Workspace& workspace,
                                    const sim::Machine& machine) const {
    const DecodeTensors tensors(c);
    return test::plan_of(*decode::choose_variant(tensors.problem()), tensors, workspace, machine);
  }
};

constexpr PlannedStep steps[] = {{64, 1}, {64, 32}, {128, 4}, {128, 16}, {256, 8}, {512, 4}};

TEST(DecodeStalePlan, OfLongerSequencesEnds) {
  sim::Machine machine;
  machine.multiprocessors = 3;
  for (const PlannedStep& step : steps) {
    Workspace workspace;
    std::vector<std::int32_t> lengths(24, 100);
    lengths.back() = 2000;
    std::vector<std::int32_t> plan = step.plan_of(step.of(lengths), workspace, machine);
    lengths.back() = 1;
    const DecodeCase c = step.of(lengths);
    SCOPED_TRACE(testing::PrintToString(c));
    DecodeTensors tensors(c);
    run(*decode::choose_variant(tensors.problem()), tensors, workspace, machine, plan);
  }
}

// Counters go on from call to call, until one of them says that all parts are there.
TEST(DecodeStalePlan, OfShorterSequencesMergesNoPartsThatThereIsNoRoomFor) {
  sim::Machine machine;
  machine.multiprocessors = 3;
  for (const PlannedStep& step : steps) {
    Workspace workspace;
    std::vector<std::int32_t> plan = step.plan_of(step.of({100, 100, 100}), workspace, machine);
    const DecodeCase c = step.of({4000, 100, 100});
    SCOPED_TRACE(testing::PrintToString(c));
    DecodeTensors tensors(c);
    for (int call = 0; call < 40; ++call)
      run(*decode::choose_variant(tensors.problem()), tensors, workspace, machine, plan);
  }
}

}  // namespace
}  // namespace tandem::test
