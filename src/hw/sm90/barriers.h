// Shared memory, named barriers, mbarriers, fences.
#pragma once

#include "hw/hw.h"

namespace tandem::hw {

template <typename Layout>
TANDEM_DEVICE Layout& shared_memory() {
  // The runtime aligns dynamic shared memory to 1024 when nothing static precedes it; kernels have nothing
  // static.
  extern __shared__ __align__(1024) unsigned char dynamic_shared_memory[];
  return *reinterpret_cast<Layout*>(dynamic_shared_memory);
}

TANDEM_DEVICE std::uint32_t shared_address(const void* object) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(object));
}

TANDEM_DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }
TANDEM_DEVICE void fence_async_proxy_global() { asm volatile("fence.proxy.async.global;\n" ::: "memory"); }

TANDEM_DEVICE void sync_block() { asm volatile("barrier.sync.aligned 0;\n" ::: "memory"); }
TANDEM_DEVICE void sync_warp() { asm volatile("bar.warp.sync 0xffffffff;\n" ::: "memory"); }
TANDEM_DEVICE void sync_named(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.sync.aligned %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}
TANDEM_DEVICE bool sync_named_any(std::uint32_t id, std::uint32_t threads, bool predicate) {
  std::uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred mine, any;\n"
      "setp.ne.u32 mine, %3, 0;\n"
      "barrier.red.or.pred.aligned any, %1, %2, mine;\n"
      "selp.u32 %0, 1, 0, any;\n"
      "}\n"
      : "=r"(any)
      : "r"(id), "r"(threads), "r"(static_cast<std::uint32_t>(predicate))
      : "memory");
  return any != 0;
}
TANDEM_DEVICE void arrive_named(std::uint32_t id, std::uint32_t threads) {
  asm volatile("barrier.arrive.aligned %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

TANDEM_DEVICE void barrier_init(Barrier& barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(shared_address(&barrier)), "r"(arrivals)
               : "memory");
}

TANDEM_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

TANDEM_DEVICE void barrier_arrive(Barrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(shared_address(&barrier)) : "memory");
}

TANDEM_DEVICE void barrier_arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(shared_address(&barrier)),
               "r"(bytes)
               : "memory");
}

TANDEM_DEVICE void barrier_wait(Barrier& barrier, std::uint32_t parity) {
  // try_wait suspends the thread for a while before it gives up, so the loop does not spin hot.
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "wait:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra complete;\n"
      "bra wait;\n"
      "complete:\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
}

}  // namespace tandem::hw
