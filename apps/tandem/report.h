// What the user sees: aligned tables, numbers, and progress on a terminal.
#pragma once

#include <chrono>
#include <iosfwd>
#include <string>
#include <vector>

namespace tandem::cli {

/// A table with aligned columns; those that hold numbers are flushed right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : rows_{std::move(header)} {}
  /// Cells are made printable.
  void add(std::vector<std::string> row);
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

/// `text` with its control characters spelled, as \x1b: names in a file may hold what a terminal would obey.
std::string printable(const std::string& text);

std::string fixed(double value, int digits);    ///< 12.34
std::string scientific(double value);           ///< 1.23e-04
std::string general(double value, int digits);  ///< the shorter of both

/// "step 3 of 12: what" on stderr where that is a terminal, at most ten times a second; nothing elsewhere.
class Progress {
 public:
  explicit Progress(std::size_t total);
  ~Progress() { clear(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  /// Before step `index`, counted from 0.
  void show(std::size_t index, const std::string& what);
  /// Before anything else is printed.
  void clear();

 private:
  std::size_t total_;
  bool terminal_;
  bool shown_ = false;
  std::chrono::steady_clock::time_point last_{};
};

}  // namespace tandem::cli
