// TMA: tensor maps and boxes on their way.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "hw/sim/machine_state.h"
#include "hw/sim/swizzle.h"

namespace tandem::hw::sim {

namespace {

/// A tensor map in its 128 bytes.
struct EncodedMap {
  static constexpr std::uint64_t expected_mark = 0x7461'6e64'656d'0001;

  std::uint64_t mark, address, dims[4], stride_bytes[3];
  std::uint32_t box[4];
  std::uint32_t swizzle, element_bytes;

  std::uint32_t row_bytes() const { return box[0] * element_bytes; }
  std::uint32_t rows() const { return box[1] * box[2] * box[3]; }
};
static_assert(sizeof(EncodedMap) <= sizeof(TensorMap));

EncodedMap decode(const TensorMap& map) {
  EncodedMap encoded;
  std::memcpy(&encoded, &map, sizeof encoded);
  return encoded;
}

TensorMap encode(const EncodedMap& encoded) {
  TensorMap map{};
  std::memcpy(&map, &encoded, sizeof encoded);
  return map;
}

/// Copies one row of the box: elements that exist, zeros for the others.
void copy_row(const EncodedMap& map, const CopyInFlight& copy, std::uint32_t row) {
  const std::int64_t at[4] = {copy.origin.d, copy.origin.s + row % map.box[1],
                              copy.origin.h + row / map.box[1] % map.box[2],
                              copy.origin.b + row / (map.box[1] * map.box[2])};
  bool exists = true;
  const unsigned char* source = reinterpret_cast<const unsigned char*>(map.address);
  for (int i = 1; i < 4; ++i) {
    exists = exists && at[i] >= 0 && at[i] < static_cast<std::int64_t>(map.dims[i]);
    source += at[i] * static_cast<std::int64_t>(map.stride_bytes[i - 1]);
  }
  const std::int64_t size = map.element_bytes, length = map.row_bytes();
  const std::int64_t first = std::clamp<std::int64_t>(-at[0] * size, 0, length);
  const std::int64_t past =
      std::clamp<std::int64_t>((static_cast<std::int64_t>(map.dims[0]) - at[0]) * size, first, length);
  unsigned char bytes[256 * 8] = {};
  const unsigned char* begin = source + at[0] * size;
  bool writable = false;
  if (exists && past > first) {
    writable = machine.global.copy_reads(begin + first, past - first, copy);
    std::memcpy(bytes + first, begin + first, past - first);
  }
  const std::uint32_t offset = copy.destination + row * static_cast<std::uint32_t>(length);
  for (std::uint32_t i = 0; i < length; i += 16) {
    const std::uint32_t address = swizzled(window_base + offset + i, static_cast<Swizzle>(map.swizzle));
    std::memcpy(machine.window + (address - window_base), bytes + i, 16);
    if (writable && i >= first && i < past) {
      machine.block.shadow.copied_from(address - window_base, begin + i);
    }
  }
}

}  // namespace

TensorMap encode_tensor_map(const TensorMapSpec& spec) {
  const auto require = [](bool condition, const std::string& what) {
    if (!condition) throw std::invalid_argument("tensor map: " + what);
  };
  require(reinterpret_cast<std::uintptr_t>(spec.address) % 16 == 0, "address is not a multiple of 16");
  for (int i = 0; i < 4; ++i) {
    require(spec.dims[i] >= 1 && spec.dims[i] <= std::uint64_t{1} << 32, "dims have to be 1 to 2^32");
    require(spec.box[i] >= 1 && spec.box[i] <= 256, "box has to be 1 to 256 elements in each dimension");
    if (i < 3) require(spec.stride_bytes[i] % 16 == 0, "strides have to be multiples of 16 bytes");
    if (i < 3) require(spec.stride_bytes[i] < std::uint64_t{1} << 40, "strides have to be below 2^40 bytes");
  }
  const std::uint32_t row_bytes = spec.box[0] * spec.element_bytes;
  require(row_bytes % 16 == 0, "the box's rows have to be multiples of 16 bytes");
  require(spec.swizzle == Swizzle::none || row_bytes <= row_bytes_of(spec.swizzle),
          "the box's rows have to fit the swizzle's span");
  EncodedMap encoded{EncodedMap::expected_mark,
                     reinterpret_cast<std::uint64_t>(spec.address),
                     {},
                     {},
                     {},
                     static_cast<std::uint32_t>(spec.swizzle),
                     spec.element_bytes};
  std::copy_n(spec.dims, 4, encoded.dims);
  std::copy_n(spec.stride_bytes, 3, encoded.stride_bytes);
  std::copy_n(spec.box, 4, encoded.box);
  return encode(encoded);
}

void prefetch_map(const TensorMap& map) {
  TANDEM_SIM_ENTER();
  if (decode(map).mark != EncodedMap::expected_mark) {
    fail(Rule::bad_descriptor, "prefetches a tensor map that was never encoded");
  }
}

namespace {

/// Checks destination and barrier, and puts the box on its way.
void start_copy(Thread& thread, void* destination, const EncodedMap& map, Barrier& object, BoxOrigin origin) {
  const std::uint32_t bytes = map.row_bytes() * map.rows();
  const std::uint32_t offset = offset_of(destination, bytes, "a copy's destination");
  BarrierRecord& barrier = find_barrier(object, thread);
  if (!barrier.fenced.exists() || !thread.clock.knows(barrier.fenced)) {
    fail(Rule::missing_barrier_fence,
         "starts a copy that arrives at " + describe(barrier) +
             ", whose initialisation no fence_barrier_init (and block barrier) has shown to the async proxy");
  }
  const Epoch landed{barrier.agent, barrier.phases + 1};
  for (std::uint32_t i = 0; i < bytes; i += 16) machine.block.shadow.copy_writes(offset + i, thread, landed);
  std::fill_n(machine.window + offset, bytes, 0xff);
  ++machine.report.statistics.copies;
  barrier.copies_until = landed.time;
  barrier.last_copy = thread.code;
  CopyInFlight& copy = machine.block.copies.emplace_back(CopyInFlight{
      encode(map), origin, offset, &barrier, barrier.phases, {}, thread.index, thread.code, machine.verbs});
  thread.started_copies = true;
  for (std::uint32_t row = 0; row < map.rows(); ++row) copy.rows.push_back(row);
  if (machine.config->policy == Policy::random)
    std::shuffle(copy.rows.begin(), copy.rows.end(), machine.random);
  if (machine.config->policy == Policy::eager) land_copy(true);
  perturb();
}

void check_aligned(const void* destination, std::uint32_t alignment) {
  const auto offset = static_cast<const unsigned char*>(destination) - machine.window;
  if ((window_base + offset) % alignment != 0) {
    fail(Rule::bad_argument, "copies to shared offset " + std::to_string(offset) +
                                 ", which is not aligned to " + std::to_string(alignment));
  }
}

}  // namespace

void load_box(void* destination, const TensorMap& map, Barrier& barrier, BoxOrigin origin) {
  Thread& thread = TANDEM_SIM_ENTER();
  const EncodedMap encoded = decode(map);
  if (encoded.mark != EncodedMap::expected_mark) {
    fail(Rule::bad_descriptor, "copies through a tensor map that was never encoded");
  }
  check_aligned(destination, 128);
  start_copy(thread, destination, encoded, barrier, origin);
}

// As a box of rows of 16 bytes.
void copy_in(void* shared, const void* global, std::uint32_t bytes, Barrier& barrier) {
  constexpr std::uint32_t row = 16;
  Thread& thread = TANDEM_SIM_ENTER();
  const auto address = reinterpret_cast<std::uintptr_t>(global);
  if (bytes == 0 || bytes % row != 0 || address % row != 0) {
    fail(Rule::bad_argument,
         "copies " + std::to_string(bytes) + " bytes from a global address; both have to be multiples of 16");
  }
  check_aligned(shared, row);
  const std::uint32_t rows = bytes / row;
  start_copy(thread, shared,
             {EncodedMap::expected_mark,
              address,
              {row, rows, 1, 1},
              {row, bytes, bytes},
              {row, rows, 1, 1},
              static_cast<std::uint32_t>(Swizzle::none),
              1},
             barrier, {0, 0, 0, 0});
}

bool land_copy(bool everything) {
  std::deque<CopyInFlight>& copies = machine.block.copies;
  if (copies.empty()) return false;
  const Policy policy = machine.config->policy;
  const std::size_t chosen = policy == Policy::random ? machine.draw(copies.size())
                             : policy == Policy::late ? copies.size() - 1
                                                      : 0;
  CopyInFlight& copy = copies[chosen];
  const EncodedMap map = decode(copy.map);
  std::size_t count = copy.rows.size();
  if (!everything && policy == Policy::random && machine.draw(2) == 0) count = 1 + machine.draw(count);
  for (std::size_t i = 0; i < count; ++i) {
    copy_row(map, copy, copy.rows.back());
    copy.rows.pop_back();
  }
  complete_bytes(*copy.barrier, static_cast<std::uint32_t>(count) * map.row_bytes(), copy);
  if (copy.rows.empty() && machine.config->trace != nullptr) {
    machine.config->trace->add("block " + std::to_string(machine.block.index) + ", TMA to barrier " +
                                   std::to_string(copy.barrier->ordinal),
                               "copy", copy.started, machine.verbs);
  }
  if (copy.rows.empty()) copies.erase(copies.begin() + static_cast<std::ptrdiff_t>(chosen));
  return true;
}

}  // namespace tandem::hw::sim
