// What tandem.h says of which calls are valid.
#pragma once

#include "tests/fuzz/oracle_memory.h"

namespace tandem::fuzz {

bool is_dtype(const tandem_dtype& dtype);
bool is_fp32(const tandem_tensor& tensor);
bool same_dtype(const tandem_tensor& a, const tandem_tensor& b);
bool is_host_backend(const tandem_backend& backend);
bool factors_hold(float scale, float softcap);
bool mask_holds(const tandem_mask* mask);
/// q, and k with its head dim, heads and batch.
bool queries_and_keys_hold(const tandem_tensor& q, const tandem_tensor& k, std::int64_t most_columns = 256);
bool same_shape(const tandem_tensor& a, const tandem_tensor& b, int dimensions);

/// By the rules of tandem.h for the backends of the host.
Verdict judge(const tandem_forward_args& args);

}  // namespace tandem::fuzz
