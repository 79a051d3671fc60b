// From a problem to a variant and its arguments. Plain C++, the same for the chip and the simulator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/problem.h"
#include "core/status.h"
#include "forward/arguments.h"
#include "forward/table.h"
#include "hw/tensor_map.h"
#include "launch/record.h"

namespace tandem::forward {

/// The problem as the kernels that know it take it. A window that is wider than the keys is none, and leaves
/// the choice among more kernels. Sinks and chunks are known where lengths vary, so all of one length become
/// such that are the same. Other calls of one length have no plan.
core::ForwardProblem for_kernels(const core::ForwardProblem& problem);

/// All that the choice between kernels depends on: shapes, the mask and what was asked for.
struct ShapeOfProblem {
  std::int64_t numbers[17];

  explicit ShapeOfProblem(const core::ForwardProblem& problem);
  std::uint64_t hash() const;
  friend bool operator==(const ShapeOfProblem&, const ShapeOfProblem&) = default;
};

/// What serves the problem with the overlap, the turns and the tile that are asked for, or nullptr if nothing
/// is built for it: of several the one for the mask's kind, and of those the one that costs least (cost.h).
const Candidate* choose_candidate(const core::ForwardProblem& problem);
const ForwardVariant* choose_variant(const core::ForwardProblem& problem);

/// All that dispatch weighs against one another for the problem: of the least padding and the mask's kind.
std::vector<const Candidate*> candidates_of(const core::ForwardProblem& problem);

/// Where there is no variant: what was asked for, and what is built.
core::Status no_variant(const core::ForwardProblem& problem);

/// How the queries of one batch entry are cut into tiles of block_m rows.
struct Tiling {
  Packing packing;
  std::int64_t packs;     ///< of query heads
  std::int64_t m_blocks;  ///< tiles of one pack

  std::int64_t tiles() const { return packs * m_blocks; }
};

/// Heads of a group are packed where that saves enough tiles: where queries are few.
Tiling tiling_of(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Tiles of queries over all heads and batch entries.
std::int64_t tile_count(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Blocks of a persistent grid on `sm_count` multiprocessors.
int grid_size(const core::ForwardProblem& problem, const ForwardVariant& variant, int sm_count);

/// Boxes of the tensor maps.
struct MapBoxes {
  hw::BoxRows q, keys, values, o;  ///< keys: of k; o: used where the kernel stages its output
};
MapBoxes map_boxes(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// Of variable lengths: the most tiles of one head that there may be, and the blocks of the kernel that lists
/// them (tile_list.h). 0 where lengths are uniform.
std::int64_t most_listed_tiles(const core::ForwardProblem& problem, const ForwardVariant& variant);
int listing_blocks(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// All arguments but the tensor maps and the list of tiles. tile_count has to be below 2^30.
ForwardArguments make_arguments(const core::ForwardProblem& problem, const ForwardVariant& variant, int grid);

/// The launch of the variant's kernel on `sm_count` multiprocessors. `list`: of variable lengths, where the
/// list of tiles lies.
launch::Record<Family> make_record(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                   int sm_count, void* list);
/// That of the kernel which writes the list; and that of sequences of few queries, where these are left to
/// others. Where they are alone there are no tiles.
launch::Record<ListFamily> make_list_record(const core::ForwardProblem& problem,
                                            const ForwardVariant& variant, int sm_count, void* list,
                                            const FewArguments& few = {});
/// Of variable lengths: where the list of tiles of a call lies, in its plan or at the begin of its workspace,
/// and its bytes.
void* list_of(const core::ForwardProblem& problem, void* workspace);
std::size_t list_bytes(const core::ForwardProblem& problem, const ForwardVariant& variant);
/// A hash of all that such lists depend on but lengths (VarlenArguments::list_key).
std::uint32_t key_of_list(const core::ForwardProblem& problem, const ForwardVariant& variant);

/// What the kernels ahead of the forward know of caches.
CacheArguments cache_arguments(const core::ForwardProblem& problem);
/// That of the kernel which appends new keys and values, and rotates them and the queries; no blocks where
/// there is nothing to do. It comes first, and may list sequences of few queries.
launch::Record<AppendFamily> make_append_record(const core::ForwardProblem& problem,
                                                const ForwardVariant& variant, void* workspace,
                                                const FewArguments& few = {});
/// As the forward reads the problem behind it: rotated queries lie in the workspace.
core::ForwardProblem with_rotated_queries(const core::ForwardProblem& problem, const ForwardVariant& variant,
                                          void* workspace);
/// OK if that kernel can take what is appended.
core::Status check_appended(const core::ForwardProblem& problem);

/// All memory that the launches may touch: the problem's, its plan, and of variable lengths the workspace, in
/// this role.
core::TensorList memory_of(const core::ForwardProblem& problem, void* workspace,
                           core::Role role_of_workspace);
/// What the making of a plan, which has so many bytes, reads and writes.
core::TensorList memory_of_planning(const core::ForwardProblem& problem, void* plan, std::size_t bytes);

/// OK if a built variant serves the problem and TMA can take its strides; else names what was asked. Needs no
/// device; alignment of data pointers is checked where they are not null.
core::Status supported(const core::ForwardProblem& problem);

/// Bytes of workspace that the launches need, with a plan or without: 0 where all sequences have the same
/// lengths.
std::size_t workspace_bytes(const core::ForwardProblem& problem);
/// Bytes of the plan of such calls.
std::size_t plan_bytes(const core::ForwardProblem& problem);

}  // namespace tandem::forward
