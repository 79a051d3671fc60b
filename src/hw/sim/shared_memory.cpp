// The block's shared window.
#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

std::uint32_t offset_of(const void* address, std::size_t bytes, const char* what) {
  const auto offset = static_cast<const unsigned char*>(address) - machine.window;
  if (offset < 0 || offset + static_cast<std::ptrdiff_t>(bytes) > machine.config->shared_bytes) {
    fail(Rule::shared_bounds, std::string(what) + " lies at shared offset " + std::to_string(offset) + " (" +
                                  std::to_string(bytes) + " bytes), outside of the block's " +
                                  std::to_string(machine.config->shared_bytes) + " bytes");
  }
  return static_cast<std::uint32_t>(offset);
}

std::uint32_t access_shared(const void* address, std::size_t bytes, bool write, const void* code) {
  machine.running->code = code;
  const std::uint32_t offset = offset_of(address, bytes, "an accessed object");
  for (std::size_t i = offset / 8; i <= (offset + bytes - 1) / 8; ++i) {
    if (const BarrierRecord* barrier = machine.block.barrier_at[i]) {
      fail(Rule::bad_barrier, "treats " + describe(*barrier) + " as memory");
    }
  }
  machine.block.shadow.access(offset, bytes, write, code);
  return offset;
}

void* shared_memory(std::size_t bytes, std::size_t alignment) {
  TANDEM_SIM_ENTER();
  if (alignment > 1024) fail(Rule::bad_argument, "asks for shared memory aligned to more than 1024 bytes");
  offset_of(machine.window, bytes, "the block's struct");
  return machine.window;
}

std::uint32_t shared_address(const void* object) {
  TANDEM_SIM_ENTER();
  return window_base + offset_of(object, 1, "an operand");
}

}  // namespace tandem::hw::sim
