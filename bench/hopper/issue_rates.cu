// How fast a scheduler issues the softmax's instructions, alone and beside running WGMMAs, and what the
// WGMMAs lose by it: experiment E0 of docs/performance/issue-rates.md. Prints CSV: cycles of an instruction
// of one warp a scheduler, and of an m64n128 product of one warpgroup beside it.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cuda_runtime.h>
#include <utility>
#include <vector>

#include "bench/hopper/matrix_programs.h"

namespace tandem::bench {
namespace {

enum class Instruction {
  none,
  fma,
  add,
  max,
  exp2,
  to_fp16,
  to_e4m3,
  to_bytes,
  fma_fp16,
  max3,
  max3_halves,
  select,
  shuffle
};
enum class Product { none, bf16_ss, bf16_rs, e4m3_ss, e4m3_rs, e4m3_ss_fp16, int8_ss };
constexpr int instructions = 13, products = 7;
constexpr const char* instruction_names[] = {
    "none",          "fma.f32",   "add.f32",  "max.f32",    "ex2.f32", "cvt.f16x2", "2 cvt.e4m3x2",
    "2 cvt.pack.u8", "fma.f16x2", "max3.s32", "max3.s16x2", "prmt",    "shfl"};
constexpr const char* product_names[] = {"none",    "bf16 ss",         "bf16 rs", "e4m3 ss",
                                         "e4m3 rs", "e4m3 ss to fp16", "int8 ss"};

/// Of the words of two chains; some verbs are two instructions.
template <Instruction i>
TANDEM_DEVICE std::uint32_t step(std::uint32_t x, std::uint32_t y) {
  const float f = __uint_as_float(x), g = __uint_as_float(y);
  if constexpr (i == Instruction::fma) return __float_as_uint(hw::fma(f, 0.999f, g));
  if constexpr (i == Instruction::add) return __float_as_uint(f + g);
  if constexpr (i == Instruction::max) return __float_as_uint(hw::max(f, g));
  if constexpr (i == Instruction::exp2) return __float_as_uint(hw::exp2(f));
  if constexpr (i == Instruction::to_fp16) return hw::pack<hw::Operand::fp16>(f, g);
  if constexpr (i == Instruction::to_e4m3) return hw::pack_e4m3(f, g, f, g);
  if constexpr (i == Instruction::to_bytes) return hw::pack_bytes(f, g, f, g);
  if constexpr (i == Instruction::fma_fp16) return hw::fma_fp16(x, y, x);
  if constexpr (i == Instruction::max3) return __float_as_uint(hw::max_of_bits(f, g, 1.f));
  if constexpr (i == Instruction::max3_halves) return hw::max_of_halves(x, y, 0x3c003c00u);
  if constexpr (i == Instruction::select) return hw::select_bytes<0x6420>(x, y);
  if constexpr (i == Instruction::shuffle) return hw::shuffle_xor(x, 1);
  return x;
}

using Tiles = MatrixStorage<MatrixProgram{Form::ss, hw::Operand::e4m3, 128, 1}>;

template <Product p>
TANDEM_DEVICE void start(float (&d)[64], const std::uint32_t (&fragment)[4], const Tiles& tiles, int k_step) {
  constexpr auto add = hw::Accumulate::add;
  const hw::MatrixDescriptor a = tiles.a[0].k_major(k_step), b = tiles.b.k_major(k_step);
  if constexpr (p == Product::bf16_ss) hw::wgmma_ss<hw::Operand::bf16, 128, hw::Major::k>(d, a, b, add);
  if constexpr (p == Product::bf16_rs)
    hw::wgmma_rs<hw::Operand::bf16, 128, hw::Major::k>(d, fragment, b, add);
  if constexpr (p == Product::e4m3_ss) hw::wgmma_ss<hw::Operand::e4m3, 128, hw::Major::k>(d, a, b, add);
  if constexpr (p == Product::e4m3_rs)
    hw::wgmma_rs<hw::Operand::e4m3, 128, hw::Major::k>(d, fragment, b, add);
  if constexpr (p == Product::e4m3_ss_fp16)
    hw::wgmma_ss_fp16<128>(reinterpret_cast<std::uint32_t(&)[32]>(d), a, b, add);
  if constexpr (p == Product::int8_ss) hw::wgmma_ss<hw::Operand::int8, 128, hw::Major::k>(d, a, b, add);
}

/// What a block has measured.
struct Cycles {
  long long of_instructions, instructions, of_products, products;
};

struct Shared {
  Tiles tiles;
  volatile int done, seen;
};

/// Warpgroup 0: products until the other is done, or `rounds` times eight where there is no other.
template <Product p>
TANDEM_DEVICE std::uint32_t multiply(Shared& shared, bool alone, int rounds, Cycles& cycles) {
  float d[64] = {};
  std::uint32_t fragment[4];
  for (std::uint32_t i = 0; i < 4; ++i)
    fragment[i] = some_numbers<hw::Operand::e4m3>(4 * hw::thread_index() + i);
  const long long begin = clock64();
  long long count = 0;
  bool ends = false;
  do {
    hw::wgmma_fence();
    TANDEM_UNROLL
    for (int i = 0; i < 8; ++i) start<p>(d, fragment, shared.tiles, i % 4);
    hw::wgmma_commit();
    hw::wgmma_wait<1>();
    count += 8;
    if (alone) {
      ends = count >= 8ll * rounds;
    } else if (count % 64 == 0) {  // all warps see the same
      if (hw::thread_index() == 0) shared.seen = shared.done;
      hw::sync_named(1, hw::warpgroup_size);
      ends = shared.seen != 0;
      hw::sync_named(1, hw::warpgroup_size);
    }
  } while (!ends);
  hw::wgmma_wait<0>();
  if (hw::thread_index() == 0) cycles.of_products = clock64() - begin, cycles.products = count;
  float sum = 0;
  TANDEM_UNROLL
  for (const float x : d) sum += x;
  return __float_as_uint(sum);
}

/// Warpgroup 1: independent chains, which hide the latency.
template <Instruction i>
TANDEM_DEVICE std::uint32_t issue(Shared& shared, int rounds, Cycles& cycles) {
  constexpr int chains = 16;
  std::uint32_t x[chains];
  for (int c = 0; c < chains; ++c)
    x[c] = 0x3c003c00u + hw::thread_index() + 77u * static_cast<std::uint32_t>(c);
  const long long begin = clock64();
#pragma unroll 1
  for (int r = 0; r < rounds; ++r) {
    TANDEM_UNROLL
    for (int c = 0; c < 4 * chains; ++c) x[c % chains] = step<i>(x[c % chains], x[(c + 5) % chains]);
  }
  const long long end = clock64();
  if (hw::thread_index() == hw::warpgroup_size) {
    cycles.of_instructions = end - begin, cycles.instructions = 4ll * chains * rounds;
    shared.done = 1;
  }
  std::uint32_t all = 0;
  for (const std::uint32_t word : x) all ^= word;
  return all;
}

template <Instruction i, Product p>
__global__ void __launch_bounds__(256, 1)
    measured_kernel(int rounds, Cycles* cycles, std::uint32_t* results) {
  auto& shared = hw::shared_memory<Shared>();
  auto* words = reinterpret_cast<std::uint32_t*>(&shared.tiles);
  for (std::uint32_t n = hw::thread_index(); n < sizeof(Tiles) / 4; n += 256) {
    words[n] = p == Product::bf16_ss || p == Product::bf16_rs ? some_numbers<hw::Operand::bf16>(n)
                                                              : some_numbers<hw::Operand::e4m3>(n);
  }
  if (hw::thread_index() == 0) shared.done = 0;
  hw::fence_async_proxy();
  hw::sync_block();
  std::uint32_t result = 0;
  if (hw::warpgroup_index() == 0) {
    if constexpr (p != Product::none)
      result = multiply<p>(shared, i == Instruction::none, rounds, cycles[hw::block_index()]);
  } else if constexpr (i != Instruction::none) {
    result = issue<i>(shared, rounds, cycles[hw::block_index()]);
  }
  hw::store_global(results + hw::block_index() * 256 + hw::thread_index(), result);
}

void require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}

/// Medians of five launches, on all multiprocessors, of what one of them took.
template <Instruction i, Product p>
void measure(int blocks, Cycles* cycles, std::uint32_t* results) {
  constexpr int launches = 5, rounds = 1000;
  const auto kernel = measured_kernel<i, p>;
  require(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
          "attribute");
  std::vector<double> of_instruction, of_product;
  for (int n = 0; n < launches; ++n) {
    require(cudaMemset(cycles, 0, static_cast<std::size_t>(blocks) * sizeof(Cycles)), "cudaMemset");
    kernel<<<blocks, 256, sizeof(Shared)>>>(rounds, cycles, results);
    Cycles own{};
    require(cudaMemcpy(&own, cycles + blocks / 2, sizeof own, cudaMemcpyDeviceToHost), "a kernel");
    of_instruction.push_back(own.instructions > 0 ? static_cast<double>(own.of_instructions) /
                                                        static_cast<double>(own.instructions)
                                                  : 0);
    of_product.push_back(
        own.products > 0 ? static_cast<double>(own.of_products) / static_cast<double>(own.products) : 0);
  }
  const auto median = [](std::vector<double>& x) {
    std::nth_element(x.begin(), x.begin() + launches / 2, x.end());
    return x[launches / 2];
  };
  std::printf("%s,%s,%.2f,%.1f\n", instruction_names[static_cast<int>(i)], product_names[static_cast<int>(p)],
              median(of_instruction), median(of_product));
}

template <std::size_t... n>
void measure_all(std::index_sequence<n...>) {
  int device = 0, blocks = 0;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&blocks, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  Cycles* cycles = nullptr;
  std::uint32_t* results = nullptr;
  require(cudaMalloc(&cycles, static_cast<std::size_t>(blocks) * sizeof(Cycles)), "cudaMalloc");
  require(cudaMalloc(&results, static_cast<std::size_t>(blocks) * 1024), "cudaMalloc");
  std::printf("instruction,beside,cycles,product_cycles\n");
  (measure<static_cast<Instruction>((n + 1) / products), static_cast<Product>((n + 1) % products)>(
       blocks, cycles, results),
   ...);
}

}  // namespace
}  // namespace tandem::bench

int main() {
  tandem::bench::measure_all(
      std::make_index_sequence<tandem::bench::instructions * tandem::bench::products - 1>());
}
