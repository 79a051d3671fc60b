// Where a key of a sequence lies in the cache.
#pragma once

#include "decode/arguments.h"
#include "hw/hw.h"

namespace tandem::decode {

/// The sequence's entry: its row of the page table, or the cache's entry where that is contiguous.
TANDEM_DEVICE int entry_of(const PageView& pages, int sequence) {
  return pages.batch_index != nullptr ? hw::load_global(pages.batch_index + sequence) : sequence;
}

/// The page that has the key, as the table says: it may be none of the cache's.
TANDEM_DEVICE int page_of_key(const PageView& pages, int entry, int key) {
  if (pages.table == nullptr) return entry;
  return hw::load_global(pages.table + entry * pages.table_stride + (key >> pages.page_shift));
}

}  // namespace tandem::decode
