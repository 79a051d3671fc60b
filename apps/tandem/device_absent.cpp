// The twin of device.cpp in a build without the Hopper kernels.
#include "failure.h"
#include "place.h"

namespace tandem::cli {

std::unique_ptr<Place> make_device_place() {
  throw Failure(
      Exit::unavailable,
      "this build has no Hopper kernels; configure with -DTANDEM_HOPPER=ON (needs the CUDA toolkit), or "
      "use --backend cpu");
}

}  // namespace tandem::cli
