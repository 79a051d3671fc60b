// TMA's stores and reductions: boxes on their way from shared to global memory.
#include <algorithm>
#include <cstring>

#include "hw/sim/box.h"
#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

namespace {

/// A row of the box as it lies in shared memory now.
void gather_row(const EncodedMap& map, const StoreInFlight& store, std::uint32_t row, unsigned char* bytes) {
  for_each_chunk(map, window_base + store.source, row, [&](std::uint32_t i, std::uint32_t address) {
    std::memcpy(bytes + i, machine.window + (address - window_base), 16);
  });
}

/// Adds fp32 elements.
void add(unsigned char* sums, const unsigned char* terms, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; i += sizeof(float)) {
    float sum, term;
    std::memcpy(&sum, sums + i, sizeof sum);
    std::memcpy(&term, terms + i, sizeof term);
    sum += term;
    std::memcpy(sums + i, &sum, sizeof sum);
  }
}

/// Writes the next `count` rows of the store.
void write_rows(StoreInFlight& store, std::size_t count) {
  const EncodedMap map = EncodedMap::decode(store.map);
  for (; count > 0; --count) {
    const std::uint32_t row = store.rows.back();
    store.rows.pop_back();
    unsigned char gathered[BoxRow::max_bytes];
    const unsigned char* bytes = gathered;
    if (store.data.empty()) {
      gather_row(map, store, row, gathered);
    } else {
      bytes = store.data.data() + row * map.row_bytes();
    }
    const BoxRow target = BoxRow::of(map, store.origin, row);
    if (target.empty()) continue;
    if (store.adds) {
      add(target.global, bytes + target.first, target.bytes());
    } else {
      std::memcpy(target.global, bytes + target.first, target.bytes());
    }
  }
  if (store.rows.empty() && machine.config->trace != nullptr) {
    const int warpgroup = machine.stores[store.record].thread / warpgroup_size;
    machine.config->trace->add("block " + std::to_string(machine.block.index) + ", TMA stores of warpgroup " +
                                   std::to_string(warpgroup),
                               store.adds ? "reduction" : "store", store.started, machine.verbs);
  }
}

/// The store is done with shared memory from here on.
void read_all(StoreInFlight& store) {
  if (!store.data.empty()) return;
  const EncodedMap map = EncodedMap::decode(store.map);
  store.data.resize(std::size_t{map.rows()} * map.row_bytes());
  for (const std::uint32_t row : store.rows)
    gather_row(map, store, row, store.data.data() + row * map.row_bytes());
}

/// What global memory the store touches, ordered after what was there.
void check_target(const EncodedMap& map, const BoxCoordinates& origin, Use use, std::uint32_t record) {
  if (machine.config->buffers.empty()) return;
  for (std::uint32_t row = 0; row < map.rows(); ++row) {
    const BoxRow target = BoxRow::of(map, origin, row);
    if (!target.empty() && !machine.global.access(target.global, target.bytes(), use, record)) {
      fail(Rule::global_bounds, "stores a box to global memory outside of all buffers");
    }
  }
}

void start_store(Thread& thread, const TensorMap& map, const BoxCoordinates& origin, const void* source,
                 bool adds) {
  const EncodedMap encoded = EncodedMap::decode(map);
  if (!encoded.valid()) fail(Rule::bad_descriptor, "stores through a tensor map that was never encoded");
  if (adds && encoded.element_bytes != sizeof(float)) {
    fail(Rule::bad_descriptor, "adds through a tensor map of elements of " +
                                   std::to_string(encoded.element_bytes) + " bytes; only fp32 is modelled");
  }
  if (!starts_at_a_step(encoded, origin))
    fail(Rule::bad_argument, "stores a box whose innermost coordinate is no multiple of 16 bytes");
  check_rank(encoded, origin);
  if (std::any_of(origin.at, origin.at + origin.rank, [](std::int32_t at) { return at < 0; }))
    fail(Rule::bad_argument, "stores a box that begins before the tensor");
  const std::uint32_t offset = offset_of(source, encoded.span(), "a store's source");
  if ((window_base + offset) % 128 != 0) {
    fail(Rule::bad_argument,
         "stores from shared offset " + std::to_string(offset) + ", which is not aligned to 128");
  }
  const auto record = static_cast<std::uint32_t>(machine.stores.size());
  machine.stores.push_back({thread.index, thread.code, {}, {}});
  thread.stores.push_back(record);
  for (std::uint32_t row = 0; row < encoded.rows(); ++row)
    for_each_chunk(encoded, window_base + offset, row, [&](std::uint32_t, std::uint32_t address) {
      machine.block.shadow.store_reads(address - window_base, thread, record);
    });
  check_target(encoded, origin, adds ? Use::reduction : Use::store, record);
  StoreInFlight& store = machine.block.stores.emplace_back(
      StoreInFlight{map, origin, offset, adds, record, {}, {}, machine.verbs});
  for (std::uint32_t row = 0; row < encoded.rows(); ++row) store.rows.push_back(row);
  if (machine.config->policy == Policy::random)
    std::shuffle(store.rows.begin(), store.rows.end(), machine.random);
  if (machine.config->policy == Policy::eager) land_all_stores();
  perturb();
}

/// The thread's groups but the latest `pending`: how many stores they hold.
std::size_t wait_for_groups(Thread& thread, int pending) {
  if (machine.config->policy == Policy::late || machine.chance(4)) yield();
  const auto groups = static_cast<int>(thread.store_groups.size());
  return groups > pending ? thread.store_groups[groups - 1 - pending] : 0;
}

/// The thread knows from now on that its first `count` stores have left shared memory.
void finish_reading(Thread& thread, std::size_t count) {
  if (count <= thread.stores_read) return;
  const std::uint32_t last = thread.stores[count - 1];
  for (StoreInFlight& store : machine.block.stores) {
    if (machine.stores[store.record].thread == thread.index && store.record <= last) read_all(store);
  }
  for (; thread.stores_read < count; ++thread.stores_read)
    machine.stores[thread.stores[thread.stores_read]].read = thread.now();
}

/// The same, and that they have written global memory: the newest first, for nobody may rely on an order.
void finish_writing(Thread& thread, std::size_t count) {
  finish_reading(thread, count);
  if (count <= thread.stores_written) return;
  std::deque<StoreInFlight>& stores = machine.block.stores;
  const std::uint32_t last = thread.stores[count - 1];
  for (std::size_t i = stores.size(); i-- > 0;) {
    StoreInFlight& store = stores[i];
    if (machine.stores[store.record].thread != thread.index || store.record > last) continue;
    write_rows(store, store.rows.size());
    stores.erase(stores.begin() + static_cast<std::ptrdiff_t>(i));
  }
  for (; thread.stores_written < count; ++thread.stores_written)
    machine.stores[thread.stores[thread.stores_written]].written = thread.now();
}

}  // namespace

void store_box(const TensorMap& map, const BoxCoordinates& origin, const void* source) {
  start_store(TANDEM_SIM_ENTER(), map, origin, source, false);
}

void reduce_add_box(const TensorMap& map, const BoxCoordinates& origin, const void* source) {
  start_store(TANDEM_SIM_ENTER(), map, origin, source, true);
}

void commit_stores() {
  Thread& thread = TANDEM_SIM_ENTER();
  thread.store_groups.push_back(thread.stores.size());
}

void wait_stores_read(int pending) {
  Thread& thread = TANDEM_SIM_ENTER();
  finish_reading(thread, wait_for_groups(thread, pending));
}

void wait_stores(int pending) {
  Thread& thread = TANDEM_SIM_ENTER();
  finish_writing(thread, wait_for_groups(thread, pending));
}

bool land_store() {
  std::deque<StoreInFlight>& stores = machine.block.stores;
  if (stores.empty()) return false;
  const std::size_t chosen = machine.draw(stores.size());
  StoreInFlight& store = stores[chosen];
  write_rows(store, machine.draw(2) == 0 ? store.rows.size() : 1 + machine.draw(store.rows.size()));
  if (store.rows.empty()) stores.erase(stores.begin() + static_cast<std::ptrdiff_t>(chosen));
  return true;
}

void land_all_stores() {
  std::deque<StoreInFlight>& stores = machine.block.stores;
  for (; !stores.empty(); stores.pop_back()) write_rows(stores.back(), stores.back().rows.size());
}

}  // namespace tandem::hw::sim
