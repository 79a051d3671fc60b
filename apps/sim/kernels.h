// A group's kernels on the software Hopper: compiled in a file of its own.
#pragma once

#include "apps/sim/simulate.h"

namespace tandem::sim {

template <typename Group>
struct BodyOf {
  template <std::size_t index>
  Handle<typename Group::Family> operator()() const {
    return &Group::template Body<Group::variants[index]>::run;
  }
};

template <typename Group>
SimTable<Group> sim_kernels() {
  static const auto table =
      launch::make_kernels<Group, Handle<typename Group::Family>>(BodyOf<Group>(), launch::Indices<Group>());
  return table;
}

}  // namespace tandem::sim
