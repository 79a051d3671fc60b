#include "api/dispatch.h"
#include "api/hopper.h"
#include "api/message.h"
#include "api/validate.h"
#include "cpu/backward.h"

namespace tandem::api {
namespace {

using core::BackwardProblem;
using core::Status;

constexpr Lent lent_workspace{"workspace", "workspace_bytes", "tandem_backward_workspace"};

/// Without queries there are still dk and dv to write, and without keys dq.
bool writes_nothing(const BackwardProblem& p) {
  return p.batch() == 0 || p.q_heads() == 0 || (p.q_len() == 0 && p.k_len() == 0);
}

/// A valid call and who serves it.
struct Serving {
  BackwardProblem problem;
  tandem_backend backend;
};

/// Everything that can be said without the workspace. `need_data`: as validate_backward.
Status prepare(const tandem_backward_args* args, bool need_data, Serving* serving) {
  if (Status s = validate_backward(args, need_data, &serving->problem); !s.ok()) return s;
  const BackwardProblem& problem = serving->problem;
  if (Status s = choose_backend(args->backend, problem.q, writes_nothing(problem), &serving->backend);
      !s.ok())
    return s;
  return serving->backend == TANDEM_BACKEND_HOPPER ? hopper_supports(problem) : Status();
}

std::size_t workspace_of(const Serving& serving) {
  if (writes_nothing(serving.problem)) return 0;
  switch (serving.backend) {
    case TANDEM_BACKEND_HOPPER:
      return hopper_workspace(serving.problem);
    case TANDEM_BACKEND_CPU:
      return cpu::backward_workspace(serving.problem);
    default:
      return 0;
  }
}

}  // namespace

Status query_backward_workspace(const tandem_backward_args* args, std::size_t* bytes) {
  Serving serving;
  if (Status s = prepare(args, /*need_data=*/false, &serving); !s.ok()) return s;
  if (bytes == nullptr) return invalid("bytes is NULL; pass the address of a size_t");
  *bytes = workspace_of(serving);
  return {};
}

Status run_backward(const tandem_backward_args* args, Workspace workspace, void* stream) {
  Serving serving;
  if (Status s = prepare(args, /*need_data=*/true, &serving); !s.ok()) return s;
  if (Status s = check_workspace(lent_workspace, workspace, workspace_of(serving)); !s.ok()) return s;
  const BackwardProblem& problem = serving.problem;
  if (writes_nothing(problem)) return {};
  if (serving.backend == TANDEM_BACKEND_HOPPER) return launch_hopper(problem, workspace.data, stream);
  if (Status s = check_host_memory(tensors_of(problem)); !s.ok()) return s;
  if (serving.backend == TANDEM_BACKEND_REFERENCE)
    cpu::reference_backward(problem);
  else
    cpu::backward(problem, workspace.data);
  return {};
}

}  // namespace tandem::api
