// The verbs: all that a kernel may ask of the machine. One contract, two machines.
//
// `sm90/` implements each verb in inline PTX, `sim/` in software (docs/simulator.md), so that a kernel is an
// ordinary function template that nvcc and g++ both compile. A kernel sees this header and nothing below it.
//
// Agents: a verb is executed by one thread unless it says "warp" (all 32 lanes, converged) or "warpgroup"
// (four consecutive warps starting at a multiple of four, converged). PTX references are sections of
// https://docs.nvidia.com/cuda/parallel-thread-execution/
#pragma once

#include <cstdint>

#include "hw/types.h"

#if defined(__CUDACC__)
#define TANDEM_DEVICE __device__ __forceinline__
#define TANDEM_UNROLL _Pragma("unroll")
#define TANDEM_DONT_UNROLL _Pragma("unroll 1")
#else
#define TANDEM_DEVICE inline
#define TANDEM_UNROLL
#define TANDEM_DONT_UNROLL
#endif

namespace tandem::hw {

// ---- Who am I

TANDEM_DEVICE std::uint32_t thread_index();  ///< in the block
/// The same, found out where it is asked for: the compiler keeps nothing that follows from it. PTX mov %tid.
TANDEM_DEVICE std::uint32_t thread_index_anew();
TANDEM_DEVICE std::uint32_t lane_index();       ///< in the warp
TANDEM_DEVICE std::uint32_t warp_index();       ///< in the block; the compiler sees it as warp-uniform
TANDEM_DEVICE std::uint32_t warpgroup_index();  ///< in the block; warp-uniform
/// Warp: the same, found out where it is asked for: the compiler keeps nothing that follows from it, and yet
/// knows that the warp agrees. Without the shuffle of warpgroup_index(), which queues for shared memory. PTX
/// redux.sync.min.
TANDEM_DEVICE std::uint32_t warpgroup_index_anew();
TANDEM_DEVICE std::uint32_t block_index();  ///< in the grid (one-dimensional)
TANDEM_DEVICE std::uint32_t grid_size();    ///< blocks in the grid
/// Warp: true in exactly one lane. PTX elect.sync.
TANDEM_DEVICE bool elect_one();
/// Names the calling thread's role in reports and timelines of the simulator; nothing on the chip.
TANDEM_DEVICE void set_role(const char* name);

// ---- Registers

/// All warps of the warpgroup, synchronised before they change their registers once more: gives registers
/// back to the block's pool, down to `count` a thread. PTX setmaxnreg.dec.
template <int count>
TANDEM_DEVICE void release_registers();
/// The same: takes registers from the pool, which has what the block's warpgroups have released, waiting
/// until there are enough. PTX setmaxnreg.inc.
template <int count>
TANDEM_DEVICE void acquire_registers();

// ---- Shared memory

/// The block's dynamic shared memory, all of it, as one struct aligned to 1024 bytes.
template <typename Layout>
TANDEM_DEVICE Layout& shared_memory();
/// Address of an object in the block's shared window, as descriptors and PTX take it.
TANDEM_DEVICE std::uint32_t shared_address(const void* object);
/// Orders the thread's ordinary shared-memory accesses before later ones of TMA and WGMMA (the async proxy).
/// PTX fence.proxy.async.shared::cta.
TANDEM_DEVICE void fence_async_proxy();
/// The same of global memory: what the thread knows of it is ordered before the asynchronous copies, stores
/// and reductions that it starts from here on. PTX fence.proxy.async.global.
TANDEM_DEVICE void fence_async_proxy_global();

// ---- Barriers

/// Block: all threads. PTX barrier.sync 0.
TANDEM_DEVICE void sync_block();
/// Warp: waits for all 32 lanes and orders their memory accesses. Lanes that leave a barrier_wait are not
/// together by themselves. PTX bar.warp.sync.
TANDEM_DEVICE void sync_warp();
/// Waits until `threads` threads (whole warps) have come to named barrier `id` (1-15). PTX barrier.sync.
TANDEM_DEVICE void sync_named(std::uint32_t id, std::uint32_t threads);
/// The same, and whether the predicate holds in any of the threads, all of which have to ask. PTX
/// barrier.red.or.
TANDEM_DEVICE bool sync_named_any(std::uint32_t id, std::uint32_t threads, bool predicate);
/// Comes to named barrier `id` without waiting. PTX barrier.arrive.
TANDEM_DEVICE void arrive_named(std::uint32_t id, std::uint32_t threads);

/// One thread, before any use: phase 0 completes after `arrivals` arrivals and all expected bytes. PTX
/// mbarrier.init.
TANDEM_DEVICE void barrier_init(Barrier& barrier, std::uint32_t arrivals);
/// Makes the thread's barrier_init visible to the async proxy; a block barrier has to follow. PTX
/// fence.mbarrier_init.
TANDEM_DEVICE void fence_barrier_init();
/// One arrival. Release. PTX mbarrier.arrive.
TANDEM_DEVICE void barrier_arrive(Barrier& barrier);
/// One arrival, and the current phase waits for `bytes` more of TMA. PTX mbarrier.arrive.expect_tx.
TANDEM_DEVICE void barrier_arrive_expecting(Barrier& barrier, std::uint32_t bytes);
/// Waits until the phase of parity `parity` has completed. A barrier's first phase has parity 0; waiting for
/// parity 1 on a fresh barrier returns at once. Acquire. PTX mbarrier.try_wait.parity.
TANDEM_DEVICE void barrier_wait(Barrier& barrier, std::uint32_t parity);

// ---- TMA

/// Fetches a tensor map ahead of its first use. PTX prefetch.tensormap.
TANDEM_DEVICE void prefetch_map(const TensorMap& map);
/// Starts bringing the box at `origin` into L2; a hint. PTX cp.async.bulk.prefetch.tensor.4d.
TANDEM_DEVICE void prefetch_box(const TensorMap& map, BoxOrigin origin);
/// A policy for the copies below: made once, it serves all of them. PTX createpolicy.
TANDEM_DEVICE L2Policy l2_policy(CachePolicy policy);
/// Starts copying the box at `origin` from global into shared memory at `destination` (aligned to 128), in
/// the map's swizzle, which goes by shared addresses; zeros for what is out of bounds; its full size in bytes
/// arrives at `barrier`. PTX cp.async.bulk.tensor.4d.
TANDEM_DEVICE void load_box(void* destination, const TensorMap& map, Barrier& barrier, BoxOrigin origin,
                            L2Policy policy = {});
/// The same of packed rows. PTX cp.async.bulk.tensor.5d.
TANDEM_DEVICE void load_box(void* destination, const TensorMap& map, Barrier& barrier, PackedOrigin origin,
                            L2Policy policy = {});
/// Starts copying `bytes` bytes (a multiple of 16) from `global` to `shared` (both aligned to 16), which
/// arrive at `barrier`. PTX cp.async.bulk.
TANDEM_DEVICE void copy_in(void* shared, const void* global, std::uint32_t bytes, Barrier& barrier);

/// Starts copying a box from shared memory at `source` (aligned to 128, in the map's swizzle) to `origin` in
/// global memory; no coordinate may be negative, and elements out of bounds are not written. Ordinary stores
/// to the source need fence_async_proxy before; the source is free, and the box written, as the waits below
/// say. Nothing orders stores among each other. PTX cp.async.bulk.tensor.4d.global.shared::cta.
TANDEM_DEVICE void store_box(const TensorMap& map, BoxOrigin origin, const void* source,
                             L2Policy policy = {});
TANDEM_DEVICE void store_box(const TensorMap& map, PackedOrigin origin, const void* source,
                             L2Policy policy = {});
/// The same, adding to what is there, atomically for each element; of fp32 maps. In which order the adds of
/// several stores come is open. PTX cp.reduce.async.bulk.tensor.4d, .add.
TANDEM_DEVICE void reduce_add_box(const TensorMap& map, BoxOrigin origin, const void* source);
/// Closes the group of stores that the thread has started since its last commit. PTX
/// cp.async.bulk.commit_group.
TANDEM_DEVICE void commit_stores();
/// Waits until at most `pending` of the thread's groups of stores still read shared memory. What others may
/// overwrite for it goes on through barriers. A thread may not end before. PTX cp.async.bulk.wait_group.read.
template <int pending>
TANDEM_DEVICE void wait_stores_read();
/// Waits until at most `pending` of the thread's groups of stores are unfinished; the thread sees what the
/// others have written. PTX cp.async.bulk.wait_group.
template <int pending>
TANDEM_DEVICE void wait_stores();

// ---- WGMMA

// D (64 x n, fp32 in registers) = A (64 x 16) B (16 x n) [+ D]. PTX wgmma.mma_async, m64nNk16. Thread t of
// the warpgroup (warp w = t / 32, lane l = t % 32) holds in accumulators[4 * j + 2 * i + c] the row
// 16 * w + l / 4 + 8 * i, column 8 * j + 2 * (l % 4) + c; and in the A fragment register 2 * h + i the
// columns 8 * h + 2 * (l % 4) + {0, 1} (low half first) of row 16 * w + l / 4 + 8 * i. Of 8-bit types K is
// 32, both operands are K-major, and that register holds columns 16 * h + 4 * (l % 4) + {0 ... 3}. Of int8 D
// is s32, exact but for what leaves 32 bits, in the bits of the floats; A is in shared memory.

/// Warpgroup: orders register accesses before later WGMMAs. Needed before the first and whenever registers
/// that a WGMMA reads or writes were touched. PTX wgmma.fence.
TANDEM_DEVICE void wgmma_fence();
/// Warpgroup: closes the group of WGMMAs started since the last commit. PTX wgmma.commit_group.
TANDEM_DEVICE void wgmma_commit();
/// Warpgroup: waits until at most `pending` of its groups are in flight. PTX wgmma.wait_group.
template <int pending>
TANDEM_DEVICE void wgmma_wait();
/// Steers the compiler: `value` is computed before any later wait is issued, so that the work behind it
/// overlaps with what is in flight. ptxas moves waits up across arithmetic, but not across a store; this one
/// never executes, if `value` is a result of arithmetic. `witness` is any object in shared memory.
TANDEM_DEVICE void compute_before_wait(float value, Barrier& witness);

/// Warpgroup: A and B from shared memory. "SS".
template <Operand operand, int n, Major b_major, Major a_major = Major::k>
TANDEM_DEVICE void wgmma_ss(float (&accumulators)[n / 2], MatrixDescriptor a, MatrixDescriptor b,
                            Accumulate accumulate);
/// Warpgroup: the same of e4m3, with D in fp16: accumulators[2 * j + i] has what of fp32 would be [4 * j + 2
/// * i] in its low half and [4 * j + 2 * i + 1] in the high one. The sum of an instruction is rounded
/// to fp16 once.
template <int n>
TANDEM_DEVICE void wgmma_ss_fp16(std::uint32_t (&accumulators)[n / 4], MatrixDescriptor a, MatrixDescriptor b,
                                 Accumulate accumulate);
/// Warpgroup: A from registers, B from shared memory. "RS".
template <Operand operand, int n, Major b_major>
TANDEM_DEVICE void wgmma_rs(float (&accumulators)[n / 2], const std::uint32_t (&a)[4], MatrixDescriptor b,
                            Accumulate accumulate);

// ---- Matrices of a warp

// In these verbs a matrix is 8 x 8 elements of 16 bits, one register of each lane: lane l holds columns
// 2 * (l % 4) + {0, 1} of row l / 4, low half first.

/// Warp: D (16 x 8, fp32) += A (16 x 16) B (16 x 8). Lane l holds in d[2 * i + c] row l / 4 + 8 * i, column
/// 2 * (l % 4) + c; A as one warp of a warpgroup holds WGMMA's A fragment (above); in b[h] rows
/// 8 * h + 2 * (l % 4) + {0, 1} of column l / 4. PTX mma.sync, m16n8k16.
template <Operand operand>
TANDEM_DEVICE void mma_sync(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
/// Warp: `count` (1, 2 or 4) matrices from shared memory; lane l < 8 * count gives the address (a multiple of
/// 16) of row l % 8 of matrix l / 8, other lanes' addresses are not used. PTX ldmatrix.
template <int count>
TANDEM_DEVICE void load_matrices(std::uint32_t (&matrices)[count], const void* row);
/// Warp: the same, each matrix transposed on its way. PTX ldmatrix.trans.
template <int count>
TANDEM_DEVICE void load_matrices_transposed(std::uint32_t (&matrices)[count], const void* row);
/// Warp: `count` matrices to shared memory; addresses as for load_matrices. PTX stmatrix.
template <int count>
TANDEM_DEVICE void store_matrices(void* row, const std::uint32_t (&matrices)[count]);
/// Warp: the same, each matrix transposed on its way. PTX stmatrix.trans.
template <int count>
TANDEM_DEVICE void store_matrices_transposed(void* row, const std::uint32_t (&matrices)[count]);
/// Warp: a matrix transposed, between registers. PTX movmatrix.
TANDEM_DEVICE std::uint32_t transpose_matrix(std::uint32_t matrix);

// ---- Lanes

/// Warp: the value of lane `lane`, below 32; each lane may ask for another. PTX shfl.sync.idx.
TANDEM_DEVICE float shuffle(float value, std::uint32_t lane);
TANDEM_DEVICE std::uint32_t shuffle(std::uint32_t value, std::uint32_t lane);
/// Warp: the value of lane (own ^ mask). PTX shfl.sync.bfly.
TANDEM_DEVICE float shuffle_xor(float value, std::uint32_t mask);
TANDEM_DEVICE std::uint32_t shuffle_xor(std::uint32_t value, std::uint32_t mask);
/// Warp: whether the predicate holds in any lane. PTX vote.sync.any.
TANDEM_DEVICE bool any_lane(bool predicate);

// ---- Arithmetic

TANDEM_DEVICE float exp2(float x);        ///< 2^x, within 2 ulp, exp2(-inf) = 0. PTX ex2.approx.ftz
TANDEM_DEVICE float log2(float x);        ///< PTX lg2.approx.ftz
TANDEM_DEVICE float tanh(float x);        ///< within 1e-6 relative of the true value
TANDEM_DEVICE float reciprocal(float x);  ///< 1 / x, within 1 ulp. PTX rcp.approx.ftz
TANDEM_DEVICE float fma(float a, float b, float c);
TANDEM_DEVICE float max(float a, float b);
/// NaN where either is. PTX max.NaN.f32.
TANDEM_DEVICE float max_or_nan(float a, float b);
/// The maximum of three floats compared as signed integers, in one instruction (PTX max.s32, twice): the
/// maximum of the floats unless it is negative.
TANDEM_DEVICE float max_of_bits(float a, float b, float c);
/// The maximum of three words' halves, each compared as signed integers: of fp16 numbers the maximum unless
/// it is negative; NaN where one is (positive, as arithmetic makes it). PTX max.s16x2, twice.
TANDEM_DEVICE std::uint32_t max_of_int16(std::uint32_t a, std::uint32_t b, std::uint32_t c);
/// The maximum of two pairs of fp16; NaN where either is. PTX max.NaN.f16x2.
TANDEM_DEVICE std::uint32_t max_or_nan_fp16(std::uint32_t a, std::uint32_t b);
/// a * b + c of pairs of fp16, rounded to nearest even once. PTX fma.rn.f16x2.
TANDEM_DEVICE std::uint32_t fma_fp16(std::uint32_t a, std::uint32_t b, std::uint32_t c);
/// The same, clamped to 0 ... 1; NaN to 0. PTX fma.rn.sat.f16x2.
TANDEM_DEVICE std::uint32_t fma_fp16_saturated(std::uint32_t a, std::uint32_t b, std::uint32_t c);
/// Two floats rounded to nearest even, `low` in the lower half. PTX cvt.rn.{bf16x2,f16x2}.f32.
template <Operand operand>
TANDEM_DEVICE std::uint32_t pack(float low, float high);
/// Four floats as e4m3, the first in the lowest byte: rounded to nearest even, beyond 448 to 448, NaN to NaN
/// (0x7f). PTX cvt.rn.satfinite.e4m3x2.f32.
TANDEM_DEVICE std::uint32_t pack_e4m3(float x0, float x1, float x2, float x3);
/// Four e4m3 numbers as fp16, exactly: those of the two lowest bytes in pairs[0], of the others in pairs[1],
/// the lower byte's in the low half. PTX cvt.rn.f16x2.e4m3x2.
TANDEM_DEVICE void unpack_e4m3(std::uint32_t (&pairs)[2], std::uint32_t word);
/// Four int8 numbers as fp16, exactly: pairs[0] has those of the bytes that digits 0 and 1 of `order`
/// (hexadecimal, the lowest first) name, pairs[1] of digits 2 and 3. PTX prmt, add.f16x2.
template <std::uint32_t order>
TANDEM_DEVICE void unpack_int8(std::uint32_t (&pairs)[2], std::uint32_t word);
/// Four floats rounded to the nearest integer, to even in the middle, as bytes, the first the lowest: below 0
/// and NaN to 0, above 255 to 255. PTX cvt.rni.s32.f32, cvt.pack.sat.u8.s32.
TANDEM_DEVICE std::uint32_t pack_bytes(float x0, float x1, float x2, float x3);
/// Four floats rounded to the nearest integer, to even in the middle, as int8, the first the lowest: beyond
/// 127 to 127, below -127 to that, NaN to 0. PTX cvt.rni.s32.f32, cvt.pack.sat.s8.s32.
TANDEM_DEVICE std::uint32_t pack_int8(float x0, float x1, float x2, float x3);
/// Four bytes of two words: digit i of `selector` (hexadecimal, the lowest first) names byte i of the result,
/// 0-3 in `low`, 4-7 in `high`. PTX prmt.
template <std::uint32_t selector>
TANDEM_DEVICE std::uint32_t select_bytes(std::uint32_t low, std::uint32_t high);
/// The two elements of a word, exactly.
template <Operand operand>
TANDEM_DEVICE float unpack_low(std::uint32_t word);
template <Operand operand>
TANDEM_DEVICE float unpack_high(std::uint32_t word);

// ---- Global memory

/// 16 bytes at once; `address` is a multiple of 16. PTX st.global.
TANDEM_DEVICE void store_global(void* address, const std::uint32_t (&words)[4]);
/// 4, 8 or 16 bytes that somebody reads soon: L2 keeps them before others. PTX st.global.L2::cache_hint.
template <int count>
TANDEM_DEVICE void store_kept(void* address, const std::uint32_t (&words)[count]);
TANDEM_DEVICE void store_global(float* address, float value);
TANDEM_DEVICE void store_global(std::uint32_t* address, std::uint32_t value);
TANDEM_DEVICE void store_global(std::uint16_t* address, std::uint16_t value);
/// What the thread stored with store_global, and what it knows of other threads' stores by way of barriers
/// and atomics. PTX ld.global.
TANDEM_DEVICE float load_global(const float* address);
TANDEM_DEVICE std::uint32_t load_global(const std::uint32_t* address);
TANDEM_DEVICE std::int32_t load_global(const std::int32_t* address);
/// 16 bytes at once; `address` is a multiple of 16.
TANDEM_DEVICE void load_global(std::uint32_t (&words)[4], const void* address);
/// Adds and returns the old value. Release of all that the thread knows, acquire of what earlier ones at the
/// address released, between all blocks. PTX atom.acq_rel.gpu.
TANDEM_DEVICE std::uint32_t atomic_add(std::uint32_t* address, std::uint32_t value);
/// Adds 1 and returns the old value, and orders nothing else. PTX atom.relaxed.gpu.
TANDEM_DEVICE std::uint32_t take_number(std::uint32_t* counter);
/// Adds 1. Release of all that the thread knows, asynchronous stores that it has waited for (wait_stores)
/// too, for whoever waits for the counter. It takes as long as all that the multiprocessor has under way.
/// PTX red.release.gpu.
TANDEM_DEVICE void signal_counter(std::uint32_t* counter);
/// Waits until signal_counter has brought the counter to `value` or beyond. Acquire of what was released
/// there. Whoever adds must not need this block to end, for it may hold the multiprocessor until then. PTX
/// ld.acquire.gpu.
TANDEM_DEVICE void wait_counter(const std::uint32_t* counter, std::uint32_t value);

// ---- Neighbouring grids

// For launches with programmatic stream serialisation; others pass through both at once.

/// Waits until the grid before has ended and its stores are seen. PTX griddepcontrol.wait.
TANDEM_DEVICE void wait_for_prior_grid();
/// From here on the block does not hold up the start of the grid behind it. PTX
/// griddepcontrol.launch_dependents.
TANDEM_DEVICE void release_next_grid();

}  // namespace tandem::hw

#if defined(__CUDACC__)
#include "hw/sm90/verbs.h"
#else
#include "hw/sim/verbs.h"
#endif
