#include "backward_cases.h"

#include "cases.h"
#include "draw.h"

namespace tandem::cli {

BackwardCall random_backward(std::uint64_t seed, tandem_backend backend) {
  BackwardCall call;
  call.forward = random_call(seed, backend);
  call.forward.want_lse = true;
  Random random(~seed);  // not what the forward call was drawn from
  const Shape& q = call.forward.q.shape;
  call.dout = random_tensor(random, call.forward.q.dtype, q, one_of(random, {0.1f, 1.0f, 1.0f}));
  if (one_in(random, 3)) call.dlse = random_tensor(random, TANDEM_FP32, {q[0], q[1], q[2], 1}, 1.0f);
  call.deterministic = one_in(random, 2);
  for (Layout* layout : {&call.dq_layout, &call.dk_layout, &call.dv_layout}) *layout = random_layout(random);
  return call;
}

std::string described(const BackwardCall& call) {
  return described(call.forward) + (call.dlse.storage.empty() ? "" : " dlse") +
         (call.deterministic ? " deterministic" : "");
}

}  // namespace tandem::cli
