// The kernels of the chip: trampoline.cuh has them.
#pragma once

#include <string>

#include "core/status.h"
#include "launch/kernel.h"

namespace tandem::launch {

template <typename Group>
using ChipTable = Table<typename Group::Family, const void*>;
template <typename Family>
using ChipKernel = Kernel<typename Family::Variant, const void*>;

template <typename Group>
ChipTable<Group> chip_kernels();

/// Of a group for study: empty, unless its file of kernels is in the library, which enters them here.
template <typename Group>
inline ChipTable<Group> entered_kernels;

template <typename Group>
struct Enter {
  Enter() { entered_kernels<Group> = chip_kernels<Group>(); }
};

/// nullptr where this library lacks the kernel, which is for study then.
template <typename Family>
const ChipKernel<Family>* find_chip_kernel(const typename Family::Variant& variant) {
  return find_kernel<Family, const void*>(variant, []<typename Group>() {
    if constexpr (is_for_study<Group>) {
      return entered_kernels<Group>;
    } else {
      return chip_kernels<Group>();
    }
  });
}

/// OK if this library has the kernel.
template <typename Family>
core::Status check_linked(const typename Family::Variant& variant) {
  if (find_chip_kernel<Family>(variant) != nullptr) return {};
  return {TANDEM_UNSUPPORTED,
          std::string("study asks for a variant of ") + Family::name +
              " that this library lacks: it has those that are chosen where nothing is asked "
              "for, and libtandem_study has them all"};
}

}  // namespace tandem::launch
