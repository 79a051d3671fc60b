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

// Not volatile: one serves all copies.
TANDEM_DEVICE L2Policy l2_policy(CachePolicy policy) {
  std::uint64_t first, last;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;\n" : "=l"(first));
  asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;\n" : "=l"(last));
  return {policy == CachePolicy::evict_last ? last : first, policy != CachePolicy::normal};
}

TANDEM_DEVICE void load_box(void* destination, const TensorMap& map, Barrier& barrier, BoxOrigin origin,
                            L2Policy policy) {
  if (policy.given) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5, %6}], [%2], %7;\n" ::"r"(shared_address(destination)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(origin.d), "r"(origin.s), "r"(origin.h), "r"(origin.b),
        "l"(policy.bits)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6}], [%2];\n" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(origin.d), "r"(origin.s), "r"(origin.h), "r"(origin.b)
      : "memory");
}

TANDEM_DEVICE void load_box(void* destination, const TensorMap& map, Barrier& barrier, PackedOrigin origin,
                            L2Policy policy) {
  const BoxCoordinates c = origin.coordinates();
  if (policy.given) {
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1, {%3, %4, %5, %6, %7}], [%2], %8;\n" ::"r"(shared_address(destination)),
        "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]),
        "r"(c.at[4]), "l"(policy.bits)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5, %6, %7}], [%2];\n" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]),
      "r"(c.at[4])
      : "memory");
}

TANDEM_DEVICE void copy_in(void* shared, const void* global, std::uint32_t bytes, Barrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::"r"(
          shared_address(shared)),
      "l"(global), "r"(bytes), "r"(shared_address(&barrier))
      : "memory");
}

TANDEM_DEVICE void store_box(const TensorMap& map, BoxOrigin origin, const void* source, L2Policy policy) {
  if (policy.given) {
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint"
        " [%0, {%2, %3, %4, %5}], [%1], %6;\n" ::"l"(&map),
        "r"(shared_address(source)), "r"(origin.d), "r"(origin.s), "r"(origin.h), "r"(origin.b),
        "l"(policy.bits)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(&map),
      "r"(shared_address(source)), "r"(origin.d), "r"(origin.s), "r"(origin.h), "r"(origin.b)
      : "memory");
}

TANDEM_DEVICE void store_box(const TensorMap& map, PackedOrigin origin, const void* source, L2Policy policy) {
  const BoxCoordinates c = origin.coordinates();
  if (policy.given) {
    asm volatile(
        "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group.L2::cache_hint"
        " [%0, {%2, %3, %4, %5, %6}], [%1], %7;\n" ::"l"(&map),
        "r"(shared_address(source)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(c.at[4]),
        "l"(policy.bits)
        : "memory");
    return;
  }
  asm volatile(
      "cp.async.bulk.tensor.5d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];\n" ::"l"(&map),
      "r"(shared_address(source)), "r"(c.at[0]), "r"(c.at[1]), "r"(c.at[2]), "r"(c.at[3]), "r"(c.at[4])
      : "memory");
}

TANDEM_DEVICE void reduce_add_box(const TensorMap& map, BoxOrigin origin, const void* source) {
  asm volatile(
      "cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group"
      " [%0, {%2, %3, %4, %5}], [%1];\n" ::"l"(&map),
      "r"(shared_address(source)), "r"(origin.d), "r"(origin.s), "r"(origin.h), "r"(origin.b)
      : "memory");
}

TANDEM_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }

template <int pending>
TANDEM_DEVICE void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;\n" ::"n"(pending) : "memory");
}
template <int pending>
TANDEM_DEVICE void wait_stores() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(pending) : "memory");
}

}  // namespace tandem::hw
