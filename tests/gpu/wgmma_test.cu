// WGMMA on the chip: a file of its own, because its many kernels take long to compile.
#include "tests/gpu/machine.cuh"
// The machine comes first.
#include "tests/hw/fp16_conformance.h"
#include "tests/hw/wgmma_conformance.h"
