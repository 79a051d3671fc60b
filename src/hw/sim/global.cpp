// Ordinary accesses of global memory, atomics, and what they order.
#include <algorithm>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

void GlobalShadow::reset(std::span<const Buffer> buffers) {
  entries_.clear();
  loads_.clear();
  released_.clear();
  for (const Buffer& buffer : buffers) {
    entries_.push_back({&buffer, {}});
    if (buffer.writable) entries_.back().pages.resize(buffer.bytes / (part_bytes * page_parts) + 1);
  }
}

GlobalShadow::Entry* GlobalShadow::find(const void* address, std::size_t bytes) {
  for (Entry& entry : entries_) {
    const std::size_t offset = offset_in(entry, address);
    if (offset < entry.buffer->bytes && offset + bytes <= entry.buffer->bytes) return &entry;
  }
  return nullptr;
}

std::size_t GlobalShadow::offset_in(const Entry& entry, const void* address) {
  return static_cast<std::size_t>(static_cast<const char*>(address) -
                                  static_cast<const char*>(entry.buffer->data));
}

GlobalShadow::Part& GlobalShadow::part(Entry& entry, std::size_t number) {
  Page& page = entry.pages[number / page_parts];
  if (page.empty()) page.resize(page_parts);
  return page[number % page_parts];
}

bool GlobalShadow::knows(const Thread& thread, const Event& event) {
  if (event.block == -1) return true;
  const Epoch epoch = event.record == no_store ? event.epoch : machine.stores[event.record].written;
  if (!epoch.exists()) return false;
  return event.block == machine.block.index ? thread.clock.knows(epoch)
                                            : thread.clock.knows(event.block, epoch);
}

/// Its own asynchronous stores that it has waited for need no fence.
bool GlobalShadow::async_knows(const Thread& thread, const Event& event) {
  if (event.block == -1) return true;
  const Epoch epoch = event.record == no_store ? event.epoch : machine.stores[event.record].written;
  if (!epoch.exists()) return false;
  if (event.block != machine.block.index) return thread.async_visible_global.knows(event.block, epoch);
  if (event.record != no_store && epoch.agent == thread.index) return thread.clock.knows(epoch);
  return thread.async_visible_global.knows(epoch);
}

bool GlobalShadow::nobody_wrote(const Entry& entry, const Part& part) {
  return entry.buffer->uninitialised && part.store.block == -1;
}

/// The part has to be ordered after all that conflicts with it.
void GlobalShadow::check(const Entry& entry, std::size_t number, const Part& part, Use use,
                         bool async) const {
  static constexpr const char* names[] = {"reads ", "writes ", "adds to ", "adds to "};
  const Thread& thread = *machine.running;
  const auto how = [&] {
    return names[static_cast<int>(use)] + std::string(entry.buffer->name) + " at byte " +
           std::to_string(number * part_bytes);
  };
  const auto require_known = [&](const Event& event, const char* done) {
    if (async ? async_knows(thread, event) : knows(thread, event)) return;
    if (async && knows(thread, event)) {
      fail(Rule::missing_proxy_fence, how() + " by TMA, which thread " + std::to_string(event.epoch.agent) +
                                          " of block " + std::to_string(event.block) + done +
                                          "; no fence_async_proxy_global lies between them");
    }
    fail(Rule::global_race, how() + ", which thread " + std::to_string(event.epoch.agent) + " of block " +
                                std::to_string(event.block) + done +
                                (event.record == no_store ? "" : " by TMA") + " without synchronisation");
  };
  if (use != Use::store && nobody_wrote(entry, part))
    fail(Rule::uninitialised_global, how() + ", which nobody has written");
  require_known(part.store, " wrote");
  if (use == Use::load) return;
  require_known(part.copy_use, " used after a copy");
  if (part.loads == 0) return;
  for (const Event& load : loads_[part.loads - 1]) require_known(load, " read");
}

void GlobalShadow::note(Part& part, Use use, const Event& now) {
  if (use == Use::load) return note_load(part, now);
  part.store = now;
  part.copy_use = {};
  if (part.loads != 0) loads_[part.loads - 1].clear();
}

void GlobalShadow::note_load(Part& part, const Event& now) {
  if (part.loads == 0) {
    loads_.emplace_back();
    part.loads = static_cast<std::uint32_t>(loads_.size());
  }
  std::vector<Event>& loads = loads_[part.loads - 1];
  const auto own = std::find_if(loads.begin(), loads.end(), [&](const Event& load) {
    return load.block == now.block && load.epoch.agent == now.epoch.agent;
  });
  if (own != loads.end()) {
    *own = now;
  } else {
    loads.push_back(now);
  }
}

bool GlobalShadow::access(const void* address, std::size_t bytes, Use use, std::uint32_t store) {
  Entry* entry = find(address, bytes);
  if (entry == nullptr) return false;
  require_prior_grid(*machine.running, entry->buffer->name);
  if (!entry->buffer->writable) {
    if (use != Use::load)
      fail(Rule::global_bounds, std::string("writes to ") + entry->buffer->name + ", which is only read");
    return true;
  }
  const std::size_t offset = offset_in(*entry, address);
  const Event now{machine.block.index, machine.running->now(), store};
  for (std::size_t i = offset / part_bytes; i < (offset + bytes + part_bytes - 1) / part_bytes; ++i) {
    Part& own = part(*entry, i);
    check(*entry, i, own, use, store != no_store);
    note(own, use, now);
  }
  return true;
}

GlobalShadow::Source GlobalShadow::copy_reads(const void* address, std::size_t bytes,
                                              const CopyInFlight& copy) {
  if (entries_.empty()) return Source::only_read;
  const Entry* entry = find(address, bytes);
  const Thread& issuer = machine.block.threads[copy.thread];
  if (entry == nullptr) {
    record(Rule::global_bounds, &issuer, "copies from global memory outside of all buffers",
           {{"the copy", copy.code}});
    return Source::only_read;
  }
  if (!entry->buffer->writable) return Source::only_read;
  const std::size_t offset = offset_in(*entry, address),
                    past = (offset + bytes + part_bytes - 1) / part_bytes;
  for (std::size_t i = offset / part_bytes; i < past; ++i) {
    const Page& page = entry->pages[i / page_parts];
    if (!page.empty() && !async_knows(issuer, page[i % page_parts].store)) return Source::unknown;
  }
  return Source::known;
}

void GlobalShadow::uses_copy(const void* address, std::size_t bytes, bool known) {
  Entry* entry = find(address, bytes);
  if (entry == nullptr) return;
  const Thread& thread = *machine.running;
  const std::size_t number = offset_in(*entry, address) / part_bytes;
  Part& own = part(*entry, number);
  const auto how = [&] {
    return std::string("uses bytes that a copy brought from ") + entry->buffer->name + " at byte " +
           std::to_string(number * part_bytes);
  };
  if (nobody_wrote(*entry, own)) fail(Rule::uninitialised_global, how() + ", which nobody has written");
  // Who started the copy knew what was written then, with a fence; who uses it knows that nothing came since.
  if (own.store.block != -1 && !(known && knows(thread, own.store))) {
    fail(Rule::global_race, how() + ", which thread " + std::to_string(own.store.epoch.agent) + " of block " +
                                std::to_string(own.store.block) +
                                " wrote in the same launch; the copy was not ordered behind that");
  }
  own.copy_use = {machine.block.index, thread.now()};
}

void GlobalShadow::acquire(const void* address, Thread& thread) const {
  const auto found = released_.find(address);
  if (found == released_.end()) return;
  const Released& released = found->second;
  if (released.block == machine.block.index) {
    thread.clock.join(released.clock);
  } else {
    thread.clock.join(released.block, released.clock);
  }
}

void GlobalShadow::release(const void* address, const Thread& thread) {
  Released now{machine.block.index, thread.clock};
  if (const auto found = released_.find(address); found != released_.end()) {
    const Released& before = found->second;
    if (before.block == now.block) {
      now.clock.join(before.clock);
    } else {
      now.clock.join(before.block, before.clock);
    }
  }
  released_.insert_or_assign(address, std::move(now));
}

void GlobalShadow::check_counter(const std::uint32_t* counter) {
  const std::string what = "uses a counter ";
  if (reinterpret_cast<std::uintptr_t>(counter) % sizeof *counter != 0)
    fail(Rule::global_bounds, what + "that is not aligned to its 4 bytes");
  if (entries_.empty()) return;
  Entry* entry = find(counter, sizeof *counter);
  if (entry == nullptr || !entry->buffer->writable)
    fail(Rule::global_bounds, what + "outside of all buffers that may be written");
  require_prior_grid(*machine.running, entry->buffer->name);
  const std::size_t number = offset_in(*entry, counter) / part_bytes;
  if (nobody_wrote(*entry, part(*entry, number)))
    fail(Rule::uninitialised_global, what + "of " + entry->buffer->name + " at byte " +
                                         std::to_string(number * part_bytes) + ", which nobody has written");
}

namespace {
/// What all verbs on global memory check.
void check_verb(const void* address, std::size_t bytes, Use use) {
  static constexpr const char* names[] = {"loads ", "stores ", "adds "};
  const std::string what = names[static_cast<int>(use)] + std::to_string(bytes);
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    fail(Rule::global_bounds, what + " bytes at a global address that is not aligned to them");
  }
  if (!machine.config->buffers.empty() && !machine.global.access(address, bytes, use)) {
    fail(Rule::global_bounds, what + " bytes of global memory outside of all buffers");
  }
}
}  // namespace

void require_prior_grid(Thread& thread, const char* what) {
  if (!machine.config->early || thread.after_prior_grid) return;
  const auto knows = [&thread](Epoch wait) { return thread.clock.knows(wait); };
  thread.after_prior_grid = std::ranges::any_of(machine.block.prior_grid_waits, knows);
  if (thread.after_prior_grid) return;
  fail(Rule::early_access,
       std::string("uses ") + what +
           " while the grid before may still run: no wait_for_prior_grid that it knows of");
}

void wait_for_prior_grid() {
  Thread& thread = TANDEM_SIM_ENTER();
  machine.waited_for_prior_grid = true;
  if (thread.after_prior_grid) return;
  thread.after_prior_grid = true;
  machine.block.prior_grid_waits.push_back(thread.now());
}

void release_next_grid() {
  Thread& thread = TANDEM_SIM_ENTER();
  if (machine.config->next_beside && !thread.after_prior_grid)
    fail(Rule::early_access,
         "lets the grid behind begin, which runs beside this one, before it has waited for the grid before");
}

void store_global(void* address, const void* data, std::size_t bytes) {
  TANDEM_SIM_ENTER();
  check_verb(address, bytes, Use::store);
  std::copy_n(static_cast<const unsigned char*>(data), bytes, static_cast<unsigned char*>(address));
}

void load_global(void* data, const void* address, std::size_t bytes) {
  TANDEM_SIM_ENTER();
  check_verb(address, bytes, Use::load);
  std::copy_n(static_cast<const unsigned char*>(address), bytes, static_cast<unsigned char*>(data));
}

std::uint32_t atomic_add(std::uint32_t* address, std::uint32_t value) {
  Thread& thread = TANDEM_SIM_ENTER();
  machine.global.acquire(address, thread);
  machine.global.release(address, thread);
  check_verb(address, sizeof *address, Use::atomic);
  const std::uint32_t old = *address;
  *address = old + value;
  tick(thread);
  perturb();
  return old;
}

namespace {
/// Blocks run at the same time on the chip: where one counts on others, it lets them go on.
void let_others_run() {
  if (machine.config->policy == Policy::late || machine.chance(2)) return;
  machine.wants_another = true;
  yield();
}
}  // namespace

std::uint32_t take_number(std::uint32_t* counter) {
  TANDEM_SIM_ENTER();
  machine.global.check_counter(counter);
  const std::uint32_t old = (*counter)++;
  let_others_run();
  return old;
}

void signal_counter(std::uint32_t* counter) {
  Thread& thread = TANDEM_SIM_ENTER();
  machine.global.check_counter(counter);
  machine.global.release(counter, thread);
  ++*counter;
  tick(thread);
  wake_counters();
  perturb();
}

void wait_counter(const std::uint32_t* counter, std::uint32_t value) {
  Thread& thread = TANDEM_SIM_ENTER();
  machine.global.check_counter(counter);
  let_others_run();
  wait_until(thread, machine.block.waiting_for_counters, {Wait::Kind::counter, static_cast<int>(value)},
             [&] { return *counter >= value; });
  machine.global.acquire(counter, thread);
}

}  // namespace tandem::hw::sim
