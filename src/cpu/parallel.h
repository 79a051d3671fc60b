// Tasks on all cores: the threads that the CPU backend shares its work with.
#pragma once

#include <cstdint>
#include <functional>

namespace tandem::cpu {

/// Threads that a call may use, the caller's among them: OMP_NUM_THREADS where that is set, else the
/// processors that the process may run on, both as they were when the library was loaded. The same for every
/// calling thread, so that a workspace fits whoever asked for its size.
int thread_count();

/// For tests: `count` from now on; 0: as at first. Not while a call runs.
void set_thread_count(int count);

/// The first thing that for_each_task does, without its template.
void run_tasks(std::int64_t tasks, const std::function<void(std::int64_t task, int thread)>& body);

/// Calls body(task, thread) once for each task in [0, tasks), in this order but side by side, and returns
/// when all are done. `thread`, in [0, thread_count()), says whose scratch a task may use. Bodies do not
/// throw.
///
/// Calls at the same time share the workers, so there are never more of them than processors. Where a thread
/// can't be created the others do its work; a child of fork() gets workers of its own. Allocates nothing but
/// the workers' stacks, once.
template <typename Body>
void for_each_task(std::int64_t tasks, const Body& body) {
  run_tasks(tasks, std::cref(body));  // which std::function holds without allocating
}

}  // namespace tandem::cpu
