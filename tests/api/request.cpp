#include "tests/api/request.h"

#include <algorithm>

namespace tandem::test {

Request::Request(const ForwardCase& c, tandem_backend backend) : ForwardArgs(c), tensors(c) {
  args.backend = backend;
  args.q = tensors.q.view();
  args.k = tensors.k.view();
  args.v = tensors.v.view();
  args.o = tensors.o.view();
  if (c.lse) args.lse = tensors.lse.view();
  if (c.blocks.given()) block_list = to_c(tensors.blocks.view()), args.block_list = &block_list;
  if (c.eight_bit.q.heads > 0) scales.q = tensors.q_scale.view();
  if (c.eight_bit.k.heads > 0) scales.k = tensors.k_scale.view();
  if (c.eight_bit.v.heads > 0) scales.v = tensors.v_scale.view();
  if (c.eight_bit.v_shift) scales.v_shift = tensors.v_shift.view();
  if (c.eight_bit.q_dot_k_shift) scales.q_dot_k_shift = tensors.q_dot_k_shift.view();
  std::size_t bytes = 0;
  if (tandem_forward_workspace(&args, &bytes) == TANDEM_OK)
    workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
}

BackwardRequest::BackwardRequest(const BackwardCase& c, tandem_backend backend)
    : HoldsBackwardTensors{BackwardTensors(c)}, BackwardArgs(tensors) {
  args.backend = backend;
  std::size_t bytes = 0;
  if (tandem_backward_workspace(&args, &bytes) == TANDEM_OK)
    workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
}

DecodeRequest::DecodeRequest(const DecodeCase& c)
    : HoldsDecodeTensors{DecodeTensors(c)}, DecodeArgs(tensors) {
  args.backend = TANDEM_BACKEND_CPU;
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
