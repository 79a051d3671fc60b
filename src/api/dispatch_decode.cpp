#include "api/dispatch.h"
#include "api/hopper.h"
#include "api/message.h"
#include "api/validate.h"
#include "cpu/decode.h"

namespace tandem::api {
namespace {

using core::DecodeProblem;
using core::Status;

constexpr Lent lent_workspace{"workspace", "workspace_bytes", "tandem_decode_workspace"};
constexpr Lent lent_plan{"plan", "plan_bytes", "tandem_decode_plan_size"};

bool writes_nothing(const DecodeProblem& p) { return p.batch() == 0 || p.q_heads() == 0; }

/// A valid call and who serves it.
struct Serving {
  DecodeProblem problem;
  tandem_backend backend;
};

/// Everything that can be said without the workspace. `need_data`: as validate_decode.
Status prepare(const tandem_decode_args* args, bool need_data, Serving* serving) {
  if (Status s = validate_decode(args, need_data, &serving->problem); !s.ok()) return s;
  const DecodeProblem& problem = serving->problem;
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
      return cpu::decode_workspace(serving.problem);
    default:
      return 0;
  }
}

std::size_t plan_of(const Serving& serving) {
  const bool planned = serving.backend == TANDEM_BACKEND_HOPPER && !writes_nothing(serving.problem);
  return planned ? hopper_plan(serving.problem) : 0;
}

}  // namespace

Status query_decode_workspace(const tandem_decode_args* args, std::size_t* bytes) {
  Serving serving;
  if (Status s = prepare(args, /*need_data=*/false, &serving); !s.ok()) return s;
  if (bytes == nullptr) return invalid("bytes is NULL; pass the address of a size_t");
  *bytes = workspace_of(serving);
  return {};
}

Status run_decode(const tandem_decode_args* args, Workspace workspace, void* stream) {
  Serving serving;
  if (Status s = prepare(args, /*need_data=*/true, &serving); !s.ok()) return s;
  if (Status s = check_workspace(lent_workspace, workspace, workspace_of(serving)); !s.ok()) return s;
  const DecodeProblem& problem = serving.problem;
  if (writes_nothing(problem)) return {};
  if (serving.backend == TANDEM_BACKEND_HOPPER) return launch_hopper(problem, workspace.data, stream);
  if (Status s = check_host_memory(tensors_of(problem)); !s.ok()) return s;
  if (serving.backend == TANDEM_BACKEND_REFERENCE)
    cpu::reference_decode(problem);
  else
    cpu::decode(problem, workspace.data);
  return {};
}

Status query_decode_plan(const tandem_decode_args* args, std::size_t* bytes) {
  Serving serving;
  if (Status s = prepare(args, /*need_data=*/false, &serving); !s.ok()) return s;
  if (bytes == nullptr) return invalid("bytes is NULL; pass the address of a size_t");
  *bytes = plan_of(serving);
  return {};
}

Status make_decode_plan(const tandem_decode_args* args, Workspace plan, void* stream) {
  Serving serving;
  if (Status s = prepare(args, /*need_data=*/false, &serving); !s.ok()) return s;
  const std::size_t needed = plan_of(serving);
  if (Status s = check_workspace(lent_plan, plan, needed); !s.ok()) return s;
  if (needed == 0) return {};
  if (serving.problem.lengths == nullptr)
    return invalid("cache.lengths is NULL, but a plan is made from the lengths; pass them in device memory");
  return make_hopper_plan(serving.problem, plan.data, stream);
}

}  // namespace tandem::api
