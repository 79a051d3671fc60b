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

/// Row [b, s, h] of a tensor, and an element of a row.
const std::byte* row_at(const tandem_tensor& tensor, std::int64_t b, std::int64_t s, std::int64_t h);
double value(const tandem_tensor& tensor, const std::byte* row, std::int64_t e);

// Rules that several calls have.
bool has_elements(const tandem_tensor& tensor);
bool is_dtype(const tandem_dtype& dtype);
bool is_fp32(const tandem_tensor& tensor);
bool same_dtype(const tandem_tensor& a, const tandem_tensor& b);
bool is_host_backend(const tandem_backend& backend);
bool factors_hold(float scale, float softcap);
bool mask_holds(const tandem_mask* mask);
/// q, and k with its head dim, heads and batch.
bool queries_and_keys_hold(const tandem_tensor& q, const tandem_tensor& k);
bool same_shape(const tandem_tensor& a, const tandem_tensor& b, int dimensions);
/// Address, alignment and extent of one tensor.
bool memory_holds(const tandem_tensor& tensor);

enum class Verdict { valid, invalid, unknown };
/// Whether no output shares a byte with an input, with another output or with itself.
Verdict overlaps_hold(const std::vector<const tandem_tensor*>& inputs,
                      const std::vector<const tandem_tensor*>& outputs);
/// By the rules of tandem.h for the backends of the host. Unknown: too large to tell by counting.
Verdict judge(const tandem_forward_args& args);

/// The keys that a query sees, half-open.
struct Keys {
  std::int64_t begin, end;
};
Keys keys_of(const tandem_forward_args& args, std::int64_t query);
Keys keys_of(const tandem_mask* mask, std::int64_t q_len, std::int64_t k_len, std::int64_t query);

/// Row [b, i, h] of a valid call in float64.
struct Result {
  std::vector<double> o;
  double lse;
};
Result attend(const tandem_forward_args& args, std::int64_t b, std::int64_t i, std::int64_t h);

}  // namespace tandem::fuzz
