#include "tests/gpu/device.h"

#include <stdexcept>

#include <tandem/tandem.h>

namespace tandem::test {

void check_cuda(cudaError_t error, const char* what) {
  if (error != cudaSuccess) throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

std::string why_no_hopper() {
  tandem_info info{};
  info.struct_size = sizeof(info);
  if (tandem_get_info(&info) != TANDEM_OK) return tandem_last_error();
  return info.hopper_usable ? "" : std::string("no usable Hopper GPU: ") + info.hopper_reason;
}

DeviceMemory::DeviceMemory(std::size_t bytes) : bytes_(bytes) {
  check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes), "cudaMalloc");
}

DeviceMemory::DeviceMemory(std::span<const std::byte> contents) : DeviceMemory(contents.size()) {
  write(contents);
}

DeviceMemory::~DeviceMemory() { cudaFree(data_); }

// A copy from pageable memory may return before the bytes have arrived, and streams of tests do not wait for
// the default stream, so both directions synchronise.
void DeviceMemory::write(std::span<const std::byte> bytes, std::size_t offset) {
  check_cuda(cudaMemcpy(data_ + offset, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
             "copy to device");
  check_cuda(cudaDeviceSynchronize(), "copy to device");
}

void DeviceMemory::read(std::span<std::byte> bytes, std::size_t offset) const {
  check_cuda(cudaDeviceSynchronize(), "work before the copy");
  check_cuda(cudaMemcpy(bytes.data(), data_ + offset, bytes.size(), cudaMemcpyDeviceToHost),
             "copy from device");
}

Stream::Stream() { check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "new stream"); }
Stream::~Stream() { cudaStreamDestroy(stream_); }
void Stream::wait() const { check_cuda(cudaStreamSynchronize(stream_), "work on a stream"); }

Graph::~Graph() {
  if (executable_ != nullptr) cudaGraphExecDestroy(executable_);
  if (graph_ != nullptr) cudaGraphDestroy(graph_);
}

void Graph::finish() {
  check_cuda(cudaStreamEndCapture(stream_.get(), &graph_), "end of the capture");
  check_cuda(cudaGraphInstantiate(&executable_, graph_, 0), "instantiation of the graph");
}

void Graph::replay() const {
  check_cuda(cudaGraphLaunch(executable_, stream_.get()), "launch of the graph");
  stream_.wait();
}

}  // namespace tandem::test
