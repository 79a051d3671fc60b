// How much of the machine's fp32 peak the CPU backend reaches: both are measured here, taking turns.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "bench/cpu/peak_fma.h"
#include "core/dtype.h"
#include "cpu/backward.h"
#include "cpu/forward.h"
#include "cpu/parallel.h"

namespace {

using namespace tandem;

struct Options {
  tandem_dtype dtype = TANDEM_BF16;
  std::int64_t batch = 1, seq = 2048, q_heads = 16, kv_heads = 16, head_dim = 128;
  bool causal = false, backward = false;
  int repetitions = 20;
  std::string csv, commit;
};

/// Memory of a contiguous tensor with normally distributed elements.
std::vector<std::byte> normal_elements(tandem_dtype dtype, std::size_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<std::byte> memory(count * core::size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = normal(random);
    void* at = memory.data() + i * core::size_of(dtype);
    if (dtype == TANDEM_BF16) *static_cast<core::Bf16*>(at) = core::Bf16::from(value);
    if (dtype == TANDEM_FP16) *static_cast<core::Fp16*>(at) = core::Fp16::from(value);
    if (dtype == TANDEM_FP32) *static_cast<float*>(at) = value;
  }
  return memory;
}

/// All tensors of a forward and a backward call. o and lse come from the forward.
struct Tensors {
  std::vector<std::byte> q, k, v, o, lse, dout, dq, dk, dv;
  core::BackwardProblem problem{};

  explicit Tensors(const Options& options) {
    auto tensor = [&, seed = 0u](std::vector<std::byte>& memory, std::int64_t heads) mutable {
      const std::int64_t row = heads * options.head_dim;
      memory =
          normal_elements(options.dtype, static_cast<std::size_t>(options.batch * options.seq * row), ++seed);
      return core::Tensor{memory.data(),
                          options.dtype,
                          {options.batch, options.seq, heads, options.head_dim},
                          {options.seq * row, row, options.head_dim, 1}};
    };
    problem.q = tensor(q, options.q_heads);
    problem.k = tensor(k, options.kv_heads);
    problem.v = tensor(v, options.kv_heads);
    problem.o = tensor(o, options.q_heads);
    problem.dout = tensor(dout, options.q_heads);
    problem.dq = tensor(dq, options.q_heads);
    problem.dk = tensor(dk, options.kv_heads);
    problem.dv = tensor(dv, options.kv_heads);
    lse.resize(static_cast<std::size_t>(options.batch * options.seq * options.q_heads) * sizeof(float));
    problem.lse = {lse.data(),
                   TANDEM_FP32,
                   {options.batch, options.seq, options.q_heads, 1},
                   {options.seq * options.q_heads, options.q_heads, 1, 1}};
    problem.mask = options.causal ? core::Mask::causal() : core::Mask::full();
    problem.scale = 1.0f / std::sqrt(static_cast<float>(options.head_dim));
  }
};

/// Memory as workspaces have to be.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : memory_(bytes + alignment), data_(memory_.data()) {
    std::size_t space = memory_.size();
    std::align(alignment, bytes, data_, space);
  }
  void* data() { return data_; }

 private:
  static constexpr std::size_t alignment = 256;
  std::vector<std::byte> memory_;
  void* data_;
};

struct Rates {
  double peak = 0, call = 0;  // GFLOP/s, the best of all repetitions
};

double flops_of(const core::BackwardProblem& problem, bool backward) {
  return backward ? core::backward_flops(problem) : core::forward_flops(core::forward_of(problem));
}

Rates measure(const core::BackwardProblem& problem, const Options& options) {
  const core::ForwardProblem forward = core::forward_of(problem);
  Workspace workspace(std::max(cpu::forward_workspace(forward), cpu::backward_workspace(problem)));
  cpu::forward(forward, workspace.data());
  const double flops = flops_of(problem, options.backward);
  Rates best;
  for (int i = 0; i < options.repetitions; ++i) {
    best.peak = std::max(best.peak, bench::peak_fma_sample(cpu::thread_count()));
    const auto start = std::chrono::steady_clock::now();
    if (options.backward)
      cpu::backward(problem, workspace.data());
    else
      cpu::forward(forward, workspace.data());
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best.call = std::max(best.call, flops / seconds.count() * 1e-9);
  }
  return best;
}

std::string cpu_model() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

/// Appends a row, after the header if the file is new.
bool append_csv(const Options& o, const Rates& rates, double flops) {
  const bool is_new = !std::ifstream(o.csv).good();
  std::ofstream csv(o.csv, std::ios::app);
  if (is_new)
    csv << "kind,dtype,d,causal,b,hq,hk,sq,sk,ms_min,gflops,peak_gflops,percent,threads,simd,cpu,commit\n";
  csv << (o.backward ? "bwd," : "fwd,") << core::name_of(o.dtype) << ',' << o.head_dim << ',' << o.causal
      << ',' << o.batch << ',' << o.q_heads << ',' << o.kv_heads << ',' << o.seq << ',' << o.seq << ','
      << flops / rates.call * 1e-6 << ',' << rates.call << ',' << rates.peak << ','
      << 100 * rates.call / rates.peak << ',' << cpu::thread_count() << ',' << cpu::simd_name() << ','
      << cpu_model() << ',' << o.commit << '\n';
  return static_cast<bool>(csv.flush());
}

void add_options(CLI::App& app, Options& o) {
  const std::map<std::string, tandem_dtype> dtypes = {
      {"bf16", TANDEM_BF16}, {"fp16", TANDEM_FP16}, {"fp32", TANDEM_FP32}};
  app.add_option("--dtype", o.dtype, "element type")
      ->transform(CLI::CheckedTransformer(dtypes))
      ->default_str("bf16");
  app.add_option("--batch", o.batch)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seq", o.seq, "queries, and keys")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--q-heads", o.q_heads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--kv-heads", o.kv_heads)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--head-dim", o.head_dim, "a multiple of 8")
      ->check(CLI::Range(8, 256))
      ->capture_default_str();
  app.add_flag("--causal", o.causal);
  app.add_flag("--backward", o.backward, "the backward pass, with 2.5 times the forward's FLOPs");
  app.add_option("--repetitions", o.repetitions, "the best of them counts")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--csv", o.csv, "file to append a row to");
  app.add_option("--commit", o.commit, "commit to note in the row");
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Rate of Tandem's CPU backend beside the machine's own fp32 multiply-add peak.");
  add_options(app, options);
  CLI11_PARSE(app, argc, argv);
  if (options.head_dim % 8 != 0 || options.q_heads % options.kv_heads != 0) {
    std::fprintf(stderr, "--head-dim has to be a multiple of 8, and --q-heads one of --kv-heads\n");
    return 2;
  }
  const Tensors tensors(options);
  const Rates rates = measure(tensors.problem, options);
  const double flops = flops_of(tensors.problem, options.backward);
  std::printf("peak     %8.1f GFLOP/s  fp32 multiply-add, %s, %d threads\n", rates.peak, cpu::simd_name(),
              cpu::thread_count());
  std::printf("%-8s %8.1f GFLOP/s  %.2f ms, %.0f %% of the peak\n", options.backward ? "backward" : "forward",
              rates.call, flops / rates.call * 1e-6, 100 * rates.call / rates.peak);
  if (!options.csv.empty() && !append_csv(options, rates, flops)) {
    std::fprintf(stderr, "cannot write %s\n", options.csv.c_str());
    return 1;
  }
  return 0;
}
