#include "api/checks.h"

namespace tandem::api {

using core::Status;

Status read_block_list(const tandem_block_list* given, tandem_block_list* known) {
  return read_optional({"block_list", "tandem_block_list", TANDEM_SIZE_UP_TO(tandem_block_list, head_stride)},
                       given, known);
}

Status check_block_list(const tandem_block_list& list) {
  constexpr std::int64_t most = INT32_MAX;  // a product of two fits 64 bits, in bytes too
  struct Number {
    const char* name;
    std::int64_t value, least;
  };
  for (const auto& [name, value, least] : {Number{"block_list.q_block", list.q_block, 1},
                                           {"block_list.k_block", list.k_block, 1},
                                           {"block_list.slots", list.slots, 0},
                                           {"block_list.batch_stride", list.batch_stride, 0},
                                           {"block_list.head_stride", list.head_stride, 0}})
    if (value < least || value > most)
      return invalid(name, " is ", value, "; it has to be from ", least, " to ", most);
  return {};
}

core::BlockList resolve_block_list(const tandem_block_list& list) {
  return {list.q_block, list.k_block,      list.counts,     list.blocks,
          list.slots,   list.batch_stride, list.head_stride};
}

}  // namespace tandem::api
