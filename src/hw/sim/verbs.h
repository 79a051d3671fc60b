// The verbs in software: thin wrappers, inlined into the kernel so that the machine sees the kernel's own
// code addresses and can name source lines.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "core/dtype.h"
#include "hw/hw.h"
#include "hw/sim/device.h"

#define TANDEM_SIM_INLINE __attribute__((always_inline)) inline

namespace tandem::hw {

// ---- Who am I
TANDEM_SIM_INLINE std::uint32_t thread_index() { return sim::thread_index(); }
TANDEM_SIM_INLINE std::uint32_t lane_index() { return sim::thread_index() % warp_size; }
TANDEM_SIM_INLINE std::uint32_t warp_index() { return sim::converged_thread_index("warp_index") / warp_size; }
TANDEM_SIM_INLINE std::uint32_t warpgroup_index() {
  return sim::converged_thread_index("warpgroup_index") / warpgroup_size;
}
TANDEM_SIM_INLINE std::uint32_t block_index() { return sim::block_index(); }
TANDEM_SIM_INLINE std::uint32_t grid_size() { return sim::grid_size(); }
TANDEM_SIM_INLINE bool elect_one() { return sim::elect_one(); }
TANDEM_SIM_INLINE void set_role(const char* name) { sim::set_role(name); }

// ---- Registers
template <int count>
TANDEM_SIM_INLINE void release_registers() {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0);
  sim::release_registers(count);
}
template <int count>
TANDEM_SIM_INLINE void acquire_registers() {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0);
  sim::acquire_registers(count);
}

// ---- Shared memory
template <typename Layout>
TANDEM_SIM_INLINE Layout& shared_memory() {
  return *static_cast<Layout*>(sim::shared_memory(sizeof(Layout), alignof(Layout)));
}
TANDEM_SIM_INLINE std::uint32_t shared_address(const void* object) { return sim::shared_address(object); }
TANDEM_SIM_INLINE void fence_async_proxy() { sim::fence_async_proxy(); }

// ---- Barriers
TANDEM_SIM_INLINE void sync_block() { sim::sync_named(0, 0); }
TANDEM_SIM_INLINE void sync_warp() { sim::sync_warp(); }
TANDEM_SIM_INLINE void sync_named(std::uint32_t id, std::uint32_t threads) { sim::sync_named(id, threads); }
TANDEM_SIM_INLINE void arrive_named(std::uint32_t id, std::uint32_t threads) {
  sim::arrive_named(id, threads);
}
TANDEM_SIM_INLINE void barrier_init(Barrier& barrier, std::uint32_t arrivals) {
  sim::barrier_init(barrier, arrivals);
}
TANDEM_SIM_INLINE void fence_barrier_init() { sim::fence_barrier_init(); }
TANDEM_SIM_INLINE void barrier_arrive(Barrier& barrier) { sim::barrier_arrive(barrier); }
TANDEM_SIM_INLINE void barrier_arrive_expecting(Barrier& barrier, std::uint32_t bytes) {
  sim::barrier_arrive_expecting(barrier, bytes);
}
TANDEM_SIM_INLINE void barrier_wait(Barrier& barrier, std::uint32_t parity) {
  sim::barrier_wait(barrier, parity);
}

// ---- TMA
TANDEM_SIM_INLINE void prefetch_map(const TensorMap& map) { sim::prefetch_map(map); }
TANDEM_SIM_INLINE void prefetch_box(const TensorMap& map, BoxOrigin) { sim::prefetch_map(map); }
TANDEM_SIM_INLINE void load_box(void* destination, const TensorMap& map, Barrier& barrier, BoxOrigin origin) {
  sim::load_box(destination, map, barrier, origin);
}

// ---- WGMMA
TANDEM_SIM_INLINE void wgmma_fence() { sim::wgmma_fence(); }
TANDEM_SIM_INLINE void wgmma_commit() { sim::wgmma_commit(); }
template <int pending>
TANDEM_SIM_INLINE void wgmma_wait() {
  sim::wgmma_wait(pending);
}
TANDEM_SIM_INLINE void compute_before_wait(float, Barrier&) {}  // nothing is reordered here

template <Operand operand, int n, Major b_major>
TANDEM_SIM_INLINE void wgmma_ss(float (&accumulators)[n / 2], MatrixDescriptor a, MatrixDescriptor b,
                                Accumulate accumulate) {
  static_assert(n % 8 == 0 && n >= 8 && n <= 256);
  sim::wgmma({operand, n, b_major, false, accumulate, a, b}, accumulators, nullptr);
}
template <Operand operand, int n, Major b_major>
TANDEM_SIM_INLINE void wgmma_rs(float (&accumulators)[n / 2], const std::uint32_t (&a)[4], MatrixDescriptor b,
                                Accumulate accumulate) {
  static_assert(n % 8 == 0 && n >= 8 && n <= 256);
  sim::wgmma({operand, n, b_major, true, accumulate, {0}, b}, accumulators, a);
}

// ---- Lanes
TANDEM_SIM_INLINE bool any_lane(bool predicate) { return sim::any_lane(predicate); }
TANDEM_SIM_INLINE float shuffle_xor(float value, std::uint32_t mask) {
  return std::bit_cast<float>(sim::shuffle_xor(std::bit_cast<std::uint32_t>(value), mask));
}
TANDEM_SIM_INLINE std::uint32_t shuffle_xor(std::uint32_t value, std::uint32_t mask) {
  return sim::shuffle_xor(value, mask);
}

// ---- Arithmetic. Correctly rounded libm in place of the chip's approximations.
TANDEM_SIM_INLINE float exp2(float x) { return std::exp2(x); }
TANDEM_SIM_INLINE float log2(float x) { return std::log2(x); }
TANDEM_SIM_INLINE float tanh(float x) { return std::tanh(x); }
TANDEM_SIM_INLINE float reciprocal(float x) { return 1.f / x; }
TANDEM_SIM_INLINE float fma(float a, float b, float c) { return std::fma(a, b, c); }
TANDEM_SIM_INLINE float max(float a, float b) { return std::fmax(a, b); }
template <Operand operand>
TANDEM_SIM_INLINE std::uint32_t pack(float low, float high) {
  using Element = std::conditional_t<operand == Operand::bf16, core::Bf16, core::Fp16>;
  // cvt makes every NaN the canonical one.
  const auto bits = [](float x) { return std::isnan(x) ? 0x7fffu : std::uint32_t{Element::from(x).bits}; };
  return bits(low) | bits(high) << 16;
}

// ---- Global memory
TANDEM_SIM_INLINE void store_global(void* address, const std::uint32_t (&words)[4]) {
  sim::store_global(address, words, sizeof words);
}
TANDEM_SIM_INLINE void store_global(float* address, float value) {
  sim::store_global(address, &value, sizeof value);
}

}  // namespace tandem::hw

#undef TANDEM_SIM_INLINE
