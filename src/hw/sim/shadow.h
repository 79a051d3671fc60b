// What is known of every byte of shared and registered global memory: who wrote it, who may still read it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "hw/sim/clock.h"

namespace tandem::hw::sim {

struct Buffer;
struct CopyInFlight;
struct Thread;

inline constexpr int max_units = 8;  ///< warpgroups of a block

/// Shadow of the block's shared memory, in cells of 16 bytes: TMA and WGMMA work on whole cells. Cells that
/// threads access get a finer record, by 2 bytes.
class SharedShadow {
 public:
  void reset(std::size_t bytes);

  /// An ordinary access of the running thread.
  void access(std::uint32_t offset, std::size_t bytes, bool write, const void* code);
  /// A WGMMA of all threads of `unit` reads a cell; `product` is the unit's time.
  void product_reads(std::uint32_t offset, std::span<Thread> threads, int unit, Time product);
  /// A copy that the running thread issues will write a cell; it has landed for whoever knows `landed`.
  void copy_writes(std::uint32_t offset, const Thread& issuer, Epoch landed);

 private:
  struct Access {
    Epoch write;
    std::vector<Epoch> reads;  ///< since the write, one a thread
  };
  struct Fine {
    Access parts[8];
  };
  struct Cell {
    Epoch write;             ///< of the whole cell, by a copy
    std::uint32_t fine = 0;  ///< 1 + index of the finer record; 0: none
    Time unit_reads[max_units] = {};
  };
  struct Checked {
    Epoch write;
    Time product = 0;
    int unit = -1;
  };

  Fine& fine(Cell& cell);
  static void note_read(Access& access, const Thread& thread);
  void check_write(const Cell& cell, const Thread& thread, std::uint32_t offset, const char* how) const;
  void check_parts(const Access& access, const Thread& thread, std::uint32_t offset, const char* how) const;

  std::vector<Cell> cells_;
  std::vector<Fine> fine_;
  std::vector<std::uint32_t> free_fine_;
  Checked last_checked_;  ///< cells of a tile have the same writer, mostly
};

/// Shadow of the registered global buffers, by 4 bytes.
class GlobalShadow {
 public:
  void reset(std::span<const Buffer> buffers);

  /// An access of the running thread; false: the address is in no buffer and nothing was checked.
  bool access(const void* address, std::size_t bytes, bool write);
  /// A copy reads it.
  void copy_reads(const void* address, std::size_t bytes, const CopyInFlight& copy);

 private:
  struct Writer {
    std::int32_t block = -1;
    Epoch event;
  };
  struct Entry {
    const Buffer* buffer;
    std::vector<Writer> writers;
  };
  Entry* find(const void* address, std::size_t bytes);

  std::vector<Entry> entries_;
};

}  // namespace tandem::hw::sim
