// Tapes: what calls enqueued, so that a call which is made again with the same arguments enqueues the same at
// once. Whoever serves a call records it in passing (chip.h); only who receives the call knows when it is the
// same (api).
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <vector>

#include "core/call_key.h"
#include "core/status.h"
#include "core/tensor_list.h"
#include "hw/launch.h"

namespace tandem::launch {

/// The kernels of one call in their order, and the memory that has to be within the device's reach.
class Tape {
 public:
  void clear() { ordinal_ = -1, addresses_.clear(), steps_.clear(), arguments_.clear(); }

  void open(int ordinal, const core::TensorList& tensors) {
    ordinal_ = ordinal;
    for (const core::ListedTensor& tensor : tensors)
      if (tensor.region.data != nullptr) addresses_.push_back(tensor.region.data);
  }
  /// `arguments` are copied. `name` is a literal.
  void add(const char* name, const hw::Launch& launch, const void* arguments, std::size_t bytes) {
    steps_.push_back({name, launch, arguments_.size()});
    arguments_.resize(arguments_.size() + (bytes + alignment - 1) / alignment * alignment);
    std::memcpy(arguments_.data() + steps_.back().arguments, arguments, bytes);
  }

  /// Whether the call would go the same way: on the device that it was recorded on, to memory that the device
  /// reaches.
  template <typename Machine>
  bool holds(const Machine& machine) const {
    if (ordinal_ < 0 || ordinal_ != machine.ordinal()) return false;
    for (const void* address : addresses_)
      if (!machine.reaches(address)) return false;
    return true;
  }
  template <typename Machine>
  core::Status play(const Machine& machine) const {
    for (const Step& step : steps_)
      if (core::Status s = machine.enqueue(step.name, step.launch, arguments_.data() + step.arguments);
          !s.ok())
        return s;
    return {};
  }

 private:
  static constexpr std::size_t alignment = 64;  // of tensor maps
  struct Step {
    const char* name;
    hw::Launch launch;
    std::size_t arguments;  ///< where they begin
  };

  int ordinal_ = -1;  ///< of the device; -1: the call needed none
  std::vector<const void*> addresses_;
  std::vector<Step> steps_;
  std::vector<std::byte> arguments_;
};

/// Where the thread's call is recorded; nullptr: nowhere.
inline thread_local Tape* recording = nullptr;

/// The tapes of a thread's last calls: each place keeps the last one that fell on it.
class Tapes {
 public:
  /// nullptr: this call was not made, or others took its place.
  const Tape* find(const core::CallKey& call) {
    const Kept* kept = places_[call.hash() % places_.size()].get();
    return kept != nullptr && kept->is_whole && kept->call == call ? &kept->tape : nullptr;
  }

  /// From here on the thread's call is recorded, until `end`.
  void begin(const core::CallKey& call) {
    std::unique_ptr<Kept>& place = places_[call.hash() % places_.size()];
    if (place == nullptr) place = std::make_unique<Kept>();
    kept_ = place.get();
    kept_->call = call, kept_->is_whole = false;
    kept_->tape.clear();
    recording = &kept_->tape;
  }
  /// `ok`: whether the call succeeded, so that its tape is of use.
  void end(bool ok) {
    kept_->is_whole = ok;
    recording = nullptr;
  }

 private:
  struct Kept {
    core::CallKey call;
    Tape tape;
    bool is_whole;
  };
  std::array<std::unique_ptr<Kept>, 256> places_;  // a model's layers each have caches of their own
  Kept* kept_ = nullptr;
};

}  // namespace tandem::launch
