// Ordinary accesses of global memory, atomics, fences.
#pragma once

#include "hw/hw.h"
#include "hw/sm90/tma.h"

namespace tandem::hw {

TANDEM_DEVICE void store_global(void* address, const std::uint32_t (&words)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};\n" ::"l"(address), "r"(words[0]), "r"(words[1]),
               "r"(words[2]), "r"(words[3])
               : "memory");
}
template <int count>
TANDEM_DEVICE void store_kept(void* address, const std::uint32_t (&words)[count]) {
  static_assert(count == 1 || count == 2 || count == 4);
  const std::uint64_t policy = l2_policy(CachePolicy::evict_last).bits;
  if constexpr (count == 1) {
    asm volatile("st.global.L2::cache_hint.b32 [%0], %1, %2;\n" ::"l"(address), "r"(words[0]), "l"(policy)
                 : "memory");
  } else if constexpr (count == 2) {
    asm volatile("st.global.L2::cache_hint.v2.b32 [%0], {%1, %2}, %3;\n" ::"l"(address), "r"(words[0]),
                 "r"(words[1]), "l"(policy)
                 : "memory");
  } else {
    asm volatile("st.global.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;\n" ::"l"(address),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3]), "l"(policy)
                 : "memory");
  }
}
TANDEM_DEVICE void store_global(float* address, float value) {
  asm volatile("st.global.f32 [%0], %1;\n" ::"l"(address), "f"(value) : "memory");
}
TANDEM_DEVICE void store_global(std::uint32_t* address, std::uint32_t value) {
  asm volatile("st.global.u32 [%0], %1;\n" ::"l"(address), "r"(value) : "memory");
}
TANDEM_DEVICE void store_global(std::uint16_t* address, std::uint16_t value) {
  asm volatile("st.global.u16 [%0], %1;\n" ::"l"(address), "h"(value) : "memory");
}

// Volatile keeps loads behind the barriers and atomics that they depend on; a memory clobber would also keep
// them from moving across accesses of shared memory.
TANDEM_DEVICE float load_global(const float* address) {
  float value;
  asm volatile("ld.global.f32 %0, [%1];\n" : "=f"(value) : "l"(address));
  return value;
}
TANDEM_DEVICE std::uint32_t load_global(const std::uint32_t* address) {
  std::uint32_t value;
  asm volatile("ld.global.u32 %0, [%1];\n" : "=r"(value) : "l"(address));
  return value;
}
TANDEM_DEVICE std::int32_t load_global(const std::int32_t* address) {
  std::int32_t value;
  asm volatile("ld.global.s32 %0, [%1];\n" : "=r"(value) : "l"(address));
  return value;
}
TANDEM_DEVICE void load_global(std::uint32_t (&words)[4], const void* address) {
  asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "l"(address));
}

TANDEM_DEVICE std::uint32_t atomic_add(std::uint32_t* address, std::uint32_t value) {
  std::uint32_t old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;\n"
               : "=r"(old)
               : "l"(address), "r"(value)
               : "memory");
  return old;
}
TANDEM_DEVICE std::uint32_t take_number(std::uint32_t* counter) {
  std::uint32_t old;
  asm volatile("atom.relaxed.gpu.global.add.u32 %0, [%1], 1;\n" : "=r"(old) : "l"(counter) : "memory");
  return old;
}
TANDEM_DEVICE void signal_counter(std::uint32_t* counter) {
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;\n" ::"l"(counter) : "memory");
}
TANDEM_DEVICE void wait_counter(const std::uint32_t* counter, std::uint32_t value) {
  std::uint32_t current;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(current) : "l"(counter) : "memory");
  } while (current < value);
}

}  // namespace tandem::hw
