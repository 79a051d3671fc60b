// Ordinary memory accesses of kernels. Kernel code is compiled with -fsanitize=thread, whose calls arrive
// here instead of in the sanitizer's own library: every load and store that is not provably private is seen,
// with its code address, at a few nanoseconds each. The same with -fsanitize=bounds-strict, for indices that
// lie outside of their array.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

namespace {

/// Registers are the thread's stack memory here. Unfinished WGMMAs own some of them.
[[noreturn, gnu::noinline]] void fail_owned(Thread& thread, std::uint32_t owner, bool write,
                                            const void* code) {
  thread.code = code;
  if (owner == owned_fragment && write)
    fail(Rule::operand_overwritten, "writes an A fragment that an unfinished WGMMA reads");
  fail(Rule::use_before_wait, std::string(write ? "writes" : "reads") +
                                  (owner == owned_fragment ? " an A fragment" : " an accumulator") +
                                  " of a WGMMA that it has not waited for");
}

/// The chip's accesses are aligned to their size. What the compiler knows to be less aligned arrives as a
/// range, which is several accesses there.
void require_alignment(Thread& thread, std::size_t offset, std::size_t bytes, const void* code) {
  if (offset % bytes == 0) return;
  thread.code = code;
  fail(Rule::shared_bounds, "accesses " + std::to_string(bytes) + " bytes at shared offset " +
                                std::to_string(offset) + ", which is not aligned to them");
}

[[gnu::noinline]] void touch_memory(const void* address, std::size_t bytes, bool write, const void* code,
                                    bool aligned) {
  Thread* thread = machine.running;
  if (machine.in_hook) return;
  machine.in_hook = true;
  const std::size_t in_window = static_cast<const unsigned char*>(address) - machine.window;
  if (in_window < std::size_t{1} << 18) {
    if (aligned) require_alignment(*thread, in_window, bytes, code);
    access_shared(address, bytes, write, code);
  } else {
    machine.global.access(address, bytes, write ? Use::store : Use::load);
  }
  machine.in_hook = false;
}

/// Most accesses are of registers: what they need is inlined into the hooks.
[[gnu::always_inline]] inline void touch(const void* address, std::size_t bytes, bool write, const void* code,
                                         bool aligned = true) {
  Thread* thread = machine.running;
  if (thread == nullptr) return;
  const std::size_t on_stack = static_cast<const char*>(address) - thread->stack;
  if (on_stack >= stack_bytes) return touch_memory(address, bytes, write, code, aligned);
  std::uint32_t* const past = thread->touched + (on_stack + bytes + 3) / 4;
  for (std::uint32_t* slot = thread->touched + on_stack / 4; slot != past; ++slot) {
    if (is_owned(*slot)) fail_owned(*thread, *slot, write, code);
    *slot = thread->fence_epoch;
  }
}

/// What the compiler says of an index that it checks: libubsan's layout.
struct IndexCheck {
  struct Type {
    std::uint16_t kind;
    std::uint16_t info;  ///< of an integer: 2 * log2 of its bits, plus 1 where it is signed
    char name[1];        ///< with quotes, and so long as it needs
  };
  const char* file;
  std::uint32_t line, column;
  const Type *array, *index;

  std::string text(std::uintptr_t value) const {
    const int unused = 64 - (1 << (index->info >> 1));
    const bool is_signed = (index->info & 1) != 0 && unused >= 0;
    const auto extended =
        is_signed ? static_cast<std::int64_t>(value << unused) >> unused : static_cast<std::int64_t>(value);
    return "uses index " + std::to_string(extended) + " of an array of type " + array->name;
  }
};

/// The chip's registers have no neighbours: an index beyond them is some other value, or local memory.
void meet_index(const IndexCheck& check, std::uintptr_t value, const void* code) {
  if (machine.running == nullptr) {  // not a kernel's: what it shares with the host, such as a plan
    std::fprintf(stderr, "%s:%u %s\n", check.file, check.line, check.text(value).c_str());
    std::abort();
  }
  machine.running->code = code;
  fail(Rule::array_bounds, check.text(value));
}

}  // namespace

}  // namespace tandem::hw::sim

// Names and signatures are the compiler's; see gcc/sanitizer.def.
#define TANDEM_ACCESS(name, bytes, write)                                       \
  void __tsan_##name##bytes(void* address) {                                    \
    tandem::hw::sim::touch(address, bytes, write, __builtin_return_address(0)); \
  }
#define TANDEM_ACCESSES(bytes)                \
  TANDEM_ACCESS(read, bytes, false)           \
  TANDEM_ACCESS(write, bytes, true)           \
  TANDEM_ACCESS(unaligned_read, bytes, false) \
  TANDEM_ACCESS(unaligned_write, bytes, true) \
  TANDEM_ACCESS(volatile_read, bytes, false)  \
  TANDEM_ACCESS(volatile_write, bytes, true)

// Kernels have no atomics of the host; the tests around them do, through the standard library. They are not
// checked.
#define TANDEM_ATOMIC(bits, type, name, builtin)                                   \
  type __tsan_atomic##bits##_##name(volatile void* address, type value, int) {     \
    return builtin(static_cast<volatile type*>(address), value, __ATOMIC_SEQ_CST); \
  }
#define TANDEM_ATOMICS(bits, type)                                                                         \
  type __tsan_atomic##bits##_load(const volatile void* address, int) {                                     \
    return __atomic_load_n(static_cast<const volatile type*>(address), __ATOMIC_SEQ_CST);                  \
  }                                                                                                        \
  void __tsan_atomic##bits##_store(volatile void* address, type value, int) {                              \
    __atomic_store_n(static_cast<volatile type*>(address), value, __ATOMIC_SEQ_CST);                       \
  }                                                                                                        \
  TANDEM_ATOMIC(bits, type, exchange, __atomic_exchange_n)                                                 \
  TANDEM_ATOMIC(bits, type, fetch_add, __atomic_fetch_add)                                                 \
  TANDEM_ATOMIC(bits, type, fetch_sub, __atomic_fetch_sub)                                                 \
  TANDEM_ATOMIC(bits, type, fetch_and, __atomic_fetch_and)                                                 \
  TANDEM_ATOMIC(bits, type, fetch_or, __atomic_fetch_or)                                                   \
  TANDEM_ATOMIC(bits, type, fetch_xor, __atomic_fetch_xor)                                                 \
  bool __tsan_atomic##bits##_compare_exchange_strong(volatile void* address, void* expected, type value,   \
                                                     int, int) {                                           \
    return __atomic_compare_exchange_n(static_cast<volatile type*>(address), static_cast<type*>(expected), \
                                       value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                  \
  }                                                                                                        \
  bool __tsan_atomic##bits##_compare_exchange_weak(volatile void* address, void* expected, type value,     \
                                                   int a, int b) {                                         \
    return __tsan_atomic##bits##_compare_exchange_strong(address, expected, value, a, b);                  \
  }

extern "C" {
TANDEM_ACCESSES(1)
TANDEM_ACCESSES(2)
TANDEM_ACCESSES(4)
TANDEM_ACCESSES(8)
TANDEM_ACCESSES(16)
void __tsan_read_range(void* address, unsigned long bytes) {
  tandem::hw::sim::touch(address, bytes, false, __builtin_return_address(0), false);
}
void __tsan_write_range(void* address, unsigned long bytes) {
  tandem::hw::sim::touch(address, bytes, true, __builtin_return_address(0), false);
}
TANDEM_ATOMICS(8, unsigned char)
TANDEM_ATOMICS(32, unsigned int)
TANDEM_ATOMICS(64, unsigned long)
void __ubsan_handle_out_of_bounds(void* check, void* index) {
  tandem::hw::sim::meet_index(*static_cast<const tandem::hw::sim::IndexCheck*>(check),
                              reinterpret_cast<std::uintptr_t>(index), __builtin_return_address(0));
}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void __tsan_init() {}
}
