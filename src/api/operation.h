// An operation: from a caller's arguments to the backend that serves them, the same way for all.
#pragma once

#include <cstddef>

#include <tandem/tandem.h>

#include "api/backend.h"
#include "api/call_key.h"
#include "api/hopper.h"
#include "core/status.h"

namespace tandem::api {

template <typename Args, typename Problem>
struct Operation {
  /// Makes the problem of the arguments, or says which of them is wrong (validate.h).
  core::Status (*validate)(const Args*, bool need_data, Problem*);
  /// Whether there is nothing to do.
  bool (*writes_nothing)(const Problem&);
  Lent workspace = {};  ///< of those backends that need some
  Lent plan = {};       ///< the same of plans
  Backend<Problem> reference, cpu;
  Backend<Problem> Hopper::*on_hopper;
};

/// A valid call and who serves it.
template <typename Problem>
struct Serving {
  Problem problem;
  bool idle;  ///< writes nothing
  tandem_backend place;
  const Backend<Problem>* backend;

  std::size_t workspace() const {
    return idle || backend->workspace == nullptr ? 0 : backend->workspace(problem);
  }
  std::size_t plan() const {
    return idle || backend->plan_bytes == nullptr ? 0 : backend->plan_bytes(problem);
  }
  bool runs_without_workspace() const {
    return backend->runs_without != nullptr && backend->runs_without(problem);
  }
};

/// Everything that can be said without the workspace. `need_data`: false for queries, whose data may be
/// anything.
template <typename Args, typename Problem>
core::Status prepare(const Operation<Args, Problem>& operation, const Args* args, bool need_data,
                     Serving<Problem>* serving) {
  const Problem& problem = serving->problem;
  if (core::Status s = operation.validate(args, need_data, &serving->problem); !s.ok()) return s;
  serving->idle = operation.writes_nothing(problem);
  serving->place = args->backend;
  if (serving->place == TANDEM_BACKEND_AUTO)
    if (core::Status s = choose_backend(tensors_of(problem), serving->idle, &serving->place); !s.ok())
      return s;
  if (serving->place == TANDEM_BACKEND_HOPPER) {
    if (hopper == nullptr) return hopper_absent();
    serving->backend = &(hopper->*operation.on_hopper);
  } else {
    serving->backend = serving->place == TANDEM_BACKEND_CPU ? &operation.cpu : &operation.reference;
  }
  return serving->backend->supports == nullptr ? core::Status() : serving->backend->supports(problem);
}

/// Bytes of workspace that `run` will need.
template <typename Args, typename Problem>
core::Status query_workspace(const Operation<Args, Problem>& operation, const Args* args,
                             std::size_t* bytes) {
  Serving<Problem> serving;
  if (core::Status s = prepare(operation, args, /*need_data=*/false, &serving); !s.ok()) return s;
  if (core::Status s = check_answer(bytes); !s.ok()) return s;
  *bytes = serving.workspace();
  return {};
}

/// Bytes of the plan that `make_plan` will write.
template <typename Args, typename Problem>
core::Status query_plan(const Operation<Args, Problem>& operation, const Args* args, std::size_t* bytes) {
  Serving<Problem> serving;
  if (core::Status s = prepare(operation, args, /*need_data=*/false, &serving); !s.ok()) return s;
  if (core::Status s = check_answer(bytes); !s.ok()) return s;
  *bytes = serving.plan();
  return {};
}

/// Makes the plan of such calls, where there is one. Most data may be anything.
template <typename Args, typename Problem>
core::Status make_plan(const Operation<Args, Problem>& operation, const Args* args, Workspace plan,
                       void* stream) {
  Serving<Problem> serving;
  if (core::Status s = prepare(operation, args, /*need_data=*/false, &serving); !s.ok()) return s;
  const std::size_t needed = serving.plan();
  if (core::Status s = check_workspace(operation.plan, plan, needed); !s.ok()) return s;
  return needed == 0 ? core::Status() : serving.backend->make_plan(serving.problem, plan.data, stream);
}

/// Validates, picks the backend, checks the workspace, runs or enqueues.
template <typename Args, typename Problem>
core::Status run_anew(const Operation<Args, Problem>& operation, const Args* args, Workspace workspace,
                      void* stream) {
  Serving<Problem> serving;
  if (core::Status s = prepare(operation, args, /*need_data=*/true, &serving); !s.ok()) return s;
  if (workspace.lent() || !serving.runs_without_workspace())
    if (core::Status s = check_workspace(operation.workspace, workspace, serving.workspace()); !s.ok())
      return s;
  if (serving.idle) return {};
  if (serving.place != TANDEM_BACKEND_HOPPER)
    if (core::Status s = check_host_memory(tensors_of(serving.problem)); !s.ok()) return s;
  return serving.backend->run(serving.problem, workspace.data, stream);
}

/// Records what a call enqueues, for `repeat`.
class Recording {
 public:
  explicit Recording(const core::CallKey& call) { hopper->begin_recording(call); }
  ~Recording() { hopper->end_recording(ok); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;

  bool ok = false;
};

/// The same; a call on Hopper that was made before is done as it was then, since all that `run_anew` finds
/// follows from its arguments.
template <typename Args, typename Problem>
core::Status run(const Operation<Args, Problem>& operation, const Args* args, Workspace workspace,
                 void* stream) {
  core::CallKey call;
  if (hopper == nullptr || !key_of(args, workspace, &call))
    return run_anew(operation, args, workspace, stream);
  core::Status status;
  if (hopper->repeat(call, stream, &status)) return status;
  Recording recording(call);
  status = run_anew(operation, args, workspace, stream);
  recording.ok = status.ok();
  return status;
}

}  // namespace tandem::api
