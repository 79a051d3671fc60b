// Which features the drawn problems have: a report, and what is missing.
#pragma once

#include <algorithm>
#include <iomanip>
#include <ostream>
#include <string>
#include <vector>

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

}  // namespace tandem::test
