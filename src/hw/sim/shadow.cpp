#include "hw/sim/shadow.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

namespace {

constexpr std::uint32_t cell_bytes = 16, part_bytes = 2, cell_parts = cell_bytes / part_bytes;

std::string place(std::uint32_t offset) { return "shared offset " + std::to_string(offset); }

/// Who did something, for a report.
std::string author(Epoch event) {
  const LaunchConfig& config = *machine.config;
  if (event.agent < config.threads) return describe(machine.block.threads[event.agent]);
  const int first_barrier = machine.agents() - max_barriers;
  if (event.agent >= first_barrier) {
    return "a copy that arrives in phase " + std::to_string(event.time - 1) + " of " +
           describe(machine.block.barriers[event.agent - first_barrier]);
  }
  return "warpgroup " + std::to_string(event.agent - config.threads);
}

bool is_copy(Epoch event) { return event.agent >= machine.agents() - max_barriers; }

/// The reader does not know that what was last written is there.
[[noreturn]] void fail_unordered_read(const Thread& reader, Epoch write, std::uint32_t offset,
                                      const std::string& how) {
  if (is_copy(write)) {
    const BarrierRecord& barrier = machine.block.barriers[write.agent - (machine.agents() - max_barriers)];
    fail(Rule::use_before_wait, how + place(offset) + ", where " + author(write) + " writes; " +
                                    describe(reader) + " has seen the end of " +
                                    std::to_string(reader.clock[barrier.agent]) + " phases of it");
  }
  fail(Rule::shared_race, how + place(offset) + ", which " + author(write) +
                              " wrote without being synchronised with " + describe(reader));
}

}  // namespace

void SharedShadow::reset(std::size_t bytes) {
  cells_.assign((bytes + cell_bytes - 1) / cell_bytes, {});
  free_fine_.resize(fine_.size());
  std::iota(free_fine_.rbegin(), free_fine_.rend(), 1);
  stores_.clear();
  for (std::vector<Time>& known : known_) known.assign(machine.agents(), 0);
}

SharedShadow::Fine& SharedShadow::fine(Cell& cell) {
  if (cell.fine == 0) {
    if (free_fine_.empty()) {
      fine_.emplace_back();
      cell.fine = static_cast<std::uint32_t>(fine_.size());
    } else {
      cell.fine = free_fine_.back();
      free_fine_.pop_back();
      for (Access& part : fine_[cell.fine - 1].parts) part.note_write({});
    }
  }
  return fine_[cell.fine - 1];
}

/// What no write may come upon: products and stores that may still read the cell, a copy that has not landed.
void SharedShadow::check_write(const Cell& cell, const Thread& thread, std::uint32_t offset,
                               const char* how) const {
  for (std::size_t unit = 0; unit < machine.block.units.size(); ++unit) {
    const Time read = cell.unit_reads[unit];
    if (read > thread.clock[machine.agent_of_unit(static_cast<int>(unit))]) {
      fail(Rule::operand_overwritten, std::string(how) + place(offset) + ", which WGMMA " +
                                          std::to_string(read) + " of warpgroup " + std::to_string(unit) +
                                          " may still read: the writer does not know that it was waited for");
    }
  }
  if (cell.stores != 0) {
    for (const std::uint32_t number : stores_[cell.stores - 1]) {
      const StoreRecord& store = machine.stores[number];
      if (store.read.exists() && thread.clock.knows(store.read)) continue;
      fail(Rule::operand_overwritten,
           std::string(how) + place(offset) + ", which a store of " +
               describe(machine.block.threads[store.thread]) + " may still read: " +
               (store.read.exists() ? "the writer does not know that it was waited for"
                                    : "its thread has not waited for it"),
           {{"the store", store.code}});
    }
  }
  if (cell.write.exists() && !thread.clock.knows(cell.write)) {
    fail(Rule::use_before_wait,
         std::string(how) + place(offset) + ", where " + author(cell.write) + " may still write");
  }
}

void SharedShadow::access(std::uint32_t offset, std::size_t bytes, bool write, const void* code) {
  Thread& thread = *machine.running;
  thread.code = code;
  const std::uint32_t first = offset / part_bytes,
                      past = (offset + static_cast<std::uint32_t>(bytes) + 1) / part_bytes;
  for (std::uint32_t part = first; part < past;) {
    Cell& cell = cells_[part / cell_parts];
    Access(&parts)[cell_parts] = fine(cell).parts;
    if (write) check_write(cell, thread, part * part_bytes, "writes ");
    for (const std::uint32_t end = std::min(past, (part / cell_parts + 1) * cell_parts); part < end; ++part) {
      Access& own = parts[part % cell_parts];
      if (write) {
        check_parts(own, thread, part * part_bytes, "writes ");
        own.note_write(thread.now());
      } else {
        read_part(cell, own, thread, part * part_bytes);
      }
    }
  }
}

void SharedShadow::read_part(const Cell& cell, Access& access, const Thread& thread, std::uint32_t at) {
  const Epoch last = access.write.exists() ? access.write : cell.write;
  if (!last.exists()) fail(Rule::uninitialised_shared, "reads " + place(at) + ", which nobody has written");
  if (!thread.clock.knows(last)) fail_unordered_read(thread, last, at, "reads ");
  note_read(access, thread);
  if (cell.source != nullptr && !access.write.exists()) {
    machine.global.uses_copy(cell.source + at % cell_bytes, part_bytes, cell.source_known);
  }
}

void SharedShadow::note_read(Access& access, const Thread& thread) {
  const Epoch now = thread.now();
  for (Epoch& read : access.reads) {
    if (read.agent == now.agent) {
      read = now;
      return;
    }
  }
  access.reads.push_back(now);
}

/// A write may not meet ordinary accesses that it isn't ordered after.
void SharedShadow::check_parts(const Access& access, const Thread& thread, std::uint32_t offset,
                               const char* how) const {
  if (access.write.exists() && !thread.clock.knows(access.write)) {
    fail(Rule::shared_race, std::string(how) + place(offset) + ", which " + author(access.write) +
                                " wrote without being synchronised with " + describe(thread));
  }
  for (const Epoch& read : access.reads) {
    if (!thread.clock.knows(read)) {
      fail(Rule::shared_race, std::string(how) + place(offset) + ", which " + author(read) +
                                  " read without being synchronised with " + describe(thread));
    }
  }
}

Time SharedShadow::check_async_read_of(Epoch write, std::uint32_t offset, std::span<const Thread> threads,
                                       const char* how) {
  const bool copied = is_copy(write);
  Time time = std::numeric_limits<Time>::max();
  for (const Thread& thread : threads) {
    if (!thread.clock.knows(write)) fail_unordered_read(thread, write, offset, how);
    time = std::min({time, thread.clock[write.agent], copied ? time : thread.async_visible[write.agent]});
  }
  if (time < write.time) {
    fail(Rule::missing_proxy_fence, std::string(how) + place(offset) + ", which " + author(write) +
                                        " wrote; no fence_async_proxy lies between them");
  }
  return time;
}

void SharedShadow::check_async_read(std::uint32_t offset, std::span<const Thread> threads, const char* how,
                                    std::span<Time> known) {
  Cell& cell = cells_[offset / cell_bytes];
  const auto check = [&](Epoch write, std::uint32_t at) {
    if (!known.empty() && known[write.agent] >= write.time) return;
    const Time time = check_async_read_of(write, at, threads, how);
    if (!known.empty()) known[write.agent] = time;
  };
  const auto nobody_wrote = [&] {
    fail(Rule::uninitialised_shared, std::string(how) + place(offset) + ", which nobody has written");
  };
  if (cell.fine != 0) {
    for (std::uint32_t i = 0; i < cell_parts; ++i) {
      const Epoch write = fine_[cell.fine - 1].parts[i].write;
      if (write.exists()) {
        check(write, offset + i * part_bytes);
      } else if (!cell.write.exists()) {
        nobody_wrote();
      }
    }
  }
  if (cell.write.exists()) {
    check(cell.write, offset);
  } else if (cell.fine == 0) {
    nobody_wrote();
  }
  if (cell.source != nullptr) use_copy(cell);
}

void SharedShadow::product_reads(std::uint32_t offset, std::span<const Thread> threads, int unit,
                                 Time product) {
  check_async_read(offset, threads, "starts a WGMMA that reads ", known_[unit]);
  cells_[offset / cell_bytes].unit_reads[unit] = product;
}

void SharedShadow::store_reads(std::uint32_t offset, const Thread& issuer, std::uint32_t store) {
  check_async_read(offset, {&issuer, 1}, "starts a store that reads ", {});
  Cell& cell = cells_[offset / cell_bytes];
  if (cell.stores == 0) {
    stores_.emplace_back();
    cell.stores = static_cast<std::uint32_t>(stores_.size());
  }
  std::vector<std::uint32_t>& stores = stores_[cell.stores - 1];
  // Who will know that this one was waited for knows it of those that the issuer knows.
  std::erase_if(stores, [&](std::uint32_t earlier) {
    const Epoch read = machine.stores[earlier].read;
    return read.exists() && issuer.clock.knows(read);
  });
  stores.push_back(store);
}

/// All of the cell that no thread has overwritten. From then on whoever writes where it came from is told; so
/// that it is used again need not be looked at.
void SharedShadow::use_copy(Cell& cell) const {
  for (std::uint32_t i = 0; i < cell_parts; ++i) {
    if (cell.fine != 0 && fine_[cell.fine - 1].parts[i].write.exists()) continue;
    machine.global.uses_copy(cell.source + i * part_bytes, part_bytes, cell.source_known);
  }
  cell.source = nullptr;
}

void SharedShadow::copy_writes(std::uint32_t offset, const Thread& issuer, Epoch landed) {
  Cell& cell = cells_[offset / cell_bytes];
  const char* how = "starts a copy to ";
  check_write(cell, issuer, offset, how);
  if (cell.fine != 0) {
    for (const Access& access : fine_[cell.fine - 1].parts) {
      check_parts(access, issuer, offset, how);
      if (access.write.exists() && issuer.async_visible[access.write.agent] < access.write.time) {
        fail(Rule::missing_proxy_fence, how + place(offset) + ", which " + author(access.write) +
                                            " wrote; no fence_async_proxy lies between them");
      }
    }
    free_fine_.push_back(cell.fine);
    cell.fine = 0;
  }
  cell.write = landed;
  cell.source = nullptr;
}

void SharedShadow::copied_from(std::uint32_t offset, const unsigned char* source, bool known) {
  Cell& cell = cells_[offset / cell_bytes];
  cell.source = source;
  cell.source_known = known;
}

}  // namespace tandem::hw::sim
