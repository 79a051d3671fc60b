// What is known of every byte of shared and registered global memory: who wrote it, who may still read it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "hw/sim/clock.h"

namespace tandem::hw::sim {

struct Buffer;
struct CopyInFlight;
struct Thread;

inline constexpr int max_units = 8;  ///< warpgroups of a block
inline constexpr std::uint32_t no_store = 0xffffffff;

/// Shadow of the block's shared memory, in cells of 16 bytes: TMA and WGMMA work on whole cells. Cells that
/// threads access get a finer record, by 2 bytes.
class SharedShadow {
 public:
  void reset(std::size_t bytes);

  /// An ordinary access of the running thread.
  void access(std::uint32_t offset, std::size_t bytes, bool write, const void* code);
  /// A WGMMA of all threads of `unit` reads a cell; `product` is the unit's time.
  void product_reads(std::uint32_t offset, std::span<const Thread> threads, int unit, Time product);
  /// The issuer's asynchronous store of record `store` reads a cell.
  void store_reads(std::uint32_t offset, const Thread& issuer, std::uint32_t store);
  /// A copy that the running thread issues will write a cell; it has landed for whoever knows `landed`.
  void copy_writes(std::uint32_t offset, const Thread& issuer, Epoch landed);
  /// A cell's bytes came from global memory that the kernel may write.
  /// `known`: whoever started the copy knew who had written them.
  void copied_from(std::uint32_t offset, const unsigned char* source, bool known);

 private:
  struct Access {
    Epoch write;
    std::vector<Epoch> reads;  ///< since the write, one a thread

    void note_write(Epoch now) { write = now, reads.clear(); }  // keeps the reads' memory
  };
  struct Fine {
    Access parts[8];
  };
  struct Cell {
    Epoch write;             ///< of the whole cell, by a copy
    std::uint32_t fine = 0;  ///< 1 + index of the finer record; 0: none
    const unsigned char* source =
        nullptr;               ///< of the copy, if the kernel may write there; until all was used
    bool source_known = true;  ///< its writes, to whoever started the copy
    std::uint32_t stores = 0;  ///< 1 + index of the stores that read it; 0: none
    Time unit_reads[max_units] = {};
  };

  Fine& fine(Cell& cell);
  void read_part(const Cell& cell, Access& access, const Thread& thread, std::uint32_t at);
  static void note_read(Access& access, const Thread& thread);
  void check_write(const Cell& cell, const Thread& thread, std::uint32_t offset, const char* how) const;
  /// All of `threads` start asynchronous work that reads the cell. `known`, if any: up to which time of each
  /// agent they have been found to know its writes. Clocks do not run back, so this need not be asked again.
  void check_async_read(std::uint32_t offset, std::span<const Thread> threads, const char* how,
                        std::span<Time> known);
  /// The part of it for one write; returns up to which time of its agent the threads know writes.
  static Time check_async_read_of(Epoch write, std::uint32_t offset, std::span<const Thread> threads,
                                  const char* how);
  void use_copy(Cell& cell) const;
  void check_parts(const Access& access, const Thread& thread, std::uint32_t offset, const char* how) const;

  std::vector<Cell> cells_;
  std::vector<Fine> fine_;
  std::vector<std::uint32_t> free_fine_;
  std::vector<std::vector<std::uint32_t>> stores_;  ///< their records
  std::vector<Time> known_[max_units];              ///< to all threads of a warpgroup, of each agent
};

/// What an access of global memory does. reduction: an add of TMA, which has to be ordered as a store has,
/// for the bits of a sum depend on its order.
enum class Use { load, store, atomic, reduction };

/// Shadow of the registered global buffers, by 2 bytes, of those that kernels write.
class GlobalShadow {
 public:
  void reset(std::span<const Buffer> buffers);

  /// An access of the running thread, or of the asynchronous store of record `store` that it starts; false:
  /// the address is in no buffer and nothing was checked.
  bool access(const void* address, std::size_t bytes, Use use, std::uint32_t store = no_store);
  /// What a copy finds of it: nothing that matters to anybody; or bytes that the kernel may write, so that
  /// uses of what came have to be told, and whether who started the copy knew all writes.
  enum class Source { only_read, known, unknown };
  Source copy_reads(const void* address, std::size_t bytes, const CopyInFlight& copy);
  /// The running thread uses bytes that a copy brought from here; `known`: whoever started it knew the
  /// writes.
  void uses_copy(const void* address, std::size_t bytes, bool known);
  /// The thread learns what atomics at the address have released.
  void acquire(const void* address, Thread& thread) const;
  /// The running thread's atomic releases what it knows; what others have released there stays so.
  void release(const void* address, const Thread& thread);
  /// A counter, whose accesses order nothing; a fault where it is no counter.
  void check_counter(const std::uint32_t* counter);

 private:
  struct Event {
    std::int32_t block = -1;
    Epoch epoch;
    std::uint32_t record = no_store;  ///< of an asynchronous store; `epoch` is its start
  };
  struct Part {
    Event store;              ///< or reduction
    Event copy_use;           ///< the last use of what a copy brought from here
    std::uint32_t loads = 0;  ///< 1 + index of the loads since the store; 0: none
  };
  static constexpr std::size_t part_bytes = 2, page_parts = 2048;
  using Page = std::vector<Part>;
  struct Entry {
    const Buffer* buffer;
    std::vector<Page> pages;  ///< empty until they are touched
  };
  struct Released {
    int block;
    Clock clock;
  };

  Entry* find(const void* address, std::size_t bytes);
  static std::size_t offset_in(const Entry& entry, const void* address);
  static Part& part(Entry& entry, std::size_t number);
  static bool knows(const Thread& thread, const Event& event);
  static bool async_knows(const Thread& thread, const Event& event);
  static bool nobody_wrote(const Entry& entry, const Part& part);
  void check(const Entry& entry, std::size_t number, const Part& part, Use use, bool async) const;
  void note(Part& part, Use use, const Event& now);
  void note_load(Part& part, const Event& now);

  std::vector<Entry> entries_;
  std::vector<std::vector<Event>> loads_;
  std::map<const void*, Released> released_;
};

}  // namespace tandem::hw::sim
