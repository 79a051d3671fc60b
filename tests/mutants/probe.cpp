// The host side of a probe: fixed problems, small enough for racecheck, and the tolerance rule.
//
// usage: probe REPEATS PATIENCE
//
// Every kernel runs every problem REPEATS times; with more than one also a problem that fills the chip. Exit
// code 0: all results are right and the same each time; 1: some are not; 2: CUDA reported an error; 3: a
// kernel did not end within PATIENCE seconds; 4: wrong usage.
#include "tests/mutants/probe.h"

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <unistd.h>
#include <vector>

#include "cpu/forward.h"
#include "forward/plan.h"
#include "tests/gpu/device.h"
#include "tests/support/compare.h"
#include "tests/support/forward_case.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

enum ExitCode { right = 0, wrong = 1, cuda_error = 2, hang = 3, usage = 4 };

/// A problem and the grid that it runs on: mostly fewer blocks than tiles, so that pipelines and turns go
/// round.
struct ProbeCase {
  ForwardCase problem;
  int blocks;
};

ProbeCase make_case(std::int64_t q_len, std::int64_t k_len, core::Mask mask, int head_dim, int blocks) {
  ProbeCase c{{}, blocks};
  c.problem.q_len = q_len;
  c.problem.k_len = k_len;
  c.problem.mask = mask;
  c.problem.head_dim = head_dim;
  c.problem.seed = static_cast<std::uint64_t>(q_len * 1000 + k_len);
  return c;
}

std::vector<ProbeCase> make_cases(int head_dim, bool busy) {
  const auto causal = core::Mask::causal();
  const core::Mask everything{2000, 2000}, window{50, 20};
  std::vector<ProbeCase> cases{
      make_case(300, 640, everything, head_dim, 2),    // several key blocks, more tiles than blocks
      make_case(300, 700, causal, head_dim, 2),        // blocks of all kinds
      make_case(77, 130, window, head_dim - 24, 1),    // ragged, and a head dim that is padded
      make_case(700, 100, causal, head_dim, 1),        // tiles that meet no key before one that does
      make_case(768, 0, causal, head_dim, 1),          // tiles that meet no key only
      make_case(128, 2000, everything, head_dim, 1)};  // many key blocks
  cases[0].problem.q_heads = 2;
  if (busy) {
    ProbeCase c = make_case(40, 300, everything, head_dim, 132);  // every multiprocessor, some of them twice
    c.problem.batch = 4;
    c.problem.q_heads = 40;
    c.problem.kv_heads = 8;
    cases.push_back(c);
  }
  return cases;
}

void give_up(int) {
  constexpr char text[] = "probe: hang\n";
  [[maybe_unused]] const auto written = write(STDOUT_FILENO, text, sizeof(text) - 1);
  _exit(hang);
}

/// Copies of a problem's tensors on the device, and the arguments that lead a kernel to them.
class Run {
 public:
  Run(ForwardTensors& host, const forward::ForwardVariant& variant, int blocks)
      : host_(host),
        blocks_(blocks),
        q_(host.q.storage()),
        k_(host.k.storage()),
        v_(host.v.storage()),
        o_(host.o.storage()),
        lse_(host.lse.storage()) {
    core::ForwardProblem problem = host.problem();
    problem.q = host.q.view_at(q_.data());
    problem.k = host.k.view_at(k_.data());
    problem.v = host.v.view_at(v_.data());
    problem.o = host.o.view_at(o_.data());
    problem.lse = host.lse.view_at(lse_.data());
    args_ = forward::make_arguments(problem, variant, blocks);
    const auto map = [](const core::Tensor& tensor, hw::BoxRows box) {
      return encode_map(hw::tensor_map_request(tensor, box));
    };
    const forward::MapBoxes boxes = forward::map_boxes(problem, variant);
    args_.q = map(problem.q, boxes.q);
    args_.o_boxes = map(problem.o, boxes.o);
    args_.k = problem.k_len() == 0 ? args_.q : map(problem.k, boxes.keys);
    args_.v = problem.k_len() == 0 ? args_.q : map(problem.v, boxes.keys);
  }

  /// One launch with poisoned outputs, which then are the host's.
  void once(const ProbeKernel& kernel, unsigned patience) {
    host_.o.poison();
    host_.lse.poison();
    o_.write(host_.o.storage());
    lse_.write(host_.lse.storage());
    alarm(patience);
    kernel.run(args_, blocks_);
    alarm(0);
    o_.read(host_.o.storage());
    lse_.read(host_.lse.storage());
  }

 private:
  ForwardTensors& host_;
  int blocks_;
  DeviceMemory q_, k_, v_, o_, lse_;
  forward::ForwardArguments args_{};
};

std::vector<std::byte> output_bytes(const ForwardTensors& tensors) {
  std::vector<std::byte> bytes(tensors.o.storage().begin(), tensors.o.storage().end());
  bytes.insert(bytes.end(), tensors.lse.storage().begin(), tensors.lse.storage().end());
  return bytes;
}

/// Values of all problems, judged together: few rows have too few rounding errors to be judged by their size.
struct Values {
  std::vector<double> result, standard, reference;

  void add(const std::vector<double>& r, const std::vector<double>& s, const std::vector<double>& f) {
    result.insert(result.end(), r.begin(), r.end());
    standard.insert(standard.end(), s.begin(), s.end());
    reference.insert(reference.end(), f.begin(), f.end());
  }
  bool within_tolerance(const char* name) const {
    const Comparison comparison = compare(result, standard, reference);
    if (!comparison) std::printf("probe: %s: %s\n", name, comparison.failure.c_str());
    return static_cast<bool>(comparison);
  }
};

/// A problem with the values that it should give.
struct Expected {
  explicit Expected(const ProbeCase& c)
      : setup(c),
        reference(cpu::reference_values(ForwardTensors(c.problem).problem())),
        standard(standard_forward(ForwardTensors(c.problem).problem())) {}

  ProbeCase setup;
  cpu::ReferenceValues reference;
  ForwardValues standard;
};

/// Whether all results of one kernel are right.
bool probe(const ProbeKernel& kernel, const std::vector<Expected>& problems, int repeats, unsigned patience) {
  Values o, lse;
  bool sound = true;
  for (const Expected& expected : problems) {
    ForwardTensors tensors(expected.setup.problem);
    Run run(tensors, kernel.variant, expected.setup.blocks);
    run.once(kernel, patience);
    const std::vector<std::byte> first = output_bytes(tensors);
    o.add(tensors.o.values(), expected.standard.o, expected.reference.o);
    lse.add(tensors.lse.values(), expected.standard.lse, expected.reference.lse);
    if (!tensors.o.guards_intact() || !tensors.lse.guards_intact()) {
      sound = false;
      std::puts("probe: cells outside of the outputs were written");
    }
    for (int i = 1; i < repeats; ++i) {
      run.once(kernel, patience);
      if (output_bytes(tensors) == first) continue;
      sound = false;
      std::puts("probe: the same problem gave other results");
      break;
    }
  }
  const bool o_right = o.within_tolerance("o"), lse_right = lse.within_tolerance("lse");
  return sound && o_right && lse_right;
}

int run_all(int repeats, unsigned patience) {
  std::signal(SIGALRM, give_up);
  bool all_right = true;
  std::vector<Expected> problems;
  for (const ProbeCase& c : make_cases(probe_kernels()[0].variant.head_dim, repeats > 1)) {
    problems.emplace_back(c);
  }
  for (const ProbeKernel& kernel : probe_kernels()) all_right &= probe(kernel, problems, repeats, patience);
  std::puts(all_right ? "probe: right" : "probe: wrong");
  return all_right ? right : wrong;
}

}  // namespace
}  // namespace tandem::test

int main(int argc, char** argv) {
  const int repeats = argc == 3 ? std::atoi(argv[1]) : 0, patience = argc == 3 ? std::atoi(argv[2]) : 0;
  if (repeats < 1 || patience < 1) {
    std::fputs("usage: probe REPEATS PATIENCE\n", stderr);
    return tandem::test::usage;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);  // what was said stays said if a kernel hangs
  try {
    return tandem::test::run_all(repeats, static_cast<unsigned>(patience));
  } catch (const std::exception& error) {
    std::printf("probe: CUDA error: %s\n", error.what());
    return tandem::test::cuda_error;
  }
}
