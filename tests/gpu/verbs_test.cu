// Every verb but WGMMA on the chip.
#include "tests/gpu/machine.cuh"
// The machine comes first.
#include "tests/hw/arithmetic_conformance.h"
#include "tests/hw/barriers_conformance.h"
#include "tests/hw/global_conformance.h"
#include "tests/hw/packed_conformance.h"
#include "tests/hw/store_conformance.h"
#include "tests/hw/threads_conformance.h"
#include "tests/hw/tma_conformance.h"
#include "tests/hw/warp_matrix_conformance.h"
