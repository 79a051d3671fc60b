// Device memory, copies and events for the Hopper backend: the only file of the tool that knows CUDA.
#include <cuda_runtime_api.h>
#include <string>

#include "failure.h"
#include "place.h"

namespace tandem::cli {
namespace {

void require(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  throw Failure(Exit::other, std::string(call) + " failed: " + cudaGetErrorString(error));
}

class Event {
 public:
  Event() { require(cudaEventCreate(&event_), "cudaEventCreate"); }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

/// What `work` enqueues, recorded.
class Graph {
 public:
  Graph(cudaStream_t stream, const std::function<void()>& work) {
    require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
    cudaGraph_t graph = nullptr;
    try {
      work();
    } catch (...) {
      cudaStreamEndCapture(stream, &graph);
      cudaGraphDestroy(graph);
      throw;
    }
    require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
    const cudaError_t error = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    require(error, "cudaGraphInstantiate");
  }
  ~Graph() { cudaGraphExecDestroy(graph_); }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch(cudaStream_t stream) const { require(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch"); }

 private:
  cudaGraphExec_t graph_ = nullptr;
};

class DevicePlace final : public Place {
 public:
  DevicePlace() {
    require(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  }
  ~DevicePlace() override { cudaStreamDestroy(stream_); }

  void* allocate(std::size_t bytes) override {
    void* memory = nullptr;
    require(cudaMalloc(&memory, bytes == 0 ? 1 : bytes), "cudaMalloc");
    return memory;
  }
  void release(void* memory) noexcept override { cudaFree(memory); }
  void upload(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyHostToDevice);
  }
  void download(void* to, const void* from, std::size_t bytes) override {
    copy(to, from, bytes, cudaMemcpyDeviceToHost);
  }
  void* stream() const override { return stream_; }

  // Everything is enqueued before the first wait, so that the host's launches hide behind the device's work.
  std::vector<double> time(int runs, const std::function<void()>& work) override {
    std::vector<Event> events(static_cast<std::size_t>(runs) + 1);
    require(cudaEventRecord(events[0].get(), stream_), "cudaEventRecord");
    for (std::size_t i = 1; i < events.size(); ++i) {
      work();
      require(cudaEventRecord(events[i].get(), stream_), "cudaEventRecord");
    }
    require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    std::vector<double> result;
    for (std::size_t i = 1; i < events.size(); ++i) {
      float milliseconds = 0;
      require(cudaEventElapsedTime(&milliseconds, events[i - 1].get(), events[i].get()),
              "cudaEventElapsedTime");
      result.push_back(milliseconds);
    }
    return result;
  }

  std::vector<double> replay(int runs, int calls, const std::function<void(int)>& work) override {
    const Graph graph(stream_, [&] {
      for (int call = 0; call < calls; ++call) work(call);
    });
    std::vector<double> times = time(runs, [&] { graph.launch(stream_); });
    for (double& milliseconds : times) milliseconds /= calls;
    return times;
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
    if (bytes == 0) return;
    require(cudaMemcpyAsync(to, from, bytes, kind, stream_), "cudaMemcpyAsync");
    require(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  }

  cudaStream_t stream_ = nullptr;
};

}  // namespace

std::unique_ptr<Place> make_device_place() { return std::make_unique<DevicePlace>(); }

}  // namespace tandem::cli
