// Where a backend works: host memory, or the memory of the current CUDA device with a stream and events.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <tandem/tandem.h>

namespace tandem::cli {

/// Memory and a clock. Every function throws Failure(Exit::other) where the device refuses.
class Place {
 public:
  virtual ~Place() = default;
  /// At least one byte, aligned to 256.
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void release(void* memory) noexcept = 0;
  virtual void upload(void* to, const void* from, std::size_t bytes) = 0;
  virtual void download(void* to, const void* from, std::size_t bytes) = 0;
  virtual void* stream() const = 0;
  /// Milliseconds that each of `runs` calls of `work` took here, back to back.
  virtual std::vector<double> time(int runs, const std::function<void()>& work) = 0;
  /// Milliseconds a call of each of `runs` runs through work(0) ... work(calls - 1), which the device records
  /// once and replays as a CUDA graph.
  virtual std::vector<double> replay(int runs, int calls, const std::function<void(int)>& work) = 0;
};

/// Host memory or device memory, as the backend wants. Throws Failure(Exit::unavailable) for Hopper in a
/// build without it.
std::unique_ptr<Place> make_place(tandem_backend backend);

/// device.cpp, or device_absent.cpp where the tool is built without Hopper.
std::unique_ptr<Place> make_device_place();

/// An allocation in a place, which has to outlive it.
class Buffer {
 public:
  Buffer(Place& place, std::size_t bytes) : place_(&place), data_(place.allocate(bytes)) {}
  ~Buffer() { place_->release(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* data() const { return data_; }

 private:
  Place* place_;
  void* data_;
};

/// A copy of `bytes` in a place.
std::unique_ptr<Buffer> uploaded(Place& place, std::span<const std::byte> bytes);

}  // namespace tandem::cli
