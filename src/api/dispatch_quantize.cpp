#include "api/dispatch.h"
#include "api/hopper.h"
#include "api/validate.h"
#include "cpu/quantize.h"

namespace tandem::api {
namespace {

using core::QuantizeProblem;
using core::Status;

bool writes_nothing(const QuantizeProblem& p) { return p.batch() == 0 || p.length() == 0 || p.heads() == 0; }

}  // namespace

Status run_quantize(const tandem_quantize_args* args, void* stream) {
  QuantizeProblem problem;
  if (Status s = validate_quantize(args, &problem); !s.ok()) return s;
  tandem_backend backend;
  if (Status s = choose_backend(args->backend, problem.x, writes_nothing(problem), &backend); !s.ok())
    return s;
  if (backend == TANDEM_BACKEND_HOPPER) {
    if (Status s = hopper_supports(problem); !s.ok()) return s;
    return writes_nothing(problem) ? Status() : launch_hopper(problem, stream);
  }
  if (writes_nothing(problem)) return {};
  if (Status s = check_host_memory(tensors_of(problem)); !s.ok()) return s;
  cpu::quantize(problem);  // of the definition there is nothing to approximate: the oracle is the same
  return {};
}

}  // namespace tandem::api
