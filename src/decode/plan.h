// From a problem to a variant and its arguments. Plain C++, the same for the chip and the simulator.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/decode_problem.h"
#include "core/hopper.h"
#include "core/status.h"
#include "decode/arguments.h"
#include "decode/table.h"
#include "launch/record.h"

namespace tandem::decode {

/// Blocks that workspaces and plans have room for: three of each multiprocessor.
inline constexpr int max_blocks = 3 * core::hopper_sm_count;

/// The variant that serves the problem, or nullptr if none is built for it.
const DecodeVariant* choose_variant(const core::DecodeProblem& problem);

/// Microseconds of the step by the cost model (cost.h), with the shares that it would have on an H200.
double estimated_us(const core::DecodeProblem& problem, const DecodeVariant& variant);

/// Query rows of a key/value head.
std::int64_t rows_of(const core::DecodeProblem& problem);
/// Units of all sequences at their longest (core/stream_k.h), and positions with what streams cost besides:
/// `overhead_of` of each, in units; of fixed splits, which all cost as much, nothing.
std::int64_t most_units(const core::DecodeProblem& problem, const DecodeVariant& variant);
std::int64_t most_positions(const core::DecodeProblem& problem, const DecodeVariant& variant);
int overhead_of(const core::DecodeProblem& problem, const DecodeVariant& variant);
/// Whether those positions fit what counts them.
bool can_count_positions(const core::DecodeProblem& problem, const DecodeVariant& variant);

/// Streams of each sequence: row tiles of all key/value heads.
std::int64_t streams_of(const core::DecodeProblem& problem, const DecodeVariant& variant);

/// How a grid is made up of teams (work.h).
struct TeamShape {
  int team_blocks;  ///< blocks of a team
  int teams;        ///< 0 where there is nothing to do

  constexpr int blocks() const { return team_blocks * teams; }
};
struct GridShape {
  TeamShape usual, of_long_step;  ///< the same where there is nothing to gain

  constexpr bool differs() const { return of_long_step.team_blocks != usual.team_blocks; }
  constexpr int blocks() const { return std::max(usual.blocks(), of_long_step.blocks()); }
};
GridShape grid_shape(const core::DecodeProblem& problem, const DecodeVariant& variant, int sm_count);

/// Counters of a workspace, 0 between calls: a region of fixed size, so that calls of different shapes leave
/// one another's alone.
inline constexpr std::size_t counter_bytes = 4096;
inline constexpr int most_counters = max_blocks;
static_assert(counter_bytes >= most_counters * sizeof(std::uint32_t) &&
              ClearVariant::threads() >= most_counters);
/// Bytes that any grid needs: counters, then partial results.
std::size_t workspace_bytes(const core::DecodeProblem& problem, const DecodeVariant& variant);
inline constexpr std::size_t any_plan_bytes = plan_words(max_blocks) * sizeof(std::int32_t);

/// All arguments but the tensor maps.
DecodeArguments make_arguments(const core::DecodeProblem& problem, const DecodeVariant& variant,
                               const GridShape& grid, void* workspace);

/// The launch of the variant's kernel on `sm_count` multiprocessors.
launch::Record<Family> make_record(const core::DecodeProblem& problem, const DecodeVariant& variant,
                                   int sm_count, void* workspace);
/// That of the kernel that merges what the step leaves; no blocks where the step merges by itself.
launch::Record<CombineFamily> make_combine_record(const launch::Record<Family>& step);
/// That of the kernel that writes the plan of such launches.
launch::Record<PlanFamily> make_plan_record(const core::DecodeProblem& problem, const DecodeVariant& variant,
                                            int sm_count, void* plan);

/// Whether blocks count the parts of a stream: where it may go to several, and the last one merges.
bool counts_parts(const launch::Record<Family>& step);
/// That of the kernel that clears counters, where a workspace begins or elsewhere.
launch::Record<ClearFamily> make_clear_record(void* counters);

/// All memory that a launch may touch: that of the problem with its plan, and the workspace.
core::TensorList memory_of_step(const core::DecodeProblem& problem, void* workspace);
core::TensorList memory_of_clearing(void* workspace);
core::TensorList memory_of_planning(const core::DecodeProblem& problem, void* plan);

/// Keys of one TMA box.
int box_rows(const core::DecodeProblem& problem);

/// OK if a built variant serves the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of pointers is checked where they are not null.
core::Status supported(const core::DecodeProblem& problem);

/// Bytes of workspace, aligned to 256 and zeroed before its first use; every call leaves it ready for the
/// next, of any shape that fits. Needs no device.
std::size_t workspace_bytes(const core::DecodeProblem& problem);

/// Bytes of a plan, aligned to 4.
std::size_t plan_bytes(const core::DecodeProblem& problem);

}  // namespace tandem::decode
