// The types that tensors' elements have.
#pragma once

#include "core/dtype.h"

namespace tandem::test {

/// fp32 as an element type like the others.
struct Fp32 {
  float value;
  static Fp32 from(float value) { return {value}; }
  explicit operator float() const { return value; }
};

/// visit(an element of the type).
template <typename Visit>
auto with_element(tandem_dtype dtype, Visit&& visit) {
  switch (dtype) {
    case TANDEM_BF16:
      return visit(core::Bf16{});
    case TANDEM_FP16:
      return visit(core::Fp16{});
    case TANDEM_E4M3:
      return visit(core::E4m3{});
    case TANDEM_INT8:
      return visit(core::Int8{});
    case TANDEM_FP32:
      break;
  }
  return visit(Fp32{});
}

}  // namespace tandem::test
