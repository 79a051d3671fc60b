// What the inline verbs of verbs.h call: the machine's side, compiled once and not instrumented.
#pragma once

#include <cstdint>

#include "hw/types.h"

namespace tandem::hw::sim {

std::uint32_t thread_index();
std::uint32_t block_index();
std::uint32_t grid_size();
/// Notes that the whole warp does `what` now; lanes that do something else are a fault.
std::uint32_t converged_thread_index(const char* what);
bool elect_one();
void set_role(const char* name);

void release_registers(int count);
void acquire_registers(int count);

void* shared_memory(std::size_t bytes, std::size_t alignment);
std::uint32_t shared_address(const void* object);
void fence_async_proxy();
void fence_async_proxy_global();

void sync_warp();
void sync_named(std::uint32_t id, std::uint32_t threads);  ///< threads 0: the block's
bool sync_named_any(std::uint32_t id, std::uint32_t threads, bool predicate);
void arrive_named(std::uint32_t id, std::uint32_t threads);

void barrier_init(Barrier& barrier, std::uint32_t arrivals);
void fence_barrier_init();
void barrier_arrive(Barrier& barrier);
void barrier_arrive_expecting(Barrier& barrier, std::uint32_t bytes);
void barrier_wait(Barrier& barrier, std::uint32_t parity);

void prefetch_map(const TensorMap& map);
void load_box(void* destination, const TensorMap& map, Barrier& barrier, const BoxCoordinates& origin);
void copy_in(void* shared, const void* global, std::uint32_t bytes, Barrier& barrier);
void store_box(const TensorMap& map, const BoxCoordinates& origin, const void* source);
void reduce_add_box(const TensorMap& map, const BoxCoordinates& origin, const void* source);
void commit_stores();
void wait_stores_read(int pending);
void wait_stores(int pending);

/// One WGMMA as a thread sees it.
struct Product {
  Operand operand;
  int n;
  Major a_major, b_major;
  bool a_in_registers;
  Accumulate accumulate;
  MatrixDescriptor a, b;  ///< a: unused where A is in registers
  bool fp16_sums = false;

  int accumulator_words() const { return fp16_sums ? n / 4 : n / 2; }
};
void wgmma_fence();
void wgmma_commit();
void wgmma_wait(int pending);
/// accumulators: of type float, or words of two fp16 sums.
void wgmma(const Product& product, void* accumulators, const std::uint32_t* a_fragment);

/// D of a lane after its warp's mma.sync.
void mma_sync(Operand operand, float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
/// One way of ldmatrix and stmatrix.
struct MatrixMove {
  int count;
  bool transposed;
};
void load_matrices(MatrixMove move, std::uint32_t* matrices, const void* row);
void store_matrices(MatrixMove move, void* row, const std::uint32_t* matrices);
std::uint32_t transpose_matrix(std::uint32_t matrix);

bool any_lane(bool predicate);
std::uint32_t shuffle(std::uint32_t value, std::uint32_t lane);
std::uint32_t shuffle_xor(std::uint32_t value, std::uint32_t mask);

void store_global(void* address, const void* data, std::size_t bytes);
void load_global(void* data, const void* address, std::size_t bytes);
std::uint32_t atomic_add(std::uint32_t* address, std::uint32_t value);
std::uint32_t take_number(std::uint32_t* counter);
void signal_counter(std::uint32_t* counter);
void wait_counter(const std::uint32_t* counter, std::uint32_t value);

void wait_for_prior_grid();
void release_next_grid();

}  // namespace tandem::hw::sim
