#include <limits>

#include "api/checks.h"

namespace tandem::api {

using core::Status;

Status read_rotary(const char* name, const tandem_rotary* given, tandem_rotary* known) {
  return read_optional({name, "tandem_rotary", TANDEM_SIZE_UP_TO(tandem_rotary, interleaved)}, given, known);
}

Status check_rotary(const char* name, const tandem_rotary& rotary, const Named& rotated) {
  const core::Tensor& x = *rotated.tensor;
  constexpr std::int64_t unit = 16, most_positions = std::numeric_limits<std::int32_t>::max();
  if (rotary.positions < 1)  // first: tables without rows may have no memory
    return invalid(name, ".positions is ", rotary.positions, "; the tables need 1 row or more");
  if (rotary.cos == nullptr)
    return invalid(name, ".cos is NULL; it has to be a table of cosines, or ", name,
                   " NULL for no embedding");
  if (const int dtype = number_of(rotary.dtype); dtype != TANDEM_FP32 && dtype != number_of(x.dtype))
    return invalid(name, ".dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32 or ", rotated.name,
                   ".dtype, which is ", describe_dtype(number_of(x.dtype)));
  if (rotary.positions > most_positions)  // kernels have them as 32 bits
    return invalid(name, ".positions is ", rotary.positions, "; it has to be at most ", most_positions);
  if (rotary.dim < unit || rotary.dim % unit != 0 || rotary.dim > x.shape[3])
    return invalid(name, ".dim is ", rotary.dim, "; it has to be a multiple of ", unit, " from ", unit,
                   " to the head dim, which is ", x.shape[3]);
  if (rotary.interleaved != 0 && rotary.interleaved != 1)
    return invalid(name, ".interleaved is ", rotary.interleaved, "; it has to be 0 or 1");
  return {};
}

core::Rotary resolve_rotary(const tandem_rotary& rotary) {
  return {rotary.cos, rotary.sin, rotary.dtype, rotary.positions, rotary.dim, rotary.interleaved == 1};
}

}  // namespace tandem::api
