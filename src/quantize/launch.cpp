#include "quantize/launch.h"

#include <algorithm>
#include <utility>

#include "hw/cuda/device.h"
#include "quantize/kernels.h"
#include "quantize/plan.h"

namespace tandem::quantize {

using core::QuantizeProblem;
using core::Status;

Status launch(const QuantizeProblem& problem, void* stream) {
  hw::Device device;
  if (Status s = hw::hopper_device(&device); !s.ok()) return s;
  for (auto [name, tensor] : {std::pair<const char*, const core::Tensor*>{"x.data", &problem.x},
                              {"out.data", &problem.out},
                              {"scale.data", &problem.scale.values}})
    if (Status s = hw::check_memory(name, tensor->data); !s.ok()) return s;
  QuantizeArguments args = make_arguments(problem);
  const Kernel& kernel = *std::ranges::find(kernels(), variant_of(problem), &Kernel::variant);
  void* parameters[] = {&args};
  return hw::enqueue(
      "the quantising kernel",
      {kernel.handle, blocks_of(problem), kernel.variant.threads(), kernel.shared_bytes, false}, parameters,
      stream);
}

}  // namespace tandem::quantize
