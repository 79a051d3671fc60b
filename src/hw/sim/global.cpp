// Ordinary accesses of global memory, atomics, and what they order.
#include <algorithm>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

void GlobalShadow::reset(std::span<const Buffer> buffers) {
  entries_.clear();
  loads_.clear();
  reductions_.clear();
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

bool GlobalShadow::nobody_wrote(const Entry& entry, const Part& part) {
  return entry.buffer->uninitialised && part.store.block == -1;
}

/// The part has to be ordered after all that conflicts with it.
void GlobalShadow::check(const Entry& entry, std::size_t number, const Part& part, Use use) const {
  static constexpr const char* names[] = {"reads ", "writes ", "adds to ", "adds to "};
  const Thread& thread = *machine.running;
  const auto how = [&] {
    return names[static_cast<int>(use)] + std::string(entry.buffer->name) + " at byte " +
           std::to_string(number * part_bytes);
  };
  const auto require_known = [&](const Event& event, const char* done) {
    if (knows(thread, event)) return;
    fail(Rule::global_race, how() + ", which thread " + std::to_string(event.epoch.agent) + " of block " +
                                std::to_string(event.block) + done +
                                (event.record == no_store ? "" : " by TMA") + " without synchronisation");
  };
  if (use != Use::store && nobody_wrote(entry, part))
    fail(Rule::uninitialised_global, how() + ", which nobody has written");
  require_known(part.store, " wrote");
  if (use != Use::reduction && part.reductions != 0) {
    for (const Event& reduction : reductions_[part.reductions - 1]) require_known(reduction, " added to");
  }
  if (use == Use::load) return;
  if (part.copied) fail(Rule::global_race, how() + ", from where a copy has brought bytes that were used");
  if (part.loads == 0) return;
  for (const Event& load : loads_[part.loads - 1]) require_known(load, " read");
}

void GlobalShadow::note(Part& part, Use use, const Event& now) {
  if (use == Use::load) return note_load(part, now);
  if (use == Use::reduction) return note_reduction(part, now);  // others may come that don't know the loads
  part.store = now;
  if (part.loads != 0) loads_[part.loads - 1].clear();
  if (part.reductions != 0) reductions_[part.reductions - 1].clear();
}

void GlobalShadow::note_reduction(Part& part, const Event& now) {
  if (part.reductions == 0) {
    reductions_.emplace_back();
    part.reductions = static_cast<std::uint32_t>(reductions_.size());
  }
  std::vector<Event>& reductions = reductions_[part.reductions - 1];
  // Who will know of this one knows of those that the thread knows.
  std::erase_if(reductions, [](const Event& earlier) { return knows(*machine.running, earlier); });
  reductions.push_back(now);
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
    check(*entry, i, own, use);
    note(own, use, now);
  }
  return true;
}

bool GlobalShadow::copy_reads(const void* address, std::size_t bytes, const CopyInFlight& copy) {
  if (entries_.empty()) return false;
  const Entry* entry = find(address, bytes);
  if (entry == nullptr) {
    record(Rule::global_bounds, &machine.block.threads[copy.thread],
           "copies from global memory outside of all buffers", {{"the copy", copy.code}});
    return false;
  }
  return entry->buffer->writable;
}

void GlobalShadow::uses_copy(const void* address, std::size_t bytes) {
  Entry* entry = find(address, bytes);
  if (entry == nullptr) return;
  const std::size_t number = offset_in(*entry, address) / part_bytes;
  Part& own = part(*entry, number);
  if (nobody_wrote(*entry, own)) {
    fail(Rule::uninitialised_global, std::string("uses bytes that a copy brought from ") +
                                         entry->buffer->name + " at byte " +
                                         std::to_string(number * part_bytes) + ", which nobody has written");
  }
  const bool added = own.reductions != 0 && !reductions_[own.reductions - 1].empty();
  if (const Event& write = added ? reductions_[own.reductions - 1].front() : own.store; write.block != -1) {
    fail(Rule::global_race, std::string("uses bytes that a copy brought from ") + entry->buffer->name +
                                " at byte " + std::to_string(number * part_bytes) + ", which thread " +
                                std::to_string(write.epoch.agent) + " of block " +
                                std::to_string(write.block) + " wrote in the same launch");
  }
  own.copied = true;
}

void GlobalShadow::synchronise(const void* address, Thread& thread) {
  const int block = machine.block.index;
  if (const auto found = released_.find(address); found != released_.end()) {
    const Released& released = found->second;
    if (released.block == block) {
      thread.clock.join(released.clock);
    } else {
      thread.clock.join(released.block, released.clock);
    }
  }
  // Having learnt all that was released there, the thread releases that too.
  released_.insert_or_assign(address, Released{block, thread.clock});
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
  machine.global.synchronise(address, thread);
  check_verb(address, sizeof *address, Use::atomic);
  const std::uint32_t old = *address;
  *address = old + value;
  tick(thread);
  perturb();
  return old;
}

}  // namespace tandem::hw::sim
