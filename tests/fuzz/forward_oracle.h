// What tandem.h says of a forward call, written down a second time: whether it is valid, and what it gives.
// Knows the header and nothing of the library, and is as slow as it likes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <tandem/tandem.h>

namespace tandem::fuzz {

__extension__ using Wide = __int128;

/// One element of any dtype, exactly.
double element(tandem_dtype dtype, const std::byte* at);
std::size_t size_of(int dtype);

/// Addresses [begin, end) of one row of head dim.
struct Row {
  Wide begin, end;
};
/// The rows of a tensor, each address once where a stride is 0. Empty too where there are more than `most`.
std::optional<std::vector<Row>> rows_of(const tandem_tensor& tensor, std::size_t most);

enum class Verdict { valid, invalid, unknown };
/// By the rules of tandem.h for the backends of the host. Unknown: too large to tell by counting.
Verdict judge(const tandem_forward_args& args);

/// The keys that a query sees, half-open.
struct Keys {
  std::int64_t begin, end;
};
Keys keys_of(const tandem_forward_args& args, std::int64_t query);

/// Row [b, i, h] of a valid call in float64.
struct Result {
  std::vector<double> o;
  double lse;
};
Result attend(const tandem_forward_args& args, std::int64_t b, std::int64_t i, std::int64_t h);

}  // namespace tandem::fuzz
