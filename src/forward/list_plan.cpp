// The list of tiles of variable lengths, as the host decides it: where it lies, and the kernel that makes it.
#include <cstdint>

#include "core/integers.h"
#include "core/remembered.h"
#include "forward/cost.h"
#include "forward/listed_tile.h"
#include "forward/plan.h"

namespace tandem::forward {

std::size_t list_bytes(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  return static_cast<std::size_t>(tile_list_words(tile_count(problem, variant))) * sizeof(std::int32_t);
}

std::size_t plan_bytes(const core::ForwardProblem& problem) {
  const ForwardVariant* variant = choose_variant(problem);
  return variant == nullptr || !problem.varlen.given ? 0 : list_bytes(problem, *variant);
}

void* list_of(const core::ForwardProblem& problem, void* workspace) {
  return problem.plan != nullptr ? problem.plan : workspace;
}

core::TensorList memory_of_planning(const core::ForwardProblem& problem, void* plan, std::size_t bytes) {
  core::TensorList list;
  core::add_all_lengths(list, problem.varlen);
  list.add_array("plan", core::Role::output, core::Region::of(plan, bytes));
  return list;
}

std::uint32_t key_of_list(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const core::Varlen& varlen = problem.varlen;
  const bool given[] = {varlen.cu_seqlens_q != nullptr,     varlen.cu_seqlens_k != nullptr,
                        varlen.seqused_k != nullptr,        varlen.page_table != nullptr,
                        varlen.cu_seqlens_k_new != nullptr, varlen.leftpad_k != nullptr,
                        varlen.batch_index != nullptr,      varlen.appends()};
  std::uint64_t hash = ShapeOfProblem(problem).hash();
  for (const bool has : given) hash = core::mixed(hash, has ? 1 : 0);
  for (const std::int64_t number :
       {problem.q.shape[0], problem.q.shape[1], problem.k.shape[0], problem.k.shape[1],
        varlen.pages_per_sequence, varlen.appends() ? varlen.k_new.shape[1] : 0,
        std::int64_t{variant.block_m}})
    hash = core::mixed(hash, static_cast<std::uint64_t>(number));
  return static_cast<std::uint32_t>(hash >> 32);
}

int listing_blocks(const core::ForwardProblem& problem, const ForwardVariant& variant) {
  const int groups = ListVariant::groups_of(static_cast<int>(tiling_of(problem, variant).packs));
  return static_cast<int>(core::ceil_div(most_listed_tiles(problem, variant) * groups, ListVariant::warps()));
}

launch::Record<ListFamily> make_list_record(const core::ForwardProblem& problem,
                                            const ForwardVariant& variant, int sm_count, void* list,
                                            const FewArguments& few) {
  const int tile_blocks = problem.q_len() <= few.most_queries ? 0 : listing_blocks(problem, variant);
  // One to share the chip, and one for each 32 sequences.
  const std::int64_t other_warps =
      few.most_queries > 0 ? 1 + core::ceil_div(problem.varlen.sequences, std::int64_t{hw::warp_size}) : 0;
  launch::Record<ListFamily> record{
      {}, tile_blocks + static_cast<int>(core::ceil_div(other_warps, ListVariant::warps())), {}};
  if (record.blocks == 0) return record;
  ForwardArguments args = make_arguments(problem, variant, 1);
  args.varlen.tile_list = static_cast<std::int32_t*>(list);
  const auto tile_queries = static_cast<int>(queries_of_tile(variant, args.packing));
  const int grid = grid_size(problem, variant, sm_count);
  record.arguments = {args, cache_arguments(problem), core::Divisor(tile_queries), grid, tile_blocks, few};
  return record;
}

}  // namespace tandem::forward
