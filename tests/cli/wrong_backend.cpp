// Preloaded before the library: a CPU backend that gets the first element of o wrong, so that tests see what
// the tool does with a wrong result.
#include <cstdint>
#include <cstring>
#include <dlfcn.h>

#include <tandem/tandem.h>

namespace {

/// The library's own function.
template <typename Function>
Function* real(Function&, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

tandem_status spoiled(tandem_status status, tandem_backend backend, const tandem_tensor& o) {
  const bool empty = o.shape[0] == 0 || o.shape[1] == 0 || o.shape[2] == 0 || o.shape[3] == 0;
  if (status == TANDEM_OK && !empty && backend == TANDEM_BACKEND_CPU) {
    const std::uint16_t far_off = 0x4800;  // 8 in fp16, 131072 in bf16, more in fp32
    std::memcpy(static_cast<char*>(o.data) + (o.dtype == TANDEM_FP32 ? 2 : 0), &far_off, sizeof far_off);
  }
  return status;
}

}  // namespace

extern "C" TANDEM_API tandem_status tandem_forward(const tandem_forward_args* args, void* workspace,
                                                   size_t workspace_bytes, void* stream) {
  const auto run = real(tandem_forward, "tandem_forward");
  return spoiled(run(args, workspace, workspace_bytes, stream), args->backend, args->o);
}

extern "C" TANDEM_API tandem_status tandem_decode(const tandem_decode_args* args, void* workspace,
                                                  size_t workspace_bytes, void* stream) {
  const auto run = real(tandem_decode, "tandem_decode");
  return spoiled(run(args, workspace, workspace_bytes, stream), args->backend, args->o);
}
