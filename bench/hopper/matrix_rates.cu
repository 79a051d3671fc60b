#include <algorithm>
#include <cuda_runtime.h>
#include <span>
#include <stdexcept>
#include <utility>

#include "bench/hopper/matrix_programs.h"
#include "bench/hopper/matrix_rates.h"

namespace tandem::bench {
namespace {

constexpr auto table = matrix_programs();

// Named by its place in the table, as the forward's trampoline.
template <std::size_t index>
__global__ void __launch_bounds__(table.programs[index].threads(), 1)
    matrix_trampoline(const __grid_constant__ MatrixRun run) {
  run_program<table.programs[index]>(run);
}

struct Kernel {
  const void* function;
  std::size_t shared_bytes;
};

template <std::size_t... i>
auto make_kernels(std::index_sequence<i...>) {
  return std::array{Kernel{reinterpret_cast<const void*>(&matrix_trampoline<i>),
                           sizeof(MatrixStorage<table.programs[i]>)}...};
}

void require(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(call) + " failed: " + cudaGetErrorString(error));
}

class Event {
 public:
  Event() { require(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void record() { require(cudaEventRecord(event_), "cudaEventRecord"); }
  float milliseconds_since(const Event& begin) const {
    require(cudaEventSynchronize(event_), "a kernel");
    float milliseconds = 0;
    require(cudaEventElapsedTime(&milliseconds, begin.event_, event_), "cudaEventElapsedTime");
    return milliseconds;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

class Results {
 public:
  explicit Results(std::size_t count) { require(cudaMalloc(&memory_, count * sizeof(float)), "cudaMalloc"); }
  ~Results() { cudaFree(memory_); }
  Results(const Results&) = delete;
  Results& operator=(const Results&) = delete;
  float* data() const { return static_cast<float*>(memory_); }

 private:
  void* memory_ = nullptr;
};

int multiprocessors() {
  int device = 0, count = 0;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

/// Rounds that take the fastest instruction about half a millisecond.
int rounds_of(const MatrixProgram& program) {
  constexpr double flops = 4e9;  // of a multiprocessor
  return static_cast<int>(flops / (program.flops() * program.agents() * MatrixProgram::unrolled)) + 1;
}

/// One launch on every multiprocessor, in milliseconds.
double time_launch(const MatrixProgram& program, const Kernel& kernel, int blocks, MatrixRun run) {
  require(cudaFuncSetAttribute(kernel.function, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kernel.shared_bytes)),
          "cudaFuncSetAttribute");
  void* parameters[] = {&run};
  Event begin, end;
  begin.record();
  require(cudaLaunchKernel(kernel.function, dim3(static_cast<unsigned>(blocks)),
                           dim3(static_cast<unsigned>(program.threads())), parameters, kernel.shared_bytes,
                           nullptr),
          "cudaLaunchKernel");
  end.record();
  return end.milliseconds_since(begin);
}

/// Median of some launches, after others that nobody counts.
double time_program(const MatrixProgram& program, const Kernel& kernel, int blocks, const MatrixRun& run) {
  constexpr int warmup = 2, runs = 7;
  std::vector<double> times;
  for (int i = 0; i < warmup; ++i) time_launch(program, kernel, blocks, run);
  for (int i = 0; i < runs; ++i) times.push_back(time_launch(program, kernel, blocks, run));
  std::nth_element(times.begin(), times.begin() + runs / 2, times.end());
  return times[runs / 2];
}

/// Until the clock has left its idle state.
void warm_up(const Kernel& kernel, int blocks, float* results) {
  constexpr double enough_ms = 300;
  const MatrixProgram& program = table.programs[0];
  for (double ms = 0; ms < enough_ms;) {
    ms += time_launch(program, kernel, blocks, {rounds_of(program), hw::Accumulate::add, results});
  }
}

/// mma.sync always adds.
std::span<const hw::Accumulate> sums_of(const MatrixProgram& program) {
  static constexpr hw::Accumulate sums[] = {hw::Accumulate::add, hw::Accumulate::overwrite};
  return std::span(sums).first(program.is_wgmma() ? 2 : 1);
}

MatrixRate describe(const MatrixProgram& program, hw::Accumulate accumulate) {
  static constexpr const char* forms[] = {"ss", "rs", "registers", "load_a", "load_ab"};
  const auto number = [](int value) { return std::to_string(value); };
  return {program.is_wgmma() ? "wgmma" : "mma",
          program.operand == hw::Operand::bf16 ? "bf16" : "e4m3",
          "m" + number(program.m()) + "n" + number(program.n) + "k" + number(program.k()),
          forms[static_cast<int>(program.form)],
          accumulate == hw::Accumulate::add ? "add" : "overwrite",
          program.warpgroups};
}

}  // namespace

std::string why_no_matrix_rates() {
  int count = 0, device = 0, major = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return "there is no Hopper GPU here";
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
          "cudaDeviceGetAttribute");
  if (major == 9) return "";
  return "there is no Hopper GPU here; the current device has compute capability " + std::to_string(major) +
         ".x";
}

std::size_t matrix_rates() {
  std::size_t count = 0;
  for (std::size_t i = 0; i < table.count; ++i) count += sums_of(table.programs[i]).size();
  return count;
}

std::vector<MatrixRate> measure_matrix_rates(
    const std::function<void(std::size_t, const std::string&)>& before) {
  static const auto kernels = make_kernels(std::make_index_sequence<table.count>());
  const int blocks = multiprocessors();
  const Results results(static_cast<std::size_t>(blocks) * 512);
  warm_up(kernels[0], blocks, results.data());
  std::vector<MatrixRate> rates;
  for (std::size_t i = 0; i < table.count; ++i) {
    const MatrixProgram& program = table.programs[i];
    const int rounds = rounds_of(program);
    const double instructions =
        static_cast<double>(rounds) * MatrixProgram::unrolled * program.agents() * blocks;
    for (const hw::Accumulate accumulate : sums_of(program)) {
      MatrixRate rate = describe(program, accumulate);
      before(rates.size(), rate.dtype + " " + rate.shape + " " + rate.form);
      rate.ms = time_program(program, kernels[i], blocks, {rounds, accumulate, results.data()});
      rate.tflops = program.flops() * instructions / rate.ms * 1e-9;
      rates.push_back(rate);
    }
  }
  return rates;
}

}  // namespace tandem::bench
