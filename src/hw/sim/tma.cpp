// TMA: tensor maps and boxes on their way.
#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "hw/sim/box.h"
#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

namespace {

/// Copies one row of the box: elements that exist, zeros for the others.
void copy_row(const EncodedMap& map, const CopyInFlight& copy, std::uint32_t row) {
  const BoxRow source = BoxRow::of(map, copy.origin, row);
  unsigned char bytes[BoxRow::max_bytes] = {};
  auto found = GlobalShadow::Source::only_read;
  if (!source.empty()) {
    found = machine.global.copy_reads(source.global, source.bytes(), copy);
    std::memcpy(bytes + source.first, source.global, source.bytes());
  }
  for_each_chunk(map, window_base + copy.destination, row, [&](std::uint32_t i, std::uint32_t address) {
    std::memcpy(machine.window + (address - window_base), bytes + i, 16);
    if (found != GlobalShadow::Source::only_read && i >= source.first && i < source.past) {
      machine.block.shadow.copied_from(address - window_base, source.global + (i - source.first),
                                       found == GlobalShadow::Source::known);
    }
  });
}

}  // namespace

TensorMap encode_tensor_map(const TensorMapSpec& spec) {
  const auto require = [](bool condition, const std::string& what) {
    if (!condition) throw std::invalid_argument("tensor map: " + what);
  };
  require(reinterpret_cast<std::uintptr_t>(spec.address) % 16 == 0, "address is not a multiple of 16");
  require(spec.rank == 4 || spec.rank == 5, "rank has to be 4 or 5");
  const int last = spec.rank - 1;
  for (int i = 0; i <= last; ++i) {
    require(spec.dims[i] >= 1 && spec.dims[i] <= std::uint64_t{1} << 32, "dims have to be 1 to 2^32");
    require(spec.box[i] >= 1 && spec.box[i] <= 256, "box has to be 1 to 256 elements in each dimension");
    if (i == last) continue;
    require(spec.stride_bytes[i] % 16 == 0, "strides have to be multiples of 16 bytes");
    require(spec.stride_bytes[i] < std::uint64_t{1} << 40, "strides have to be below 2^40 bytes");
  }
  const std::uint32_t row_bytes = spec.box[0] * spec.element_bytes;
  require(row_bytes % 16 == 0, "the box's rows have to be multiples of 16 bytes");
  require(spec.swizzle == Swizzle::none || row_bytes <= row_bytes_of(spec.swizzle),
          "the box's rows have to fit the swizzle's span");
  EncodedMap encoded{EncodedMap::expected_mark,
                     reinterpret_cast<std::uint64_t>(spec.address),
                     {},
                     {},
                     {1, 1, 1, 1, 1},
                     static_cast<std::uint16_t>(spec.element_bytes),
                     static_cast<std::uint16_t>(spec.swizzle),
                     static_cast<std::uint16_t>(spec.rank)};
  std::copy_n(spec.dims, spec.rank, encoded.dims);
  std::copy_n(spec.stride_bytes, last, encoded.stride_bytes);
  std::copy_n(spec.box, spec.rank, encoded.box);
  return encoded.encode();
}

void check_rank(const EncodedMap& map, const BoxCoordinates& origin) {
  if (origin.rank != map.rank)
    fail(Rule::bad_descriptor, "names " + std::to_string(origin.rank) + " coordinates of a tensor map of " +
                                   std::to_string(map.rank) + " dimensions");
}

void prefetch_map(const TensorMap& map) {
  TANDEM_SIM_ENTER();
  if (!EncodedMap::decode(map).valid()) {
    fail(Rule::bad_descriptor, "prefetches a tensor map that was never encoded");
  }
}

namespace {

/// Checks destination and barrier, and puts the box on its way.
void start_copy(Thread& thread, void* destination, const EncodedMap& map, Barrier& object,
                const BoxCoordinates& origin) {
  const std::uint32_t offset = offset_of(destination, map.span(), "a copy's destination");
  BarrierRecord& barrier = find_barrier(object, thread);
  if (!barrier.fenced.exists() || !thread.clock.knows(barrier.fenced)) {
    fail(Rule::missing_barrier_fence,
         "starts a copy that arrives at " + describe(barrier) +
             ", whose initialisation no fence_barrier_init (and block barrier) has shown to the async proxy");
  }
  require_prior_grid(thread, "bytes for a copy");
  const Epoch landed{barrier.agent, barrier.phases + 1};
  for (std::uint32_t row = 0; row < map.rows(); ++row)
    for_each_chunk(map, window_base + offset, row, [&](std::uint32_t, std::uint32_t address) {
      machine.block.shadow.copy_writes(address - window_base, thread, landed);
      std::fill_n(machine.window + (address - window_base), 16, 0xff);
    });
  ++machine.report.statistics.copies;
  barrier.copies_until = landed.time;
  barrier.last_copy = thread.code;
  CopyInFlight& copy = machine.block.copies.emplace_back(CopyInFlight{
      map.encode(), origin, offset, &barrier, barrier.phases, {}, thread.index, thread.code, machine.verbs});
  thread.started_copies = true;
  for (std::uint32_t row = 0; row < map.rows(); ++row) copy.rows.push_back(row);
  if (machine.config->policy == Policy::random)
    std::shuffle(copy.rows.begin(), copy.rows.end(), machine.random);
  copy.straggles = machine.chance(16);
  if (machine.config->policy == Policy::eager) land_copy(true, true);
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

void load_box(void* destination, const TensorMap& map, Barrier& barrier, const BoxCoordinates& origin) {
  Thread& thread = TANDEM_SIM_ENTER();
  const EncodedMap encoded = EncodedMap::decode(map);
  if (!encoded.valid()) {
    fail(Rule::bad_descriptor, "copies through a tensor map that was never encoded");
  }
  check_rank(encoded, origin);
  check_aligned(destination, 128);
  if (!starts_at_a_step(encoded, origin))
    fail(Rule::bad_argument, "copies a box whose innermost coordinate is no multiple of 16 bytes");
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
              {row, static_cast<std::uint16_t>(rows), 1, 1, 1},
              1,
              static_cast<std::uint16_t>(Swizzle::none),
              4},
             barrier, BoxOrigin{0, 0, 0, 0}.coordinates());
}

bool land_copy(bool everything, bool stragglers) {
  std::deque<CopyInFlight>& copies = machine.block.copies;
  if (copies.empty()) return false;
  const Policy policy = machine.config->policy;
  // Now and then one does not wait: threads that poll could go on for ever.
  if (policy != Policy::random || machine.chance(1024)) stragglers = true;
  const auto may_land = [stragglers](const CopyInFlight& copy) { return stragglers || !copy.straggles; };
  const auto candidates = static_cast<std::uint64_t>(std::ranges::count_if(copies, may_land));
  if (candidates == 0) return false;
  std::uint64_t before = policy == Policy::random ? machine.draw(candidates) : 0;
  std::size_t chosen = policy == Policy::late ? copies.size() - 1 : 0;
  if (policy == Policy::random)
    while (!may_land(copies[chosen]) || before-- > 0) ++chosen;
  CopyInFlight& copy = copies[chosen];
  const EncodedMap map = EncodedMap::decode(copy.map);
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
