// The verbs in software: thin wrappers, inlined into the kernel so that the machine sees the kernel's own
// code addresses and can name source lines.
#pragma once

#include <algorithm>
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
TANDEM_SIM_INLINE std::uint32_t thread_index_anew() { return thread_index(); }
TANDEM_SIM_INLINE std::uint32_t lane_index() { return sim::thread_index() % warp_size; }
TANDEM_SIM_INLINE std::uint32_t warp_index() { return sim::converged_thread_index("warp_index") / warp_size; }
TANDEM_SIM_INLINE std::uint32_t warpgroup_index() {
  return sim::converged_thread_index("warpgroup_index") / warpgroup_size;
}
TANDEM_SIM_INLINE std::uint32_t warpgroup_index_anew() { return warpgroup_index(); }
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
TANDEM_SIM_INLINE void fence_async_proxy_global() { sim::fence_async_proxy_global(); }

// ---- Barriers
TANDEM_SIM_INLINE void sync_block() { sim::sync_named(0, 0); }
TANDEM_SIM_INLINE void sync_warp() { sim::sync_warp(); }
TANDEM_SIM_INLINE void sync_named(std::uint32_t id, std::uint32_t threads) { sim::sync_named(id, threads); }
TANDEM_SIM_INLINE bool sync_named_any(std::uint32_t id, std::uint32_t threads, bool predicate) {
  return sim::sync_named_any(id, threads, predicate);
}
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
TANDEM_SIM_INLINE L2Policy l2_policy(CachePolicy) { return {}; }  // there is no L2
TANDEM_SIM_INLINE void load_box(void* destination, const TensorMap& map, Barrier& barrier, BoxOrigin origin,
                                L2Policy) {
  sim::load_box(destination, map, barrier, origin.coordinates());
}
TANDEM_SIM_INLINE void load_box(void* destination, const TensorMap& map, Barrier& barrier,
                                PackedOrigin origin, L2Policy) {
  sim::load_box(destination, map, barrier, origin.coordinates());
}
TANDEM_SIM_INLINE void copy_in(void* shared, const void* global, std::uint32_t bytes, Barrier& barrier) {
  sim::copy_in(shared, global, bytes, barrier);
}
TANDEM_SIM_INLINE void store_box(const TensorMap& map, BoxOrigin origin, const void* source, L2Policy) {
  sim::store_box(map, origin.coordinates(), source);
}
TANDEM_SIM_INLINE void store_box(const TensorMap& map, PackedOrigin origin, const void* source, L2Policy) {
  sim::store_box(map, origin.coordinates(), source);
}
TANDEM_SIM_INLINE void reduce_add_box(const TensorMap& map, BoxOrigin origin, const void* source) {
  sim::reduce_add_box(map, origin.coordinates(), source);
}
TANDEM_SIM_INLINE void commit_stores() { sim::commit_stores(); }
template <int pending>
TANDEM_SIM_INLINE void wait_stores_read() {
  static_assert(pending >= 0);
  sim::wait_stores_read(pending);
}
template <int pending>
TANDEM_SIM_INLINE void wait_stores() {
  static_assert(pending >= 0);
  sim::wait_stores(pending);
}

// ---- WGMMA
TANDEM_SIM_INLINE void wgmma_fence() { sim::wgmma_fence(); }
TANDEM_SIM_INLINE void wgmma_commit() { sim::wgmma_commit(); }
template <int pending>
TANDEM_SIM_INLINE void wgmma_wait() {
  sim::wgmma_wait(pending);
}
TANDEM_SIM_INLINE void compute_before_wait(float, Barrier&) {}  // nothing is reordered here

template <Operand operand, int n, Major b_major, Major a_major>
TANDEM_SIM_INLINE void wgmma_ss(float (&accumulators)[n / 2], MatrixDescriptor a, MatrixDescriptor b,
                                Accumulate accumulate) {
  static_assert(n % 8 == 0 && n >= 8 && n <= 256);
  static_assert(is_16_bit(operand) || (a_major == Major::k && b_major == Major::k));
  sim::wgmma({operand, n, a_major, b_major, false, accumulate, a, b}, accumulators, nullptr);
}
template <int n>
TANDEM_SIM_INLINE void wgmma_ss_fp16(std::uint32_t (&accumulators)[n / 4], MatrixDescriptor a,
                                     MatrixDescriptor b, Accumulate accumulate) {
  sim::wgmma({Operand::e4m3, n, Major::k, Major::k, false, accumulate, a, b, true}, accumulators, nullptr);
}
template <Operand operand, int n, Major b_major>
TANDEM_SIM_INLINE void wgmma_rs(float (&accumulators)[n / 2], const std::uint32_t (&a)[4], MatrixDescriptor b,
                                Accumulate accumulate) {
  static_assert(n % 8 == 0 && n >= 8 && n <= 256);
  static_assert(is_16_bit(operand) || (operand == Operand::e4m3 && b_major == Major::k));
  sim::wgmma({operand, n, Major::k, b_major, true, accumulate, {0}, b}, accumulators, a);
}

// ---- Matrices of a warp. Registers go through copies, so that the machine sees the kernel touch them.
template <Operand operand>
TANDEM_SIM_INLINE void mma_sync(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
  static_assert(is_16_bit(operand));
  const std::uint32_t own_a[4] = {a[0], a[1], a[2], a[3]}, own_b[2] = {b[0], b[1]};
  float own_d[4] = {d[0], d[1], d[2], d[3]};
  sim::mma_sync(operand, own_d, own_a, own_b);
  for (int i = 0; i < 4; ++i) d[i] = own_d[i];
}
template <int count>
inline constexpr bool is_matrix_count = count == 1 || count == 2 || count == 4;
template <int count>
TANDEM_SIM_INLINE void load_matrices(std::uint32_t (&matrices)[count], const void* row) {
  static_assert(is_matrix_count<count>);
  std::uint32_t own[count];
  sim::load_matrices({count, false}, own, row);
  for (int i = 0; i < count; ++i) matrices[i] = own[i];
}
template <int count>
TANDEM_SIM_INLINE void load_matrices_transposed(std::uint32_t (&matrices)[count], const void* row) {
  static_assert(is_matrix_count<count>);
  std::uint32_t own[count];
  sim::load_matrices({count, true}, own, row);
  for (int i = 0; i < count; ++i) matrices[i] = own[i];
}
template <int count>
TANDEM_SIM_INLINE void store_matrices(void* row, const std::uint32_t (&matrices)[count]) {
  static_assert(is_matrix_count<count>);
  std::uint32_t own[count];
  for (int i = 0; i < count; ++i) own[i] = matrices[i];
  sim::store_matrices({count, false}, row, own);
}
template <int count>
TANDEM_SIM_INLINE void store_matrices_transposed(void* row, const std::uint32_t (&matrices)[count]) {
  static_assert(is_matrix_count<count>);
  std::uint32_t own[count];
  for (int i = 0; i < count; ++i) own[i] = matrices[i];
  sim::store_matrices({count, true}, row, own);
}
TANDEM_SIM_INLINE std::uint32_t transpose_matrix(std::uint32_t matrix) {
  return sim::transpose_matrix(matrix);
}

// ---- Lanes
TANDEM_SIM_INLINE std::uint32_t shuffle(std::uint32_t value, std::uint32_t lane) {
  return sim::shuffle(value, lane);
}
TANDEM_SIM_INLINE float shuffle(float value, std::uint32_t lane) {
  return std::bit_cast<float>(sim::shuffle(std::bit_cast<std::uint32_t>(value), lane));
}
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
TANDEM_SIM_INLINE float max_or_nan(float a, float b) {
  return std::isnan(a) || std::isnan(b) ? std::numeric_limits<float>::quiet_NaN() : std::fmax(a, b);
}
TANDEM_SIM_INLINE float max_of_bits(float a, float b, float c) {
  return std::bit_cast<float>(std::max(
      {std::bit_cast<std::int32_t>(a), std::bit_cast<std::int32_t>(b), std::bit_cast<std::int32_t>(c)}));
}
/// Calls `one(a, b, c)` with the three low halves and with the three high ones.
template <typename One>
TANDEM_SIM_INLINE std::uint32_t by_halves(std::uint32_t a, std::uint32_t b, std::uint32_t c, One&& one) {
  const auto half = [](std::uint32_t word, int i) { return static_cast<std::uint16_t>(word >> 16 * i); };
  std::uint32_t result = 0;
  for (int i = 0; i < 2; ++i)
    result |= std::uint32_t{static_cast<std::uint16_t>(one(half(a, i), half(b, i), half(c, i)))} << 16 * i;
  return result;
}
TANDEM_SIM_INLINE std::uint32_t max_of_int16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return by_halves(a, b, c, [](std::uint16_t x, std::uint16_t y, std::uint16_t z) {
    return std::max(
        {static_cast<std::int16_t>(x), static_cast<std::int16_t>(y), static_cast<std::int16_t>(z)});
  });
}
inline constexpr std::uint16_t nan_of_fp16 = 0x7fff;
TANDEM_SIM_INLINE std::uint32_t max_or_nan_fp16(std::uint32_t a, std::uint32_t b) {
  return by_halves(a, b, b, [](std::uint16_t x, std::uint16_t y, std::uint16_t) {
    const auto first = static_cast<float>(core::Fp16{x}), second = static_cast<float>(core::Fp16{y});
    if (std::isnan(first) || std::isnan(second)) return nan_of_fp16;
    if (first == second) return std::signbit(first) ? y : x;  // -0 is less than 0
    return first > second ? x : y;
  });
}
/// Rounded once: the product is exact in double, and so is the sum, but for bits that decide nothing. On its
/// way through float it is cut, with a last bit that says that something was.
TANDEM_SIM_INLINE std::uint32_t fma_fp16(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return by_halves(a, b, c, [](std::uint16_t x, std::uint16_t y, std::uint16_t z) {
    const auto value = [](std::uint16_t bits) { return double{static_cast<float>(core::Fp16{bits})}; };
    const double sum = value(x) * value(y) + value(z);
    if (std::isnan(sum)) return nan_of_fp16;
    auto cut = static_cast<float>(sum);
    if (std::abs(double{cut}) > std::abs(sum)) cut = std::nextafter(cut, 0.f);
    if (double{cut} != sum && std::isfinite(cut))
      cut = std::bit_cast<float>(std::bit_cast<std::uint32_t>(cut) | 1u);
    return core::Fp16::from(cut).bits;
  });
}
TANDEM_SIM_INLINE std::uint32_t fma_fp16_saturated(std::uint32_t a, std::uint32_t b, std::uint32_t c) {
  return by_halves(fma_fp16(a, b, c), 0, 0, [](std::uint16_t sum, std::uint16_t, std::uint16_t) {
    const auto x = static_cast<float>(core::Fp16{sum});
    if (!(x > 0)) return std::uint16_t{0};
    return x > 1 ? core::Fp16::from(1).bits : sum;
  });
}
template <Operand operand>
TANDEM_SIM_INLINE std::uint32_t pack(float low, float high) {
  static_assert(is_16_bit(operand));
  using Element = std::conditional_t<operand == Operand::bf16, core::Bf16, core::Fp16>;
  // cvt makes every NaN the canonical one.
  const auto bits = [](float x) { return std::isnan(x) ? 0x7fffu : std::uint32_t{Element::from(x).bits}; };
  return bits(low) | bits(high) << 16;
}
TANDEM_SIM_INLINE std::uint32_t pack_e4m3(float x0, float x1, float x2, float x3) {
  const auto bits = [](float x) { return std::uint32_t{core::E4m3::from(x).bits}; };
  return bits(x0) | bits(x1) << 8 | bits(x2) << 16 | bits(x3) << 24;
}
TANDEM_SIM_INLINE void unpack_e4m3(std::uint32_t (&pairs)[2], std::uint32_t word) {
  const auto half = [word](int byte) {
    const core::E4m3 element{static_cast<std::uint8_t>(word >> 8 * byte)};
    return std::uint32_t{core::Fp16::from(static_cast<float>(element)).bits};
  };
  for (int i = 0; i < 2; ++i) pairs[i] = half(2 * i) | half(2 * i + 1) << 16;
}
TANDEM_SIM_INLINE std::uint32_t pack_bytes(float x0, float x1, float x2, float x3) {
  const auto byte = [](float x) {
    return std::isnan(x) ? 0u : static_cast<std::uint32_t>(std::clamp(std::nearbyint(x), 0.f, 255.f));
  };
  return byte(x0) | byte(x1) << 8 | byte(x2) << 16 | byte(x3) << 24;
}
TANDEM_SIM_INLINE std::uint32_t pack_int8(float x0, float x1, float x2, float x3) {
  const auto byte = [](float x) {
    return std::uint32_t{static_cast<std::uint8_t>(core::Int8::from(x).bits)};
  };
  return byte(x0) | byte(x1) << 8 | byte(x2) << 16 | byte(x3) << 24;
}
template <std::uint32_t order>
TANDEM_SIM_INLINE void unpack_int8(std::uint32_t (&pairs)[2], std::uint32_t word) {
  const auto half = [word](std::uint32_t digit) {
    const auto element = static_cast<std::int8_t>(word >> 8 * (order >> 4 * digit & 3u));
    return std::uint32_t{core::Fp16::from(element).bits};
  };
  for (std::uint32_t i = 0; i < 2; ++i) pairs[i] = half(2 * i) | half(2 * i + 1) << 16;
}
template <std::uint32_t selector>
TANDEM_SIM_INLINE std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high) {
  const std::uint64_t bytes = low | static_cast<std::uint64_t>(high) << 32;
  std::uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t from = selector >> 4 * i & 7;
    result |= static_cast<std::uint32_t>(bytes >> 8 * from & 255) << 8 * i;
  }
  return result;
}
template <Operand operand>
TANDEM_SIM_INLINE float unpack_low(std::uint32_t word) {
  using Element = std::conditional_t<operand == Operand::bf16, core::Bf16, core::Fp16>;
  return static_cast<float>(Element{static_cast<std::uint16_t>(word)});
}
template <Operand operand>
TANDEM_SIM_INLINE float unpack_high(std::uint32_t word) {
  return unpack_low<operand>(word >> 16);
}

// ---- Global memory
TANDEM_SIM_INLINE void store_global(void* address, const std::uint32_t (&words)[4]) {
  sim::store_global(address, words, sizeof words);
}
template <int count>
TANDEM_SIM_INLINE void store_kept(void* address, const std::uint32_t (&words)[count]) {  // there is no L2
  static_assert(count == 1 || count == 2 || count == 4);
  sim::store_global(address, words, sizeof words);
}
TANDEM_SIM_INLINE void store_global(float* address, float value) {
  sim::store_global(address, &value, sizeof value);
}

TANDEM_SIM_INLINE void store_global(std::uint32_t* address, std::uint32_t value) {
  sim::store_global(address, &value, sizeof value);
}
TANDEM_SIM_INLINE void store_global(std::uint16_t* address, std::uint16_t value) {
  sim::store_global(address, &value, sizeof value);
}
TANDEM_SIM_INLINE float load_global(const float* address) {
  float value;
  sim::load_global(&value, address, sizeof value);
  return value;
}
TANDEM_SIM_INLINE std::uint32_t load_global(const std::uint32_t* address) {
  std::uint32_t value;
  sim::load_global(&value, address, sizeof value);
  return value;
}
TANDEM_SIM_INLINE std::int32_t load_global(const std::int32_t* address) {
  std::int32_t value;
  sim::load_global(&value, address, sizeof value);
  return value;
}
TANDEM_SIM_INLINE void load_global(std::uint32_t (&words)[4], const void* address) {
  std::uint32_t own[4];
  sim::load_global(own, address, sizeof own);
  for (int i = 0; i < 4; ++i) words[i] = own[i];
}
TANDEM_SIM_INLINE std::uint32_t atomic_add(std::uint32_t* address, std::uint32_t value) {
  return sim::atomic_add(address, value);
}
TANDEM_SIM_INLINE std::uint32_t take_number(std::uint32_t* counter) { return sim::take_number(counter); }
TANDEM_SIM_INLINE void signal_counter(std::uint32_t* counter) { sim::signal_counter(counter); }
TANDEM_SIM_INLINE void wait_counter(const std::uint32_t* counter, std::uint32_t value) {
  sim::wait_counter(counter, value);
}

// ---- Neighbouring grids: a launch is alone, and may have to act as if it were not.
TANDEM_SIM_INLINE void wait_for_prior_grid() { sim::wait_for_prior_grid(); }
TANDEM_SIM_INLINE void release_next_grid() { sim::release_next_grid(); }

}  // namespace tandem::hw

#undef TANDEM_SIM_INLINE
