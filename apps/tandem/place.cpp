#include "place.h"

#include <chrono>
#include <cstring>
#include <new>

namespace tandem::cli {
namespace {

constexpr std::align_val_t alignment{256};

class HostPlace final : public Place {
 public:
  void* allocate(std::size_t bytes) override { return ::operator new(bytes == 0 ? 1 : bytes, alignment); }
  void release(void* memory) noexcept override { ::operator delete(memory, alignment); }
  void upload(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void download(void* to, const void* from, std::size_t bytes) override { copy(to, from, bytes); }
  void* stream() const override { return nullptr; }

  std::vector<double> replay(int runs, int calls, const std::function<void(int)>& work) override {
    std::vector<double> times = time(runs, [&] {
      for (int call = 0; call < calls; ++call) work(call);
    });
    for (double& milliseconds : times) milliseconds /= calls;
    return times;
  }

  std::vector<double> time(int runs, const std::function<void()>& work) override {
    using Clock = std::chrono::steady_clock;
    std::vector<double> result;
    for (int run = 0; run < runs; ++run) {
      const Clock::time_point begin = Clock::now();
      work();
      result.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    return result;
  }

 private:
  static void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes != 0) std::memcpy(to, from, bytes);
  }
};

}  // namespace

std::unique_ptr<Place> make_place(tandem_backend backend) {
  if (backend == TANDEM_BACKEND_HOPPER) return make_device_place();
  return std::make_unique<HostPlace>();
}

std::unique_ptr<Buffer> uploaded(Place& place, std::span<const std::byte> bytes) {
  auto buffer = std::make_unique<Buffer>(place, bytes.size());
  place.upload(buffer->data(), bytes.data(), bytes.size());
  return buffer;
}

}  // namespace tandem::cli
