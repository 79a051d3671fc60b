#include "api/hopper.h"
#include "api/message.h"

namespace tandem::api {
namespace {

core::Status absent() {
  return unsupported(
      "backend TANDEM_BACKEND_HOPPER is not in this library: it was built without the Hopper kernels; build "
      "with "
      "`cmake --preset hopper`, or use TANDEM_BACKEND_CPU with host memory");
}

}  // namespace

bool hopper_built() { return false; }
core::Status hopper_usable() { return absent(); }
core::Status hopper_supports(const core::ForwardProblem&) { return absent(); }
std::size_t hopper_workspace(const core::ForwardProblem&) { return 0; }
core::Status launch_hopper(const core::ForwardProblem&, void*, void*) { return absent(); }
core::Status hopper_explanation(const core::ForwardProblem&, std::string*) { return absent(); }
core::Status hopper_supports(const core::BackwardProblem&) { return absent(); }
std::size_t hopper_workspace(const core::BackwardProblem&) { return 0; }
core::Status launch_hopper(const core::BackwardProblem&, void*, void*) { return absent(); }
core::Status hopper_supports(const core::DecodeProblem&) { return absent(); }
std::size_t hopper_workspace(const core::DecodeProblem&) { return 0; }
core::Status launch_hopper(const core::DecodeProblem&, void*, void*) { return absent(); }
std::size_t hopper_plan(const core::DecodeProblem&) { return 0; }
core::Status make_hopper_plan(const core::DecodeProblem&, void*, void*) { return absent(); }
core::Status hopper_supports(const core::MergeProblem&) { return absent(); }
core::Status launch_hopper(const core::MergeProblem&, void*) { return absent(); }
core::Status hopper_supports(const core::QuantizeProblem&) { return absent(); }
core::Status launch_hopper(const core::QuantizeProblem&, void*) { return absent(); }
bool is_device_memory(const void*) { return false; }
void describe_device(tandem_info*) {}

}  // namespace tandem::api
