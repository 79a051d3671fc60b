// A program that shows what a forward kernel does on the chip: tools/mutate_gpu.py compiles its kernels from
// mutated sources, runs it, and runs it again under compute-sanitizer. probe.cpp is the host side, the same
// for all mutants.
#pragma once

#include <span>

#include "forward/arguments.h"
#include "forward/variant.h"
#include "hw/tensor_map.h"

namespace tandem::test {

struct ProbeKernel {
  forward::ForwardVariant variant;
  /// Runs the kernel on a grid of `blocks` and waits for it. Throws what the CUDA runtime reports.
  void (*run)(const forward::ForwardArguments& args, int blocks);
};

/// The kernels of this program.
std::span<const ProbeKernel> probe_kernels();

/// The map as the driver encodes it; throws if it refuses.
hw::TensorMap encode_map(const hw::TensorMapRequest& request);

}  // namespace tandem::test
