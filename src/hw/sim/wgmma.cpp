// The warpgroups' matrix units: WGMMAs in flight, their fences and groups.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/dtype.h"
#include "hw/sim/machine_state.h"
#include "hw/sim/matrix.h"
#include "hw/sim/swizzle.h"

namespace tandem::hw::sim {

namespace {

constexpr int cells_k = 2;  ///< 16-byte chunks in 16 elements

/// Offset of a chunk of an operand, checked against the block's shared memory.
std::uint32_t chunk(std::uint32_t address) {
  const std::uint32_t offset = address - window_base;
  if (address < window_base || offset + 16 > static_cast<std::uint32_t>(machine.config->shared_bytes)) {
    fail(Rule::shared_bounds, "starts a WGMMA whose descriptor leads to shared offset " +
                                  std::to_string(static_cast<std::int64_t>(address) - window_base) +
                                  ", beyond the block's " + std::to_string(machine.config->shared_bytes) +
                                  " bytes");
  }
  return offset;
}

/// An operand in shared memory: `size` rows of A, or columns of B.
struct SharedOperand {
  MatrixDescriptor descriptor;
  Major major;
  int size;

  /// Calls `visit(first index, second index, address)` for all chunks: (row, half) or (k, group).
  template <typename Visit>
  void for_each_chunk(Visit&& visit) const {
    const OperandLayout layout = OperandLayout::of(descriptor);
    if (major == Major::k) {
      for (int row = 0; row < size; ++row) {
        for (int half = 0; half < cells_k; ++half) visit(row, half, layout.k_major(row, half));
      }
    } else {
      for (int k = 0; k < 16; ++k) {
        for (int group = 0; group < size / 8; ++group) visit(k, group, layout.mn_major(k, group));
      }
    }
  }
};
SharedOperand a_of(const Product& product) { return {product.a, product.a_major, 64}; }
SharedOperand b_of(const Product& product) { return {product.b, product.b_major, product.n}; }

void check_descriptor(MatrixDescriptor descriptor, Major major, const char* name) {
  const OperandLayout layout = OperandLayout::of(descriptor);
  if (layout.base_offset != 0)
    fail(Rule::bad_descriptor, std::string("descriptor of ") + name + " has a base offset");
  if (layout.swizzle == Swizzle::none && major == Major::mn) {
    fail(Rule::bad_descriptor,
         std::string("descriptor of ") + name + " is MN-major without swizzle, which is not modelled");
  }
}

Chunk chunk_at(const Product& product, std::uint32_t address) {
  return Chunk::of(product.operand, machine.window + (address - window_base));
}

/// Operands for each 16 of K.
using Steps = MatrixOperands[2];

void read_a(const ProductInFlight& flight, Steps& steps) {
  const Product& product = flight.product;
  const auto set = [&](int row, int k, float value) { steps[k / 16].a[row][k % 16] = value; };
  if (!product.a_in_registers) {
    a_of(product).for_each_chunk([&](int first, int second, std::uint32_t address) {
      const Chunk chunk = chunk_at(product, address);
      for (int i = 0; i < chunk.count; ++i) {
        if (product.a_major == Major::k) {
          set(first, chunk.count * second + i, chunk.values[i]);
        } else {
          set(8 * second + i, first, chunk.values[i]);
        }
      }
    });
    return;
  }
  for (int t = 0; t < warpgroup_size; ++t) {
    const Chunk chunk = Chunk::of(product.operand, flight.fragments[t]);
    const int row = 16 * (t / 32) + t % 32 / 4, each = chunk.count / 4;  // elements of a register
    for (int i = 0; i < chunk.count; ++i) {
      const int r = i / each;
      set(row + 8 * (r % 2), each * (4 * (r / 2) + t % 4) + i % each, chunk.values[i]);
    }
  }
}

void read_b(const Product& product, Steps& steps) {
  if (product.b_major == Major::mn) {
    b_of(product).for_each_chunk([&](int k, int group, std::uint32_t address) {
      const Chunk chunk = chunk_at(product, address);
      const float* v = chunk.values;
      for (int q = 0; q < 4; ++q) {
        const float both[4] = {v[2 * q], v[2 * q + 1], v[2 * q], v[2 * q + 1]};
        std::memcpy(&steps[0].b[q][k][4 * group], both, sizeof both);
      }
    });
    return;
  }
  b_of(product).for_each_chunk([&](int row, int half, std::uint32_t address) {
    const Chunk chunk = chunk_at(product, address);
    const int q = row % 8 / 2, at = row / 8 * 4 + row % 2;
    for (int i = 0; i < chunk.count; ++i) {
      const int k = chunk.count * half + i;
      auto& b = steps[k / 16].b[q][k % 16];
      b[at] = b[at + 2] = chunk.values[i];
    }
  });
}

void fill_accumulators(const ProductInFlight& flight, std::uint32_t word) {
  for (void* own : flight.accumulators)
    std::fill_n(static_cast<std::uint32_t*>(own), flight.product.accumulator_words(), word);
}

void multiply_to_32_bits(const Product& product, const Steps& steps, float* const (&sums)[warpgroup_size]) {
  if (is_16_bit(product.operand)) {
    multiply(steps[0], product.n, sums);
  } else if (product.operand == Operand::e4m3) {
    multiply_e4m3(steps, product.n, sums);
  } else {
    multiply_int8(steps, product.n, sums);
  }
}

/// As the chip makes them: every NaN is the canonical one.
std::uint32_t to_fp16(float x) { return std::isnan(x) ? 0x7fffu : std::uint32_t{core::Fp16::from(x).bits}; }

/// Of e4m3, from and to fp16.
void multiply_to_fp16(const Steps& steps, const ProductInFlight& flight) {
  static float sums[warpgroup_size][128];
  const int words = flight.product.accumulator_words();
  float* own[warpgroup_size];
  for (int t = 0; t < warpgroup_size; ++t) {
    own[t] = sums[t];
    const auto* pairs = static_cast<const std::uint32_t*>(flight.accumulators[t]);
    for (int i = 0; i < words; ++i) {
      own[t][2 * i] = from_fp16(static_cast<std::uint16_t>(pairs[i]));
      own[t][2 * i + 1] = from_fp16(static_cast<std::uint16_t>(pairs[i] >> 16));
    }
  }
  multiply_e4m3_whole(steps, flight.product.n, own);
  for (int t = 0; t < warpgroup_size; ++t) {
    auto* pairs = static_cast<std::uint32_t*>(flight.accumulators[t]);
    for (int i = 0; i < words; ++i) pairs[i] = to_fp16(own[t][2 * i]) | to_fp16(own[t][2 * i + 1]) << 16;
  }
}

void execute(MatrixUnit& unit) {
  static Steps steps;
  const ProductInFlight& flight = unit.products.front();
  if (machine.config->trace != nullptr) {
    machine.config->trace->add("block " + std::to_string(machine.block.index) + ", matrix unit " +
                                   std::to_string(&unit - machine.block.units.data()),
                               flight.product.a_in_registers ? "WGMMA (RS)" : "WGMMA (SS)", flight.started,
                               machine.verbs);
  }
  read_a(flight, steps);
  read_b(flight.product, steps);
  if (flight.product.accumulate == Accumulate::overwrite) fill_accumulators(flight, 0);
  if (flight.product.fp16_sums) {
    multiply_to_fp16(steps, flight);
  } else {
    float* accumulators[warpgroup_size];
    std::transform(std::begin(flight.accumulators), std::end(flight.accumulators), accumulators,
                   [](void* own) { return static_cast<float*>(own); });
    multiply_to_32_bits(flight.product, steps, accumulators);
  }
  unit.products.pop_front();
  ++unit.first;
  ++unit.completed;
  wake(unit.waiting);
}

/// All 128 threads have come: the matrix unit may read its operands from now on.
void issue(MatrixUnit& unit, int warpgroup, ProductInFlight& flight) {
  ++unit.issued;
  flight.started = machine.verbs;
  ++machine.report.statistics.products;
  const std::span<Thread> threads(&machine.block.threads[warpgroup * warpgroup_size], warpgroup_size);
  const auto read = [&](int, int, std::uint32_t address) {
    machine.block.shadow.product_reads(chunk(address), threads, warpgroup, unit.issued);
  };
  if (!flight.product.a_in_registers) a_of(flight.product).for_each_chunk(read);
  b_of(flight.product).for_each_chunk(read);
  if (machine.config->policy == Policy::eager) return execute(unit);
  // NaN, of either size.
  if (flight.product.accumulate == Accumulate::overwrite) fill_accumulators(flight, 0x7fff7fff);
}

void mark(const Thread& thread, const OwnedRegisters& owned, bool in_flight) {
  const auto first = (static_cast<const char*>(owned.begin) - thread.stack) / 4;
  const std::uint32_t owner = owned.accumulators ? owned_accumulator : owned_fragment;
  std::fill_n(thread.touched + first, owned.bytes / 4, in_flight ? owner : 0);  // 0: before any fence
}

/// The registers belong to the product until it is waited for; a fence has to lie between their last ordinary
/// use and now.
void own(Thread& thread, const OwnedRegisters& registers) {
  for (OwnedRegisters& owned : thread.owned_registers) {
    if (owned.begin == registers.begin && owned.bytes == registers.bytes &&
        owned.accumulators == registers.accumulators) {
      owned.product = registers.product;
      return;
    }
  }
  const auto* begin = static_cast<const char*>(registers.begin);
  if (begin < thread.stack || begin + registers.bytes > thread.stack_end()) {
    fail(Rule::bad_argument, "passes registers to a WGMMA that are no local variables");
  }
  const auto first = (begin - thread.stack) / 4;
  const std::uint32_t* touched = thread.touched + first;
  if (std::any_of(touched, touched + registers.bytes / 4, is_owned)) {
    fail(Rule::use_before_wait, "starts a WGMMA on registers that a WGMMA of another shape still uses");
  }
  if (!thread.fenced || std::find(touched, touched + registers.bytes / 4, thread.fence_epoch) !=
                            touched + registers.bytes / 4) {
    fail(Rule::missing_wgmma_fence,
         std::string("starts a WGMMA without a wgmma_fence after the last use of its ") +
             (registers.accumulators ? "accumulators" : "A fragment"));
  }
  thread.owned_registers.push_back(registers);
  mark(thread, registers, true);
}

bool same(const Product& a, const Product& b) {
  return a.operand == b.operand && a.n == b.n && a.a_major == b.a_major && a.b_major == b.b_major &&
         a.a_in_registers == b.a_in_registers && a.accumulate == b.accumulate && a.a.bits == b.a.bits &&
         a.b.bits == b.b.bits && a.fp16_sums == b.fp16_sums;
}

}  // namespace

void wgmma_fence() {
  Thread& thread = TANDEM_SIM_ENTER();
  converge(thread, "wgmma_fence");
  thread.fence_epoch = ++*thread.stack_epoch;
  thread.fenced = true;
}

void wgmma_commit() {
  Thread& thread = TANDEM_SIM_ENTER();
  converge(thread, "wgmma_commit");
  thread.groups.push_back(thread.products);
}

void wgmma(const Product& product, void* accumulators, const std::uint32_t* a_fragment) {
  Thread& thread = TANDEM_SIM_ENTER();
  converge(thread, "wgmma");
  if (!product.a_in_registers) check_descriptor(product.a, product.a_major, "A");
  check_descriptor(product.b, product.b_major, "B");
  MatrixUnit& unit = machine.block.units[thread.warpgroup()];
  const Time number = ++thread.products;
  own(thread, {accumulators, product.accumulator_words() * sizeof(float), true, number});
  if (product.a_in_registers) own(thread, {a_fragment, 4 * sizeof(std::uint32_t), false, number});
  const std::size_t place = number - unit.first;
  if (place == unit.products.size()) unit.products.push_back({product, {}, {}, 0, thread.code});
  ProductInFlight& flight = unit.products[place];
  if (!same(flight.product, product)) {
    fail(Rule::divergence, "starts another WGMMA than the other threads of its warpgroup",
         {{"the others", flight.code}});
  }
  if (!same_place(flight.code, thread.code)) {
    fail(Rule::divergence, "starts a WGMMA at another place than the other threads of its warpgroup",
         {{"the others", flight.code}});
  }
  flight.accumulators[thread.index % warpgroup_size] = accumulators;
  flight.fragments[thread.index % warpgroup_size] = a_fragment;
  if (++flight.threads == warpgroup_size) issue(unit, thread.warpgroup(), flight);
}

void wgmma_wait(int pending) {
  Thread& thread = TANDEM_SIM_ENTER();
  converge(thread, "wgmma_wait", pending);
  const auto groups = static_cast<int>(thread.groups.size());
  const Time target = groups > pending ? thread.groups[groups - 1 - pending] : 0;
  MatrixUnit& unit = machine.block.units[thread.warpgroup()];
  wait_until(thread, unit.waiting, {Wait::Kind::products, static_cast<int>(target)},
             [&] { return unit.completed >= target; });
  Time& known = thread.clock[machine.agent_of_unit(thread.warpgroup())];
  known = std::max(known, target);
  std::erase_if(thread.owned_registers, [&](const OwnedRegisters& owned) {
    if (owned.product > target) return false;
    mark(thread, owned, false);
    return true;
  });
}

void disown_registers(Thread& thread) {
  for (const OwnedRegisters& owned : thread.owned_registers) mark(thread, owned, false);
  thread.owned_registers.clear();
}

bool execute_product() {
  std::vector<MatrixUnit>& units = machine.block.units;
  const std::size_t start = machine.config->policy == Policy::random ? machine.draw(units.size()) : 0;
  for (std::size_t i = 0; i < units.size(); ++i) {
    MatrixUnit& unit = units[(start + i) % units.size()];
    if (unit.issued > unit.completed) {
      execute(unit);
      return true;
    }
  }
  return false;
}

}  // namespace tandem::hw::sim
