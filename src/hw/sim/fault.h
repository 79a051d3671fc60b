// Faults: what a kernel did that the chip does not forgive.
#pragma once

#include <string>
#include <vector>

namespace tandem::hw::sim {

/// The rules of docs/simulator.md.
enum class Rule {
  use_before_wait,       ///< registers or bytes of unfinished asynchronous work were touched
  operand_overwritten,   ///< an operand was written that a WGMMA may still read
  wrong_phase,           ///< a barrier's phase ran past a thread that waited for it
  transaction_mismatch,  ///< bytes expected at a barrier are not the bytes that came
  missing_proxy_fence,
  missing_barrier_fence,
  missing_wgmma_fence,
  divergence,     ///< the lanes of a warp, or the warps of a warpgroup, did different things
  inactive_lane,  ///< a shuffle with a lane that has left
  register_pool,  ///< setmaxnreg asked for what the pool never has
  shared_race,
  global_race,
  early_access,  ///< global memory was touched while the grid before may still run
  uninitialised_shared,
  uninitialised_global,  ///< in a buffer that nobody has written before the launch
  shared_bounds,
  global_bounds,
  array_bounds,  ///< an index lies outside of its array: of registers, or of stages
  deadlock,
  bad_barrier,     ///< not initialised, too many arrivals, touched as memory
  bad_descriptor,  ///< of a matrix or a tensor
  bad_argument,    ///< of another verb
  unfinished       ///< the block ended with work in flight
};
/// The rule's name as docs/simulator.md spells it, for example "use-before-wait".
const char* name_of(Rule rule);

struct Fault {
  Rule rule;
  std::string text;                ///< rule, what happened, who, where, how to replay
  std::vector<std::string> lines;  ///< source lines of the thread that met it, innermost first: "file:line"
  std::string check;               ///< of the simulator, which noticed: "src/hw/sim/wgmma.cpp:56"
};

/// Source lines of a code address, innermost inlined function first; needs debug information and binutils.
std::vector<std::string> source_lines(const void* code);

}  // namespace tandem::hw::sim
