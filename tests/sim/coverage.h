// Which features the drawn problems have: a report, and what is missing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

#include "core/mask.h"

namespace tandem::test {

/// Counts drawn problems by feature (rows) and kind of kernel (columns). A feature that a kind of kernel does
/// not have is not counted for it at all.
class Coverage {
 public:
  /// A problem of `kind` that has the feature, or has not.
  void count(const std::string& kind, const std::string& feature, bool has) {
    Row& row = find(rows_, feature);
    Cell& cell = find(row.cells, kind);
    cell.count += has ? 1 : 0;
    if (std::ranges::find(kinds_, kind) == kinds_.end()) kinds_.push_back(kind);
  }

  /// "feature (kind)" of those that no problem has, one a line.
  std::string missing() const {
    std::string missing;
    for (const Row& row : rows_) {
      for (const Cell& cell : row.cells) {
        if (cell.count == 0) missing += row.name + " (" + cell.name + ")\n";
      }
    }
    return missing;
  }

  friend std::ostream& operator<<(std::ostream& out, const Coverage& coverage) {
    constexpr int width = 15;
    out << std::left << std::setw(44) << "drawn problems" << std::right;
    for (const std::string& kind : coverage.kinds_) out << std::setw(width) << kind;
    for (const Row& row : coverage.rows_) {
      out << "\n" << std::left << std::setw(44) << row.name << std::right;
      for (const std::string& kind : coverage.kinds_) {
        const auto cell = std::ranges::find(row.cells, kind, &Cell::name);
        out << std::setw(width) << (cell == row.cells.end() ? "-" : std::to_string(cell->count));
      }
    }
    return out << "\n";
  }

 private:
  struct Cell {
    std::string name;
    int count = 0;
  };
  struct Row {
    std::string name;
    std::vector<Cell> cells;
  };

  template <typename Entry>
  static Entry& find(std::vector<Entry>& entries, const std::string& name) {
    const auto found = std::ranges::find(entries, name, &Entry::name);
    if (found != entries.end()) return *found;
    entries.push_back({name, {}});
    return entries.back();
  }

  std::vector<Row> rows_;
  std::vector<std::string> kinds_;
};

/// Heads of a problem, and the head dim of the variant that it is for.
struct Heads {
  std::int64_t q_heads, kv_heads, head_dim, of_variant;
};
inline void count_heads(Coverage& coverage, const std::string& kind, const Heads& h,
                        std::initializer_list<std::int64_t> groups) {
  const std::int64_t group = h.q_heads / h.kv_heads;
  for (const std::int64_t heads : groups)
    coverage.count(kind, "groups of " + std::to_string(heads), group == heads);
  coverage.count(kind, "several groups", h.kv_heads > 1 && group > 1);
  coverage.count(kind, "head dim of the variant", h.head_dim == h.of_variant);
  coverage.count(kind, "head dim below the variant's", h.head_dim < h.of_variant);
}

/// Whether a length is so many elements from a multiple of the block.
inline bool off_the_edge(std::int64_t length, int block, int by) {
  return length > block / 2 && (length - by) % block == 0;
}

/// What a mask does to the rows of a problem.
struct MaskEffect {
  bool hides_earlier = false, hides_later = false;  ///< of rows that see a key
  bool empties_rows = false, leaves_rows = false;

  MaskEffect(const core::Mask& mask, std::int64_t q_len, std::int64_t k_len) {
    for (std::int64_t query = 0; query < q_len; ++query) {
      const auto seen = mask.visible_keys(query, q_len, k_len);
      const bool empty = seen.begin >= seen.end;
      (empty ? empties_rows : leaves_rows) = true;
      hides_earlier |= !empty && seen.begin > 0;
      hides_later |= !empty && seen.end < k_len;
    }
  }
};

/// Features of a mask over lengths. `has_window`: the kernel knows masks that hide earlier keys.
/// `may_be_empty`: it is launched where no row sees a key.
struct MaskedLengths {
  core::Mask mask;
  std::int64_t q_len, k_len;
  bool has_window = true, may_be_empty = true;
};
inline void count_mask(Coverage& coverage, const std::string& kind, const MaskedLengths& m) {
  const MaskEffect effect(m.mask, m.q_len, m.k_len);
  const bool causal = m.mask.left == core::Mask::unlimited && m.mask.right == 0;
  coverage.count(kind, "mask full", m.mask.is_full());
  coverage.count(kind, "mask causal", causal && m.q_len > 1);
  coverage.count(kind, "mask ends at a distance", m.mask.right > 0 && effect.hides_later);
  if (m.has_window) {
    coverage.count(kind, "window that bites", effect.hides_earlier);
    coverage.count(kind, "window that bites on both sides", effect.hides_earlier && effect.hides_later);
  }
  coverage.count(kind, "some rows see no key", effect.empties_rows && effect.leaves_rows);
  if (m.may_be_empty) coverage.count(kind, "no row sees a key", m.q_len > 0 && !effect.leaves_rows);
}

/// Whether lengths of `what` ("queries", "keys") end around a block's end.
inline void count_edges(Coverage& coverage, const std::string& kind, const std::string& what,
                        std::int64_t length, int block) {
  for (const int by : {-1, 0, 1}) {
    const std::string edge = by < 0    ? " one short of a block"
                             : by == 0 ? " at a block's end"
                                       : " one beyond it";
    coverage.count(kind, what + edge, off_the_edge(length, block, by));
  }
  coverage.count(kind, what + " ragged", length % block != 0);
}

}  // namespace tandem::test
