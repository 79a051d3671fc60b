// Preloaded before the library: a CPU backend that gets the first element of o wrong, so that tests see what
// the tool does with a wrong result.
#include <cstdint>
#include <cstring>
#include <dlfcn.h>

#include <tandem/tandem.h>

extern "C" TANDEM_API tandem_status tandem_forward(const tandem_forward_args* args, void* workspace,
                                                   size_t workspace_bytes, void* stream) {
  const auto real = reinterpret_cast<decltype(&tandem_forward)>(dlsym(RTLD_NEXT, "tandem_forward"));
  const tandem_status status = real(args, workspace, workspace_bytes, stream);
  const std::int64_t* shape = args->o.shape;
  const bool empty = shape[0] == 0 || shape[1] == 0 || shape[2] == 0 || shape[3] == 0;
  if (status == TANDEM_OK && !empty && args->backend == TANDEM_BACKEND_CPU) {
    const std::uint16_t far_off = 0x4800;  // 8 in fp16, 131072 in bf16, more in fp32
    std::memcpy(static_cast<char*>(args->o.data) + (args->o.dtype == TANDEM_FP32 ? 2 : 0), &far_off,
                sizeof far_off);
  }
  return status;
}
