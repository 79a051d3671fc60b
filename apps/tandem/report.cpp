#include "report.h"

#include <algorithm>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <unistd.h>

namespace tandem::cli {
namespace {

bool is_number(const std::string& cell) {
  return cell.find_first_of("0123456789") <= 1 &&
         cell.find_first_not_of("0123456789.+-e") == std::string::npos;
}

}  // namespace

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) cell = printable(cell);
  rows_.push_back(std::move(row));
}

void Table::print(std::ostream& out) const {
  std::vector<std::size_t> widths(rows_.front().size());
  std::vector<bool> numeric(widths.size());
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) {
      widths[i] = std::max(widths[i], row[i].size());
      if (is_number(row[i])) numeric[i] = true;
    }
  }
  for (const auto& row : rows_) {
    std::ostringstream line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line << (i == 0 ? "" : "  ") << (numeric[i] ? std::right : std::left)
           << std::setw(static_cast<int>(widths[i])) << row[i];
    }
    std::string text = line.str();
    text.erase(text.find_last_not_of(' ') + 1);
    out << text << "\n";
  }
}

std::string printable(const std::string& text) {
  std::ostringstream result;
  const auto spell = [&result](unsigned char byte) {
    result << "\\x" << std::hex << std::setw(2) << std::setfill('0') << int{byte};
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    if (byte < 0x20 || byte == 0x7f) {
      spell(byte);
    } else if (byte == 0xc2 && next >= 0x80 && next < 0xa0) {  // U+0080 to U+009F in UTF-8
      spell(byte), spell(next);
      ++i;
    } else {
      result << text[i];
    }
  }
  return result.str();
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string scientific(double value) {
  std::ostringstream text;
  text << std::scientific << std::setprecision(2) << value;
  return text.str();
}

std::string general(double value, int digits) {
  std::ostringstream text;
  text << std::setprecision(digits) << value;
  return text.str();
}

Progress::Progress(std::size_t total) : total_(total), terminal_(isatty(STDERR_FILENO) == 1) {}

void Progress::show(std::size_t index, const std::string& what) {
  const auto now = std::chrono::steady_clock::now();
  if (!terminal_ || (shown_ && now - last_ < std::chrono::milliseconds(100))) return;
  std::cerr << "\r\033[K[" << index + 1 << "/" << total_ << "] " << printable(what) << std::flush;
  shown_ = true;
  last_ = now;
}

void Progress::clear() {
  if (shown_) std::cerr << "\r\033[K" << std::flush;
  shown_ = false;
}

}  // namespace tandem::cli
