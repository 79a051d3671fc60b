// Operand types of dtypes.
#pragma once

#include <tandem/types.h>

#include "hw/types.h"

namespace tandem::hw {

/// Of a dtype that matrix units take: not of fp32.
constexpr Operand operand_of(tandem_dtype dtype) {
  return dtype == TANDEM_BF16   ? Operand::bf16
         : dtype == TANDEM_FP16 ? Operand::fp16
         : dtype == TANDEM_INT8 ? Operand::int8
                                : Operand::e4m3;
}

}  // namespace tandem::hw
