#include "api/dispatch.h"
#include "api/hopper.h"
#include "api/validate.h"
#include "cpu/merge.h"

namespace tandem::api {

using core::MergeProblem;
using core::Status;

Status run_merge(const tandem_merge_args* args, void* stream) {
  MergeProblem problem;
  if (Status s = validate_merge(args, &problem); !s.ok()) return s;
  tandem_backend backend;
  // The output says where, because there may be no parts.
  if (Status s = choose_backend(args->backend, problem.o, problem.rows() == 0, &backend); !s.ok()) return s;
  if (backend == TANDEM_BACKEND_HOPPER) {
    if (Status s = hopper_supports(problem); !s.ok()) return s;
    return problem.rows() == 0 ? Status() : launch_hopper(problem, stream);
  }
  if (Status s = check_host_memory(tensors_of(problem)); !s.ok()) return s;
  if (backend == TANDEM_BACKEND_REFERENCE)
    cpu::reference_merge(problem);
  else
    cpu::merge(problem);
  return {};
}

}  // namespace tandem::api
