#include "tests/gpu/device_backward.h"

#include <algorithm>
#include <sstream>

#include "backward/launch.h"
#include "cpu/backward.h"
#include "tests/support/compare.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

/// Different rows with gradients that are more than zeros, of queries and of keys, whichever are fewer.
std::int64_t rows_that_count(const BackwardCase& c) {
  const backward::Cropped cropped = backward::crop(shapes_of(c));
  const core::BackwardProblem& p = cropped.problem;
  if (cropped.empty()) return 0;
  return p.batch() * std::min(p.q_len() * p.q_heads(), p.k_len() * p.kv_heads());
}

constexpr std::int64_t enough_rows = 400;

/// Values of a gradient of several runs, to be judged together.
struct Pool {
  const char* name;
  std::vector<double> result, standard, reference;

  void add(const std::vector<double>& r, const std::vector<double>& s, const std::vector<double>& f) {
    result.insert(result.end(), r.begin(), r.end());
    standard.insert(standard.end(), s.begin(), s.end());
    reference.insert(reference.end(), f.begin(), f.end());
  }
  /// Where every row sees one key, dq and dk are 0, and the standard's too, whose dP and D are the same sum.
  /// A kernel's are sums in different orders.
  static constexpr double rounding_of_sums = 1e-4;

  std::string failure() const {
    const Comparison comparison = compare(result, standard, reference);
    const bool is_zero = comparison.standard.max == 0 && comparison.result.max <= rounding_of_sums;
    std::ostringstream out;
    if (!comparison && !is_zero) out << name << ": " << comparison << "; ";
    return out.str();
  }
};

}  // namespace

DeviceMemory poisoned_memory(std::size_t bytes) {
  constexpr int nan_bytes = 0xff;
  const std::vector<std::byte> cells(std::max<std::size_t>(bytes, 1), static_cast<std::byte>(nan_bytes));
  return DeviceMemory(cells);
}

std::string backward_variant_name(const testing::TestParamInfo<backward::BackwardVariant>& info) {
  const backward::BackwardVariant& v = info.param;
  static constexpr const char* kernels[] = {"keys_serial", "keys_pipelined", "keys_in_roles", "queries"};
  return std::string(v.operand == hw::Operand::bf16 ? "bf16" : "fp16") + "_d" + std::to_string(v.head_dim) +
         (v.softcap ? "_softcap_" : "_") + kernels[static_cast<int>(v.kernel)];
}

void run_backward(const core::BackwardProblem& problem, const backward::Choice& choice,
                  const DeviceMemory& workspace, cudaStream_t stream) {
  const core::Status status = backward::launch_with(problem, choice, workspace.data(), stream);
  EXPECT_TRUE(status.ok()) << status.message();
}

DeviceBackward::DeviceBackward(const BackwardTensors& host, const backward::Choice& choice)
    : tensors_(host),
      workspace_(poisoned_memory(backward::workspace_bytes(host.problem(), choice))),
      problem_(tensors_.problem_of(host)),
      choice_(choice) {}

void DeviceBackward::run(cudaStream_t stream) const { run_backward(problem_, choice_, workspace_, stream); }

std::vector<std::byte> DeviceBackward::output_bytes() const {
  std::vector<std::byte> bytes;
  for (const DeviceMemory* memory : tensors_.outputs()) {
    bytes.resize(bytes.size() + memory->bytes());
    memory->read(std::span(bytes).last(memory->bytes()));
  }
  return bytes;
}

std::string failure_of(const BackwardCase& c, const backward::Choice& choice, cudaStream_t stream) {
  const std::int64_t rows = rows_that_count(c), runs = rows == 0 ? 1 : (enough_rows + rows - 1) / rows;
  Pool dq{"dq", {}, {}, {}}, dk{"dk", {}, {}, {}}, dv{"dv", {}, {}, {}};
  std::ostringstream failure;
  for (std::int64_t run = 0; run < runs; ++run) {
    BackwardCase own = c;
    own.forward.seed += static_cast<std::uint64_t>(run) * 1'000'003;
    BackwardTensors tensors(own);
    const cpu::ReferenceGradients reference = cpu::reference_gradients(tensors.problem());
    const BackwardValues standard = standard_backward(tensors.problem());
    tensors.poison_unseen_rows();
    const DeviceBackward device(tensors, choice);
    device.run(stream);
    device.read_outputs(tensors);
    dq.add(tensors.dq.values(), standard.dq, reference.dq);
    dk.add(tensors.dk.values(), standard.dk, reference.dk);
    dv.add(tensors.dv.values(), standard.dv, reference.dv);
    failure << tensors.dsinks_failure();
    for (const HostTensor* tensor : {&tensors.dq, &tensors.dk, &tensors.dv}) {
      if (!tensor->guards_intact()) failure << "cells outside of a gradient were written; ";
    }
  }
  failure << dq.failure() << dk.failure() << dv.failure();
  return failure.str();
}

}  // namespace tandem::test
