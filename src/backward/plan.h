// From a problem to variants and their arguments. Plain C++, the same for the chip and the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "backward/key_order.h"
#include "backward/steps.h"
#include "backward/table.h"
#include "core/backward_problem.h"
#include "core/hopper.h"
#include "core/status.h"
#include "core/tensor_list.h"

namespace tandem::backward {

/// The kernels that serve a problem.
struct Choice {
  BackwardVariant keys;
  BackwardVariant queries;  ///< as `keys`, and not run, where these add dQ
  bool found;
  /// Multiprocessors that the order of tiles which are taken is made for, and the ring with it. Blocks of any
  /// number take them: so the workspace does not depend on the device.
  int grid = core::hopper_sm_count;
  /// Of what the tiles of a head share. The order of tiles is made for it too.
  std::int64_t cached_bytes = core::hopper_cached_bytes;
  /// Of each group of query heads (group_splits.h), which they divide.
  int splits = 1;

  bool adds_dq() const { return keys.adds_dq(); }
};
Choice choose(const core::BackwardProblem& problem);
/// Those of a call in which the variant runs: for study and tests.
Choice choice_with(const BackwardVariant& variant);

/// Every variant that is built for these lengths, head dims ascending; those for study last.
const std::vector<BackwardVariant>& all_variants(Lengths lengths = Lengths::uniform);

/// The problem, of uniform lengths, without the first queries, which see no key, and the first keys, which
/// nobody sees; whatever they hold, it is not read. Their gradients are 0.
struct Cropped {
  core::BackwardProblem problem;
  std::int64_t unseeing_queries, unseen_keys;

  /// Whether there is nothing to multiply.
  bool empty() const { return problem.batch() == 0 || problem.q_len() == 0 || problem.k_len() == 0; }
};
Cropped crop(const core::BackwardProblem& problem);

/// The order of tiles of keys that add dQ, and the ring of their sums (ring.h); of no size where none do.
struct RingPlan {
  KeyOrder order;
  /// Key/value heads of all batch entries whose sums the ring holds: those whose tiles run at the same time,
  /// and a round of the grid more, so that few have to wait for a place. A head's place was that of one in an
  /// earlier section, all of whose tiles come before in the order.
  int heads = 0;
  std::int64_t parts = 0;  ///< of dQ
};
RingPlan ring_plan(const Cropped& cropped, const Choice& choice);

/// Whether sections of heads may overlap, where they pay (key_order.h).
bool may_overlap(const core::BackwardProblem& problem, const BackwardVariant& variant);

/// The parts of dK and dV that splits keep; of no size where groups are not split.
struct KeptPlan {
  std::int64_t splits = 0;    ///< of all groups and batch entries
  int key_blocks = 0;         ///< of 64 keys, of a head
  std::int64_t elements = 0;  ///< of dK, and as many of dV
};
KeptPlan kept_plan(const Cropped& cropped, const Choice& choice);
/// So many heads whose queries a tile takes in turn are few: L2 still has their blocks when the next tile of
/// the head comes (docs/performance/backward.md, Sections where heads are grouped).
inline constexpr int few_in_turn = 2;
/// Whether a tile of keys waits long for the one before of its head: where visits are shortest.
constexpr bool waits_long(const BackwardVariant& keys) { return keys.head_dim == 64; }

/// How many splits of each group make the products of keys the fastest, the sum over splits included, of
/// those that divide the group; by a model of how tiles fill the grid.
int splits_that_pay(const Cropped& cropped, const Choice& choice);

/// What lies where in the workspace, in bytes.
struct WorkspaceLayout {
  std::size_t lse_log2, delta;
  std::size_t dq_sums, counters;  ///< the ring's (ring.h): the next position, and a counter of each part
  std::size_t kept_dk, kept_dv;
  std::size_t unseeing_lse_log2, unseeing_delta;  ///< of queries that see no key; of no size without dsinks
  std::size_t end;
  int counter_count;  ///< 0: nobody adds
};
WorkspaceLayout workspace_layout(const Cropped& cropped, const RingPlan& ring, const KeptPlan& kept);
WorkspaceLayout layout_of(const core::BackwardProblem& problem, const Choice& choice);

/// The kernels of one call of uniform lengths (varlen_plan.h has the others), in a workspace of so many bytes
/// as the layout says, aligned to 256.
class Call {
 public:
  Call(const core::BackwardProblem& problem, const Choice& choice, int sm_count, void* workspace);

  /// run(step) for each, one after another, until a result is not ok(); the last result.
  template <typename Result, typename Run>
  Result for_each_step(Run run) const {
    StepsInTurn<Result, Run> steps{run};
    if (!cropped_.empty()) {
      steps.next(prepare());
      steps.next(products(choice_.keys));
      if (!choice_.adds_dq()) steps.next(products(choice_.queries));
      if (choice_.splits > 1) steps.next(combine());
    }
    if (whole_.dsinks != nullptr) {
      steps.next(prepare_unseeing());
      steps.next(sinks());
    }
    steps.next(clear("dq", whole_.dq, cropped_.unseeing_queries));
    steps.next(clear("dk", whole_.dk, cropped_.unseen_keys));
    steps.next(clear("dv", whole_.dv, cropped_.unseen_keys));
    return steps.result;
  }

 private:
  Step<PrepareFamily> prepare_rows(const core::BackwardProblem& problem, const Statistics& statistics,
                                   int counter_count) const;
  Step<PrepareFamily> prepare() const;
  /// The same of the queries that see no key, which matter to sinks.
  Step<PrepareFamily> prepare_unseeing() const;
  Step<SinksFamily> sinks() const;
  Step<Family> products(const BackwardVariant& variant) const;
  /// What splits kept becomes dK and dV.
  Step<CombineFamily> combine() const;
  GradientOutput dk() const;
  GradientOutput dv() const;
  float* kept(std::size_t offset) const;
  /// Of the first `rows` rows of a gradient, in the problem that was not cropped.
  Step<ClearFamily> clear(const char* name, const core::Tensor& gradient, std::int64_t rows) const;
  core::Region workspace() const;

  core::BackwardProblem whole_;
  Cropped cropped_;
  Choice choice_;
  int sm_count_;
  RingPlan ring_;
  KeptPlan kept_;
  WorkspaceLayout layout_;
  void* workspace_;
  Statistics statistics_, unseeing_statistics_;
  float* dq_sums_;
  std::uint32_t* counters_;
};

/// What a call touches, all kernels together.
core::TensorList memory_of(const core::BackwardProblem& problem, const Choice& choice, void* workspace);

/// OK if built variants serve the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of data pointers is checked where they are not null.
core::Status supported(const core::BackwardProblem& problem);

/// Bytes of workspace for a supported problem; their contents do not matter. 8 for each query of each
/// head, both padded to 128 (for dsinks those that see no key apart); and, up to head dim 128, 4 for each
/// element of q of the heads that are worked on at the same time, padded so too and to head dims 64 or 128,
/// and 4 for each 64 x 64 of these; and where groups are split, for each split 8 for each element of its
/// keys, padded likewise.
///
/// Where lengths vary, 8 for each query of each head, each sequence's padded to 128; up to head dim 128, 4
/// for each element of q, padded so too; and 32 for each tile.
std::size_t workspace_bytes(const core::BackwardProblem& problem);
/// With kernels that were chosen.
std::size_t workspace_bytes(const core::BackwardProblem& problem, const Choice& choice);

}  // namespace tandem::backward
