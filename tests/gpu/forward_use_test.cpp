// What users of the Hopper forward rely on, and what they ran into elsewhere: huge tensors, empty problems,
// reproducibility, CUDA graphs, threads.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cuda.h>
#include <cudaTypedefs.h>
#include <gtest/gtest.h>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cpu/forward.h"
#include "tests/gpu/device_forward.h"
#include "tests/support/compare.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

ForwardCase medium_case(core::Mask mask) {
  ForwardCase c;
  c.batch = 2, c.q_len = 700, c.k_len = 650, c.q_heads = 4, c.kv_heads = 2, c.head_dim = 128, c.mask = mask;
  return c;
}

// ---- Empty problems

TEST_F(HopperForward, WithoutQueriesNothingIsWritten) {
  for (const auto& [batch, q_len] : {std::pair{2, 0}, {0, 5}}) {
    ForwardCase c;
    c.batch = batch, c.q_len = q_len, c.k_len = 70;
    ForwardTensors tensors(c);
    const DeviceForward device(tensors);
    device.run();
    device.read_outputs(tensors);
    EXPECT_TRUE(tensors.o.untouched() && tensors.lse.untouched()) << c;
  }
}

TEST_F(HopperForward, WithoutKeysTheOutputIsZeroAndLseMinusInfinity) {
  ForwardCase c;
  c.batch = 2, c.q_len = 130, c.k_len = 0, c.q_heads = 3;
  for (const core::Mask mask : {core::Mask::full(), core::Mask::causal()}) {
    c.mask = mask;
    ForwardTensors tensors(c);
    const DeviceForward device(tensors);
    device.run();
    device.read_outputs(tensors);
    for (const double o : tensors.o.values()) ASSERT_EQ(o, 0);
    for (const double lse : tensors.lse.values()) ASSERT_EQ(lse, -std::numeric_limits<double>::infinity());
    EXPECT_TRUE(tensors.o.guards_intact() && tensors.lse.guards_intact());
  }
}

TEST_F(HopperForward, KeysMayHaveNoMemoryWhereThereAreNone) {
  ForwardCase c;
  c.q_len = 3, c.k_len = 0;
  ForwardTensors tensors(c);
  const DeviceForward device(tensors);
  tandem_forward_args args = device.args();
  args.k.data = args.v.data = nullptr;
  ASSERT_EQ(forward_on(nullptr, args), TANDEM_OK) << tandem_last_error();
  device.read_outputs(tensors);
  for (const double o : tensors.o.values()) ASSERT_EQ(o, 0);
}

TEST_F(HopperForward, RowsThatSeeNoKeyAreZeroWithLseMinusInfinity) {
  ForwardCase c = medium_case(core::Mask::causal());
  c.q_len = 400, c.k_len = 100;
  ForwardTensors tensors(c);
  const DeviceForward device(tensors);
  device.run();
  device.read_outputs(tensors);
  for (std::int64_t i = 0; i < c.q_len - c.k_len; ++i) {
    ASSERT_EQ(tensors.o.at(1, i, 3, 17), 0) << "query " << i;
    ASSERT_EQ(tensors.lse.at(1, i, 3, 0), -std::numeric_limits<double>::infinity()) << "query " << i;
  }
  ASSERT_TRUE(std::isfinite(tensors.lse.at(1, c.q_len - c.k_len, 3, 0)));
}

TEST_F(HopperForward, NeedsNoWorkspace) {
  const ForwardTensors tensors(medium_case(core::Mask::causal()));
  const DeviceForward device(tensors);
  std::size_t bytes = 1;
  ASSERT_EQ(tandem_forward_workspace(&device.args(), &bytes), TANDEM_OK) << tandem_last_error();
  EXPECT_EQ(bytes, 0u);
}

TEST_F(HopperForward, AutoServesDeviceMemory) {
  ForwardTensors tensors(medium_case(core::Mask::full()));
  const DeviceForward device(tensors);
  tandem_forward_args args = device.args();
  args.backend = TANDEM_BACKEND_AUTO;
  ASSERT_EQ(forward_on(nullptr, args), TANDEM_OK) << tandem_last_error();
  device.read_outputs(tensors);
  EXPECT_FALSE(tensors.o.untouched());
}

// ---- Tensors beyond 2^31 elements

/// Copies the rows of a dense host tensor to a strided device tensor, or back.
void copy_rows(const core::Tensor& device, const core::Tensor& host, cudaMemcpyKind kind) {
  for (std::int64_t b = 0; b < host.shape[0]; ++b)
    for (std::int64_t s = 0; s < host.shape[1]; ++s)
      for (std::int64_t h = 0; h < host.shape[2]; ++h) {
        void *there = core::row_of<std::uint16_t>(device, b, s, h),
             *here = core::row_of<std::uint16_t>(host, b, s, h);
        const bool down = kind == cudaMemcpyDeviceToHost;
        check_cuda(cudaMemcpy(down ? here : there, down ? there : here,
                              2 * static_cast<std::size_t>(host.shape[3]), kind),
                   "copy of a row");
      }
  check_cuda(cudaDeviceSynchronize(), "copy of rows");
}

/// Runs the case with q, k, v and o `apart` elements from each other in one allocation, with these strides.
void expect_right_with_strides(const ForwardCase& c, const DeviceMemory& memory, std::int64_t apart,
                               const std::int64_t (&strides)[3]) {
  ForwardTensors tensors(c);
  core::ForwardProblem p = tensors.problem();
  ForwardArgs call(c);
  tandem_forward_args& args = call.args;
  args.backend = TANDEM_BACKEND_HOPPER;
  std::int64_t place = 0;
  for (auto [host, device] : {std::pair{&p.q, &args.q}, {&p.k, &args.k}, {&p.v, &args.v}, {&p.o, &args.o}}) {
    *device = *host;
    device->data = reinterpret_cast<std::uint16_t*>(memory.data()) + place;
    std::copy(std::begin(strides), std::end(strides), device->stride);
    place += apart;
    copy_rows(*device, *host, cudaMemcpyHostToDevice);
  }
  ASSERT_EQ(forward_on(nullptr, args), TANDEM_OK) << tandem_last_error();
  check_cuda(cudaDeviceSynchronize(), "the forward");
  copy_rows(args.o, p.o, cudaMemcpyDeviceToHost);
  const Comparison o = compare(tensors.o.values(), standard_forward(p).o, cpu::reference_values(p).o);
  EXPECT_TRUE(o) << c << " o: " << o;
}

TEST_F(HopperForward, OffsetsBeyondTwoToThe31Elements) {
  constexpr std::size_t bytes = std::size_t{10} << 30;
  std::optional<DeviceMemory> memory;
  try {
    memory.emplace(bytes);
  } catch (const std::exception& error) {
    GTEST_SKIP() << "needs 10 GiB of device memory: " << error.what();
  }
  constexpr std::int64_t past_31_bits = (std::int64_t{1} << 31) + 64;
  ForwardCase c;
  c.lse = false, c.q_len = 200, c.k_len = 150, c.q_heads = c.kv_heads = 2;
  c.batch = 3;
  expect_right_with_strides(c, *memory, std::int64_t{1} << 20, {past_31_bits, 128, 64});
  c.batch = 1, c.q_heads = c.kv_heads = 3;
  expect_right_with_strides(c, *memory, std::int64_t{1} << 20, {0, 64, past_31_bits});
  constexpr std::int64_t wide_row = std::int64_t{1} << 24;  // 200 rows are 3.4e9 elements
  c.q_heads = c.kv_heads = 2;
  expect_right_with_strides(c, *memory, std::int64_t{1} << 20, {0, wide_row, 64});
}

// ---- Reproducibility

TEST_F(HopperForward, ResultsAreTheSameToTheBitEveryTime) {
  for (const core::Mask mask : {core::Mask::full(), core::Mask::causal()}) {
    const ForwardCase c = medium_case(mask);
    const std::vector<std::byte> first = output_bytes(c);
    for (int repeat = 0; repeat < 20; ++repeat)
      ASSERT_EQ(output_bytes(c), first) << c << " repeat " << repeat;
  }
}

TEST_F(HopperForward, ASequenceDoesNotDependOnItsNeighboursInTheBatch) {
  ForwardCase c = medium_case(core::Mask::causal());
  c.batch = 3;
  ForwardTensors tensors(c), changed(c);
  for (HostTensor* tensor : {&changed.q, &changed.k, &changed.v}) {
    const core::Tensor view = tensor->view();
    for (const std::int64_t b : {0, 2})
      for (std::int64_t s = 0; s < view.shape[1]; ++s)
        for (std::int64_t h = 0; h < view.shape[2]; ++h)
          for (std::int64_t e = 0; e < c.head_dim; ++e) tensor->set(b, s, h, e, NAN);
  }
  for (ForwardTensors* t : {&tensors, &changed}) {
    const DeviceForward device(*t);
    device.run();
    device.read_outputs(*t);
  }
  for (std::int64_t i = 0; i < c.q_len; ++i)
    for (std::int64_t h = 0; h < c.q_heads; ++h) {
      ASSERT_EQ(changed.lse.at(1, i, h, 0), tensors.lse.at(1, i, h, 0)) << "query " << i << " head " << h;
      for (std::int64_t e = 0; e < c.head_dim; ++e)
        ASSERT_EQ(changed.o.at(1, i, h, e), tensors.o.at(1, i, h, e)) << "query " << i << " head " << h;
    }
  EXPECT_TRUE(std::isnan(changed.o.at(0, 300, 0, 0)));
}

// ---- Graphs, streams, threads

TEST_F(HopperForward, IsCapturedInAGraphAndReplayedWithOtherInputs) {
  ForwardCase c = medium_case(core::Mask::causal());
  ForwardTensors tensors(c);
  DeviceForward device(tensors);
  const Stream stream;
  const Graph graph(stream, [&](cudaStream_t s) { device.run(s); });
  device.read_outputs(tensors);
  EXPECT_TRUE(tensors.o.untouched()) << "a captured call runs only when it is replayed";
  for (c.seed = 1; c.seed < 4; ++c.seed) {
    ForwardTensors other(c);
    device.write_inputs(other);
    device.write_outputs(other);
    graph.replay();
    device.read_outputs(other);
    std::vector<std::byte> bytes(other.o.storage().begin(), other.o.storage().end());
    bytes.insert(bytes.end(), other.lse.storage().begin(), other.lse.storage().end());
    EXPECT_EQ(bytes, output_bytes(c)) << c;
  }
}

// A thread that has not called yet remembers no call.
TEST_F(HopperForward, ACallThatIsMadeAgainReadsItsInputsAndOptionsAnew) {
  ForwardCase c = medium_case(core::Mask::full());
  ForwardTensors tensors(c);
  DeviceForward device(tensors);
  tandem_forward_args args = device.args();
  const auto outputs = [&] {
    EXPECT_EQ(forward_on(nullptr, args), TANDEM_OK) << tandem_last_error();
    device.read_outputs(tensors);
    return tensors.o.values();
  };
  std::vector<std::vector<double>> all;
  for (c.seed = 1; c.seed < 4; ++c.seed) {
    device.write_inputs(ForwardTensors(c));
    for (const float scale : {0.f, 0.5f}) {
      args.scale = scale;
      std::vector<double> anew;
      std::thread([&] { anew = outputs(); }).join();
      EXPECT_EQ(outputs(), anew) << c << " scale " << scale;
      EXPECT_EQ(std::count(all.begin(), all.end(), anew), 0) << c << " scale " << scale;
      all.push_back(anew);
    }
  }
}

TEST_F(HopperForward, WaitsForEarlierWorkOfItsStream) {
  const ForwardCase c = medium_case(core::Mask::full());
  ForwardTensors tensors(c), later(c);
  later.q.fill_normal(99);
  const DeviceForward device(tensors);
  const DeviceMemory new_q(later.q.storage());
  const Stream stream;
  std::byte* q = static_cast<std::byte*>(device.args().q.data) -
                 (static_cast<std::byte*>(tensors.q.view().data) - tensors.q.storage().data());
  check_cuda(cudaMemcpyAsync(q, new_q.data(), new_q.bytes(), cudaMemcpyDeviceToDevice, stream.get()),
             "copy of q");
  device.run(stream.get());
  device.read_outputs(tensors);

  const DeviceForward expected(later);
  expected.run();
  expected.read_outputs(later);
  EXPECT_EQ(tensors.o.values(), later.o.values());
}

TEST_F(HopperForward, AThreadThatHasDoneNothingYetCanCall) {
  const ForwardTensors tensors(medium_case(core::Mask::full()));
  const DeviceForward device(tensors);
  for (const tandem_backend backend : {TANDEM_BACKEND_HOPPER, TANDEM_BACKEND_AUTO}) {
    std::string failure;
    std::thread([&] {
      tandem_forward_args args = device.args();
      args.backend = backend;
      if (forward_on(nullptr, args) != TANDEM_OK) failure = tandem_last_error();
    }).join();
    EXPECT_EQ(failure, "");
  }
}

TEST_F(HopperForward, ThreadsWithTheirOwnStreamsDoNotDisturbEachOther) {
  constexpr int threads = 8, calls = 25;
  std::vector<std::string> failures(threads);
  std::vector<std::thread> workers;
  for (int t = 0; t < threads; ++t) {
    workers.emplace_back([t, &failure = failures[static_cast<std::size_t>(t)]] {
      try {
        static constexpr std::int64_t head_dims[] = {64, 128, 256, 80};
        ForwardCase c = medium_case(t % 2 == 0 ? core::Mask::full() : core::Mask::causal());
        c.seed = static_cast<std::uint64_t>(t), c.head_dim = head_dims[t % 4],
        c.dtype = t < 4 ? TANDEM_BF16 : TANDEM_FP16;
        const Stream stream;
        const std::vector<std::byte> first = output_bytes(c, stream.get());
        for (int call = 0; call < calls && failure.empty(); ++call) {
          if (output_bytes(c, stream.get()) != first) failure = "call " + std::to_string(call) + " differs";
        }
      } catch (const std::exception& error) {
        failure = error.what();
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  for (int t = 0; t < threads; ++t) {
    EXPECT_EQ(failures[static_cast<std::size_t>(t)], "") << "thread " << t;
  }
}

// ---- Processes

/// Whether the first device has a context, by the driver; it makes none.
bool has_context() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  check_cuda(cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &function, 7000,
                                              cudaEnableDefault, &found),
             "the driver's function");
  unsigned flags = 0;
  int active = 0;
  reinterpret_cast<PFN_cuDevicePrimaryCtxGetState_v7000>(function)(0, &flags, &active);
  return active != 0;
}

/// 0, or what went wrong.
int status_of_call_on_the_cpu(const ForwardCase& c) {
  const ForwardTensors tensors(c);
  ForwardArgs call(c);
  tandem_forward_args& args = call.args;
  args.q = tensors.q.view(), args.k = tensors.k.view(), args.v = tensors.v.view();
  args.o = tensors.o.view(), args.lse = tensors.lse.view();
  args.backend = TANDEM_BACKEND_CPU;
  std::size_t bytes = 0;
  if (const tandem_status status = tandem_forward_workspace(&args, &bytes); status != TANDEM_OK)
    return status;
  std::vector<std::byte> memory(bytes + 256);
  void* workspace = memory.data();
  std::size_t space = memory.size();
  std::align(256, bytes, workspace, space);
  return tandem_forward(&args, workspace, bytes, nullptr);
}

// Of hundreds of megabytes of the device, in each worker of a data loader.
TEST(HopperContext, ACallOnTheCpuMakesNone) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU";
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a process of its own, which has used no device before
  EXPECT_EXIT(
      {
        const int status = status_of_call_on_the_cpu({});
        std::exit(has_context() ? 1 : status);
      },
      testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tandem::test
