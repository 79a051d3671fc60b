// The kernels of the chip: trampoline.cuh has them.
#pragma once

#include "launch/kernel.h"

namespace tandem::launch {

template <typename Group>
using ChipTable = Table<typename Group::Family, const void*>;

template <typename Group>
ChipTable<Group> chip_kernels();

}  // namespace tandem::launch
