#include "tests/api/request.h"

#include <algorithm>

namespace tandem::test {
namespace {

tandem_mask mask_of(const core::Mask& mask) {
  if (mask.is_full()) return {TANDEM_MASK_FULL, 0, 0};
  const auto side = [](std::int64_t keys) { return keys == core::Mask::unlimited ? TANDEM_UNLIMITED : keys; };
  return {TANDEM_MASK_WINDOW, side(mask.left), side(mask.right)};
}

}  // namespace

Request::Request(const ForwardCase& c) : tensors(c) {
  args.struct_size = sizeof(args);
  args.backend = TANDEM_BACKEND_CPU;
  args.q = tensors.q.view();
  args.k = tensors.k.view();
  args.v = tensors.v.view();
  args.o = tensors.o.view();
  if (c.lse) args.lse = tensors.lse.view();
  args.scale = c.scale;
  args.softcap = c.softcap;
  args.mask = mask_of(c.mask);
  std::size_t bytes = 0;
  if (tandem_forward_workspace(&args, &bytes) == TANDEM_OK)
    workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
}

DecodeRequest::DecodeRequest(const DecodeCase& c) : tensors(c) {
  const core::DecodeProblem problem = tensors.problem();
  args.struct_size = sizeof(args);
  args.backend = TANDEM_BACKEND_CPU;
  args.q = problem.q;
  args.cache = {problem.k_cache,
                problem.v_cache,
                problem.page_table,
                problem.page_table_stride,
                problem.pages_per_sequence,
                problem.lengths,
                problem.batch_index};
  args.k_new = problem.k_new;
  args.v_new = problem.v_new;
  const core::Rotary& rotary = problem.rotary;
  args.rotary = {rotary.cos, rotary.sin, rotary.dtype, rotary.positions, rotary.dim, rotary.interleaved};
  args.o = problem.o;
  args.lse = problem.lse;
  args.mask = mask_of(c.mask);
  args.scale = c.scale;
  args.softcap = c.softcap;
  args.split_size = c.split_size;
  args.kernel = c.kernel;
  std::size_t bytes = 0;
  if (tandem_decode_workspace(&args, &bytes) == TANDEM_OK)
    workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
}

bool DecodeRequest::outputs_untouched() const {
  const DecodeTensors fresh(tensors.setup);
  const auto same = [](const HostTensor& a, const HostTensor& b) {
    return std::ranges::equal(a.storage(), b.storage());
  };
  return tensors.o.untouched() && tensors.lse.untouched() && same(tensors.k_cache, fresh.k_cache) &&
         same(tensors.v_cache, fresh.v_cache);
}

}  // namespace tandem::test
