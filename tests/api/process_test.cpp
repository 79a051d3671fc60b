// What the process around the library may do: unload it, fork, run out of threads, use OpenMP. Each in a
// process of its own that loads the library, as this one does not.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include <tandem/tandem.h>

namespace {
std::atomic<bool> refuse_threads = false;
}

/// Stands before libc's: a process that can't have more threads.
extern "C" __attribute__((visibility("default"))) int pthread_create(pthread_t* thread,
                                                                     const pthread_attr_t* attributes,
                                                                     void* (*start)(void*), void* argument) {
  if (refuse_threads) return EAGAIN;
  static const auto real = reinterpret_cast<decltype(&pthread_create)>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}

namespace tandem::test {
namespace {

using testing::ExitedWithCode;

constexpr std::int64_t batch = 4, length = 64, heads = 4, head_dim = 8;

/// Averages ones with ones, in 16 tasks for 4 threads.
class Library {
 public:
  Library() {
    setenv("OMP_NUM_THREADS", "4", 1);
    alarm(60);  // a call that hangs ends the process
    handle_ = dlopen(TANDEM_LIBRARY, RTLD_NOW);
    workspace_size_ = symbol<decltype(tandem_forward_workspace)>("tandem_forward_workspace");
    forward_ = symbol<decltype(tandem_forward)>("tandem_forward");
    args_.struct_size = sizeof args_;
    args_.backend = TANDEM_BACKEND_CPU;
    args_.q = args_.k = args_.v = tensor(ones_);
    args_.o = tensor(o_);
  }

  std::size_t workspace_bytes() {
    std::size_t bytes = 0;
    workspace_size_(&args_, &bytes);
    return bytes;
  }

  bool works() {
    const std::size_t bytes = workspace_bytes();
    void* workspace = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
    o_.assign(o_.size(), 0.0f);
    const bool ok = forward_(&args_, workspace, bytes, nullptr) == TANDEM_OK && o_ == ones_;
    std::free(workspace);
    return ok;
  }

  void unload() { dlclose(handle_); }

 private:
  template <typename Function>
  Function* symbol(const char* name) {
    return reinterpret_cast<Function*>(dlsym(handle_, name));
  }
  static tandem_tensor tensor(std::vector<float>& values) {
    return {values.data(),
            TANDEM_FP32,
            {batch, length, heads, head_dim},
            {length * heads * head_dim, heads * head_dim, head_dim, 1}};
  }

  std::vector<float> ones_ = std::vector<float>(batch * length * heads * head_dim, 1.0f), o_ = ones_;
  tandem_forward_args args_{};
  void* handle_;
  decltype(tandem_forward_workspace)* workspace_size_;
  decltype(tandem_forward)* forward_;
};

[[noreturn]] void end(bool well) { _exit(well ? 0 : 1); }

TEST(Process, MayUnloadTheLibraryAfterUse) {
  const auto body = [] {
    Library library;
    const bool well = library.works();
    library.unload();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // in which its threads would fall
    end(well);
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

TEST(Process, MayForkAfterUseAndTheChildMayCall) {
  const auto body = [] {
    Library library;
    const bool before = library.works();
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      end(library.works() && library.works());
    }
    int status = -1;
    waitpid(child, &status, 0);
    end(before && WIFEXITED(status) && WEXITSTATUS(status) == 0 && library.works());
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

TEST(Process, MayForkWhileAnotherThreadCalls) {
  const auto body = [] {
    Library library;
    std::atomic<bool> stop = false;
    std::thread other([&stop] {
      Library own;
      while (!stop) own.works();
    });
    bool well = true;
    for (int i = 0; i < 20; ++i) {
      const pid_t child = fork();
      if (child == 0) {
        alarm(20);
        end(library.works());
      }
      int status = -1;
      waitpid(child, &status, 0);
      well = well && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    stop = true;
    other.join();
    end(well);
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

TEST(Process, MayHaveNoMoreThreads) {
  const auto body = [] {
    Library library;
    refuse_threads = true;
    const bool without = library.works();
    refuse_threads = false;
    end(without && library.works());
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

TEST(Process, AsksForOneWorkspaceWhateverItsOwnOpenMPDoes) {
  void* openmp = dlopen("libgomp.so.1", RTLD_NOW);
  if (openmp == nullptr) GTEST_SKIP() << "no OpenMP here: " << dlerror();
  const auto set_threads = reinterpret_cast<void (*)(int)>(dlsym(openmp, "omp_set_num_threads"));
  const auto body = [&] {
    Library library;
    const std::size_t bytes = library.workspace_bytes();
    set_threads(1);
    const bool fewer = library.workspace_bytes() == bytes;
    set_threads(9);
    end(fewer && library.workspace_bytes() == bytes);
  };
  EXPECT_EXIT(body(), ExitedWithCode(0), "");
}

}  // namespace
}  // namespace tandem::test
