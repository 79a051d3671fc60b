#include "api/dispatch.h"

#include <cstring>
#include <iterator>
#include <string>

#include "api/checks.h"
#include "api/hopper.h"
#include "api/message.h"
#include "api/validate.h"
#include "cpu/forward.h"
#include "cpu/forward_eight_bit.h"
#include "cpu/parallel.h"
#include "cpu/varlen.h"

namespace tandem::api {
namespace {

using core::ForwardProblem;
using core::Status;

constexpr Lent lent_workspace{"workspace", "workspace_bytes", "tandem_forward_workspace"};

bool writes_nothing(const ForwardProblem& p) { return p.batch() == 0 || p.q_len() == 0 || p.q_heads() == 0; }

std::size_t workspace_of(const ForwardProblem& p, tandem_backend backend) {
  if (writes_nothing(p)) return 0;
  if (backend == TANDEM_BACKEND_HOPPER) return hopper_workspace(p);
  if (backend != TANDEM_BACKEND_CPU) return 0;
  return p.dtype() == TANDEM_E4M3 ? cpu::forward_eight_bit_workspace(p) : cpu::forward_workspace(p);
}

/// Without any workspace Hopper doesn't split keys. Sinks need it: those who know them read a list.
bool does_without(const ForwardProblem& p, tandem_backend backend, const Workspace& workspace) {
  return backend == TANDEM_BACKEND_HOPPER && !p.varlen.given && p.sinks == nullptr &&
         workspace.data == nullptr && workspace.bytes == 0;
}

/// Sequence after sequence where lengths vary: so a sequence's result is that of a call of its own.
void run_on_cpu(const ForwardProblem& problem, tandem_backend backend, void* workspace) {
  for (std::int64_t i = 0; i < problem.varlen.sequences; ++i)
    run_on_cpu(cpu::SequenceProblem(problem, i).problem(), backend, workspace);
  if (problem.varlen.given) return;
  if (backend == TANDEM_BACKEND_REFERENCE)
    cpu::reference_forward(problem);
  else if (problem.dtype() == TANDEM_E4M3)
    cpu::forward_eight_bit(problem, workspace);
  else
    cpu::forward(problem, workspace);
}

}  // namespace

Status query_forward_workspace(const tandem_forward_args* args, std::size_t* bytes) {
  ForwardProblem problem;
  if (Status status = validate(args, /*need_data=*/false, &problem); !status.ok()) return status;
  if (bytes == nullptr) return invalid("bytes is NULL; pass the address of a size_t");
  tandem_backend backend;
  if (Status status = choose_backend(args->backend, problem.q, writes_nothing(problem), &backend);
      !status.ok())
    return status;
  if (backend == TANDEM_BACKEND_HOPPER)
    if (Status status = hopper_supports(problem); !status.ok()) return status;
  *bytes = workspace_of(problem, backend);
  return {};
}

Status run_forward(const tandem_forward_args* args, Workspace workspace, void* stream) {
  ForwardProblem problem;
  if (Status status = validate(args, /*need_data=*/true, &problem); !status.ok()) return status;
  tandem_backend backend;
  if (Status status = choose_backend(args->backend, problem.q, writes_nothing(problem), &backend);
      !status.ok())
    return status;
  if (!does_without(problem, backend, workspace))
    if (Status status = check_workspace(lent_workspace, workspace, workspace_of(problem, backend));
        !status.ok())
      return status;
  if (backend == TANDEM_BACKEND_HOPPER) {
    if (Status status = hopper_supports(problem); !status.ok()) return status;
    if (writes_nothing(problem)) return {};
    return launch_hopper(problem, workspace.data, stream);  // which sees for itself whether the device can
  }
  if (writes_nothing(problem)) return {};
  if (Status status = check_host_memory(tensors_of(problem)); !status.ok()) return status;
  run_on_cpu(problem, backend, workspace.data);
  return {};
}

Status explain_forward(const tandem_forward_args* args, char* text, std::size_t size) {
  ForwardProblem problem;
  if (Status status = validate(args, /*need_data=*/false, &problem); !status.ok()) return status;
  if (text == nullptr || size == 0) return invalid("text is NULL or size is 0; pass room for an explanation");
  std::string words;
  if (Status status = hopper_explanation(problem, &words); !status.ok()) return status;
  text[words.copy(text, size - 1)] = '\0';
  return {};
}

Status describe(tandem_info* info) {
  if (info == nullptr) return invalid("info is NULL; pass the address of a tandem_info");
  constexpr std::size_t first_version = offsetof(tandem_info, cpu_simd) + sizeof(tandem_info::cpu_simd);
  if (Status status = check_struct_size("info", info->struct_size, first_version, sizeof(tandem_info));
      !status.ok())
    return status;
  tandem_info found{};
  found.struct_size = info->struct_size;
  found.hopper_built = hopper_built();
  const Status usable = hopper_usable();
  found.hopper_usable = usable.ok();
  usable.message().copy(found.hopper_reason, std::size(found.hopper_reason) - 1);
  describe_device(&found);
  found.cpu_threads = cpu::thread_count();
  std::strncpy(found.cpu_simd, cpu::simd_name(), std::size(found.cpu_simd) - 1);
  std::memcpy(info, &found, info->struct_size);
  return {};
}

}  // namespace tandem::api
