#include "tests/api/request.h"

namespace tandem::test {

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
  if (!c.mask.is_full()) {
    const auto side = [](std::int64_t keys) {
      return keys == core::Mask::unlimited ? TANDEM_UNLIMITED : keys;
    };
    args.mask = {TANDEM_MASK_WINDOW, side(c.mask.left), side(c.mask.right)};
  }
  std::size_t bytes = 0;
  if (tandem_forward_workspace(&args, &bytes) == TANDEM_OK)
    workspace.resize(bytes / sizeof(WorkspaceBlock) + 1);
}

}  // namespace tandem::test
