// A call of tandem_forward whose sequences have the lengths of the tensors, and what a fuzzer draws for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <tandem/tandem.h>

#include "tests/fuzz/block_lists.h"
#include "tests/fuzz/hostile.h"
#include "tests/fuzz/options.h"

namespace tandem::fuzz {

/// A call whose tensors lie in one arena. Arrays are as long as the call needs them.
struct ForwardCall {
  static constexpr std::size_t most_changes = 3;
  Arena arena = Arena(arena_bytes);
  ScoreOptions options;
  tandem_mask mask{};
  tandem_scales scales{};
  BlockLists lists;
  tandem_forward_args args{};

  std::vector<tandem_tensor*> tensors();
  std::vector<tandem_tensor> outputs() const { return {args.o, args.lse}; }
  bool eight_bit() const { return is_eight_bit(number(args.q.dtype)); }
  std::int64_t terms() const { return scales.v_terms == 2 ? 2 : 1; }
  bool by_column() const {
    return args.scales != nullptr && number(scales.v_layout) == TANDEM_VALUES_BY_COLUMN;
  }
};

void make_valid(ForwardCall& call, Draws& draws);
/// Spoils something, or changes it to another that is right.
void change(ForwardCall& call, Draws& draws);
void run(ForwardCall& call, std::size_t changes);
/// Whether the call stays in its arena and arrays, and ends soon.
bool may_run(const ForwardCall& call);

}  // namespace tandem::fuzz
