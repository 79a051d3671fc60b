#include "cpu/parallel.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <utility>

namespace tandem::cpu {
namespace {

/// OMP_NUM_THREADS, which programs set for all libraries that compute on the CPU; 0 where it says nothing. Of
/// a list, one number for each level of nesting, the first counts.
int wanted_threads() {
  constexpr int most = 1 << 14;
  const char* text = std::getenv("OMP_NUM_THREADS");
  int count = 0;
  if (text == nullptr) return 0;
  std::from_chars(text, text + std::strlen(text), count);
  return std::clamp(count, 0, most);
}

int processors() {
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) return std::max(1, CPU_COUNT(&allowed));
  return static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

const int first_thread_count = wanted_threads() > 0 ? wanted_threads() : processors();
std::atomic<int> current_thread_count{first_thread_count};

/// The tasks of one call, on the caller's stack.
struct Job {
  Job(std::int64_t count, const std::function<void(std::int64_t, int)>& what)
      : body(what), tasks(count), places(static_cast<int>(std::min<std::int64_t>(thread_count(), count))) {}

  const std::function<void(std::int64_t, int)>& body;
  const std::int64_t tasks;
  const int places;  ///< threads that may work on it, the caller's among them
  std::atomic<std::int64_t> next{0};
  int taken = 1;                ///< places; guarded by the pool's mutex
  std::atomic<int> workers{0};  ///< that are at it; changed under the pool's mutex
  Job* following = nullptr;     ///< in the pool's list

  bool is_open() const { return taken < places && next.load(std::memory_order_relaxed) < tasks; }
  void work(int thread) {
    for (std::int64_t task; (task = next.fetch_add(1, std::memory_order_relaxed)) < tasks;)
      body(task, thread);
  }
};

/// Waits a little without sleeping, because waking a thread takes longer than many a call.
template <typename Condition>
void spin_until(const Condition& condition) {
  for (int i = 0; i < 100 && !condition(); ++i) std::this_thread::yield();
}

/// Threads that wait for jobs until the process ends.
class Pool {
 public:
  void run(Job& job) {
    {
      const std::lock_guard lock(mutex_);
      start_workers(job.places - 1);
      job.following = std::exchange(jobs_, &job);
      ++announced_;
    }
    announcement_.notify_all();
    job.work(0);
    {
      const std::lock_guard lock(mutex_);
      remove(job);
    }
    const auto done = [&job] { return job.workers.load(std::memory_order_acquire) == 0; };
    spin_until(done);
    if (done()) return;
    std::unique_lock lock(mutex_);
    completion_.wait(lock, done);
  }

 private:
  /// Sees to `count` workers, or to as many as can be created: the others do their work.
  void start_workers(int count) {
    try {
      for (; workers_ < count; ++workers_) std::thread(&Pool::serve, this).detach();
    } catch (const std::exception&) {
    }
  }

  void remove(const Job& job) {
    Job** link = &jobs_;
    while (*link != &job) link = &(*link)->following;
    *link = job.following;
  }

  Job* open_job() const {
    Job* job = jobs_;
    while (job != nullptr && !job->is_open()) job = job->following;
    return job;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (Job* const job = open_job()) {
        const int place = job->taken++;
        ++job->workers;
        lock.unlock();
        job->work(place);
        lock.lock();
        if (--job->workers == 0) completion_.notify_all();  // the job may be gone from here on
        continue;
      }
      const auto is_news = [this, seen = announced_.load()] { return announced_.load() != seen; };
      lock.unlock();
      spin_until(is_news);
      lock.lock();
      announcement_.wait(lock, is_news);
    }
  }

  std::mutex mutex_;
  std::condition_variable announcement_, completion_;
  std::atomic<std::uint64_t> announced_{0};  ///< jobs so far; changed under the mutex
  Job* jobs_ = nullptr;
  int workers_ = 0;
};

// Never destroyed, because its workers stand in it until the process ends; the library stays loaded for their
// sake (-z nodelete). A child of fork() has none of them, and maybe a mutex that nobody will unlock.
alignas(Pool) std::byte pool_memory[sizeof(Pool)];
Pool* pool = nullptr;

void renew_pool() { pool = new (pool_memory) Pool; }

[[maybe_unused]] const int forks_are_noticed = [] {
  renew_pool();
  return pthread_atfork(nullptr, nullptr, renew_pool);
}();

}  // namespace

int thread_count() { return current_thread_count.load(std::memory_order_relaxed); }

void set_thread_count(int count) { current_thread_count = count > 0 ? count : first_thread_count; }

void run_tasks(std::int64_t tasks, const std::function<void(std::int64_t, int)>& body) {
  if (tasks <= 0) return;
  Job job(tasks, body);
  if (job.places == 1)
    job.work(0);
  else
    pool->run(job);
}

}  // namespace tandem::cpu
