// Ordinary accesses of global memory, and atomics.
#include <algorithm>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

void GlobalShadow::reset(std::span<const Buffer> buffers) {
  entries_.clear();
  for (const Buffer& buffer : buffers) {
    entries_.push_back({&buffer, {}});
    if (buffer.writable) entries_.back().writers.resize((buffer.bytes + 3) / 4);
  }
}

GlobalShadow::Entry* GlobalShadow::find(const void* address, std::size_t bytes) {
  for (Entry& entry : entries_) {
    const auto offset = static_cast<std::size_t>(static_cast<const char*>(address) -
                                                 static_cast<const char*>(entry.buffer->data));
    if (offset < entry.buffer->bytes && offset + bytes <= entry.buffer->bytes) return &entry;
  }
  return nullptr;
}

bool GlobalShadow::access(const void* address, std::size_t bytes, bool write) {
  Entry* entry = find(address, bytes);
  if (entry == nullptr) return false;
  if (!entry->buffer->writable) {
    if (write)
      fail(Rule::global_bounds, std::string("writes to ") + entry->buffer->name + ", which is only read");
    return true;
  }
  const Thread& thread = *machine.running;
  const auto offset = static_cast<std::size_t>(static_cast<const char*>(address) -
                                               static_cast<const char*>(entry->buffer->data));
  for (std::size_t i = offset / 4; i < (offset + bytes + 3) / 4; ++i) {
    Writer& writer = entry->writers[i];
    const bool ordered =
        writer.block == -1 || (writer.block == machine.block.index && thread.clock.knows(writer.event));
    if (!ordered) {
      fail(Rule::global_race, std::string(write ? "writes " : "reads ") + entry->buffer->name + " at byte " +
                                  std::to_string(offset) + ", which thread " +
                                  std::to_string(writer.event.agent) + " of block " +
                                  std::to_string(writer.block) + " wrote without synchronisation");
    }
    if (write) writer = {machine.block.index, thread.now()};
  }
  return true;
}

void GlobalShadow::copy_reads(const void* address, std::size_t bytes, const CopyInFlight& copy) {
  if (entries_.empty()) return;
  const Thread& issuer = machine.block.threads[copy.thread];
  const Entry* entry = find(address, bytes);
  if (entry == nullptr) {
    return record(Rule::global_bounds, &issuer, "copies from global memory outside of all buffers",
                  {{"the copy", copy.code}});
  }
  if (entry->buffer->writable) {
    record(Rule::global_race, &issuer,
           std::string("copies from ") + entry->buffer->name + ", which the kernel writes",
           {{"the copy", copy.code}});
  }
}

namespace {
/// What all verbs on global memory check.
void check(const void* address, std::size_t bytes, bool write, const char* what) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes != 0) {
    fail(Rule::global_bounds, std::string(what) + std::to_string(bytes) +
                                  " bytes at a global address that is not aligned to them");
  }
  if (!machine.config->buffers.empty() && !machine.global.access(address, bytes, write)) {
    fail(Rule::global_bounds,
         std::string(what) + std::to_string(bytes) + " bytes of global memory outside of all buffers");
  }
}
}  // namespace

void store_global(void* address, const void* data, std::size_t bytes) {
  TANDEM_SIM_ENTER();
  check(address, bytes, true, "stores ");
  std::copy_n(static_cast<const unsigned char*>(data), bytes, static_cast<unsigned char*>(address));
}

void load_global(void* data, const void* address, std::size_t bytes) {
  TANDEM_SIM_ENTER();
  check(address, bytes, false, "loads ");
  std::copy_n(static_cast<const unsigned char*>(address), bytes, static_cast<unsigned char*>(data));
}

std::uint32_t atomic_add(std::uint32_t* address, std::uint32_t value) {
  TANDEM_SIM_ENTER();
  const std::uint32_t old = *address;
  *address = old + value;
  return old;
}

}  // namespace tandem::hw::sim
