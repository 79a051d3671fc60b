#include "api/calls.h"

#include <cstring>
#include <iterator>
#include <string>

#include "api/checks.h"
#include "api/message.h"
#include "api/operations.h"
#include "api/validate.h"
#include "cpu/forward.h"
#include "cpu/parallel.h"

namespace tandem::api {

using core::Status;

Status explain_forward(const tandem_forward_args* args, char* text, std::size_t size) {
  core::ForwardProblem problem;
  if (Status status = validate(args, /*need_data=*/false, &problem); !status.ok()) return status;
  if (text == nullptr || size == 0) return invalid("text is NULL or size is 0; pass room for an explanation");
  if (hopper == nullptr) return hopper_absent();
  std::string words;
  if (Status status = hopper->explain(problem, &words); !status.ok()) return status;
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
  found.hopper_built = hopper != nullptr;
  const Status usable = hopper != nullptr ? hopper->usable() : hopper_absent();
  found.hopper_usable = usable.ok();
  usable.message().copy(found.hopper_reason, std::size(found.hopper_reason) - 1);
  if (hopper != nullptr) hopper->describe_device(&found);
  found.cpu_threads = cpu::thread_count();
  std::strncpy(found.cpu_simd, cpu::simd_name(), std::size(found.cpu_simd) - 1);
  std::memcpy(info, &found, info->struct_size);
  return {};
}

}  // namespace tandem::api
