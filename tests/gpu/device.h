// Device memory and streams for tests; every failure of the CUDA runtime is an exception, which fails the
// test.
#pragma once

#include <cstddef>
#include <cuda_runtime_api.h>
#include <span>
#include <string>
#include <utility>

namespace tandem::test {

/// Throws std::runtime_error in the words of the CUDA runtime.
void check_cuda(cudaError_t error, const char* what);

/// "" if tandem_get_info says that the kernels can run here, else why not.
std::string why_no_hopper();

/// Bytes of device memory. Copies wait for all work on the device before and after.
class DeviceMemory {
 public:
  explicit DeviceMemory(std::size_t bytes);
  explicit DeviceMemory(std::span<const std::byte> contents);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// `bytes` from `offset` on.
  void write(std::span<const std::byte> bytes, std::size_t offset = 0);
  void read(std::span<std::byte> bytes, std::size_t offset = 0) const;

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_;
};

/// A stream that does not synchronise with the default one.
class Stream {
 public:
  Stream();
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  cudaStream_t get() const { return stream_; }
  void wait() const;

 private:
  cudaStream_t stream_ = nullptr;
};

/// Work on a stream, captured in the mode that forbids most: run(stream) is to start it.
class Graph {
 public:
  template <typename Run>
  Graph(const Stream& stream, const Run& run) : stream_(stream) {
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), "begin of the capture");
    run(stream.get());
    finish();
  }
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  /// Does the work once and waits for it.
  void replay() const;

 private:
  void finish();

  const Stream& stream_;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace tandem::test
