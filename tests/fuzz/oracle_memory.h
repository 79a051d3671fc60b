// Where tandem.h says that the elements of a tensor lie, and what they stand for. The oracles of the fuzzers
// are what the header says, written down a second time: they know it and nothing of the library, and are as
// slow as they like.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include <tandem/tandem.h>

namespace tandem::fuzz {

__extension__ using Wide = __int128;
using Numbers = std::vector<double>;

/// What a caller may have put where C++ expects an enumerator.
template <typename Enum>
int number(const Enum& value) {
  int result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

/// One element of any dtype, exactly.
double element(tandem_dtype dtype, const std::byte* at);
std::size_t size_of(int dtype);
bool is_eight_bit(int dtype);

/// Addresses [begin, end) of one row of head dim.
struct Row {
  Wide begin, end;
};
/// The rows of a tensor, each address once where a stride is 0. Empty too where there are more than `most`.
std::optional<std::vector<Row>> rows_of(const tandem_tensor& tensor, std::size_t most);

/// Row [b, s, h] of a tensor, which may lie anywhere, or nowhere; an element of a row, and all of them.
std::byte* row_at(const tandem_tensor& tensor, std::int64_t b, std::int64_t s, std::int64_t h);
double value(const tandem_tensor& tensor, const std::byte* row, std::int64_t e);
Numbers read_row(const tandem_tensor& tensor, std::int64_t b, std::int64_t s, std::int64_t h);
std::size_t row_bytes(const tandem_tensor& tensor);

/// An array of fp32 numbers, one for each head.
tandem_tensor as_tensor(const float* numbers, std::int64_t heads);

/// Sizes are 0 or more, and fit 63 bits together, even where one of them is 0.
bool size_holds(const tandem_tensor& tensor);
bool has_elements(const tandem_tensor& tensor);
/// Size, address, alignment and extent of one tensor.
bool memory_holds(const tandem_tensor& tensor);

enum class Verdict { valid, invalid, unknown };
/// Whether no output shares a byte with an input, with another output or with itself. Unknown: too large to
/// tell by counting.
Verdict overlaps_hold(const std::vector<const tandem_tensor*>& inputs,
                      const std::vector<const tandem_tensor*>& outputs);

}  // namespace tandem::fuzz
