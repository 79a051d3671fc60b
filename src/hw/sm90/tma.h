// The tensor memory accelerator.
#pragma once

#include "hw/hw.h"

namespace tandem::hw {

TANDEM_DEVICE void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];\n" ::"l"(&map) : "memory");
}

TANDEM_DEVICE void prefetch_box(const TensorMap& map, BoxOrigin origin) {
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];\n" ::"l"(&map),
               "r"(origin.d), "r"(origin.s), "r"(origin.h), "r"(origin.b)
               : "memory");
}

TANDEM_DEVICE void load_box(void* destination, const TensorMap& map, Barrier& barrier, BoxOrigin origin) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(origin.d), "r"(origin.s), "r"(origin.h), "r"(origin.b)
      : "memory");
}

}  // namespace tandem::hw
