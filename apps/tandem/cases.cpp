#include "cases.h"

#include <algorithm>
#include <sstream>

#include "draw.h"
#include "element.h"
#include "options.h"
#include "report.h"

namespace tandem::cli {
namespace {

constexpr std::int64_t max_products = 20'000'000;  // query-key pairs times heads times head dim
constexpr std::int64_t max_elements = 1'000'000;   // of q, and of k before heads are shared

/// Lengths of all magnitudes, often at the edge of a tile, seldom 0.
std::int64_t random_length(Random& random) {
  constexpr std::int64_t edges[] = {1, 63, 64, 65, 127, 128, 129, 176, 192, 255, 256, 257, 384};
  if (one_in(random, 25)) return 0;
  if (one_in(random, 3)) return one_of(random, edges);
  return between(random, 1, one_of(random, {8l, 64l, 256l, 700l}));
}

std::int64_t random_head_dim(Random& random) {
  constexpr std::int64_t usual[] = {32, 64, 128, 256};
  return one_in(random, 2) ? one_of(random, usual) : 8 * between(random, 1, 32);
}

tandem_mask random_mask(Random& random, std::int64_t q_len, std::int64_t k_len) {
  const std::int64_t longest = std::max(q_len, k_len) + 2;
  const auto side = [&] { return one_in(random, 4) ? TANDEM_UNLIMITED : between(random, 0, longest); };
  if (one_in(random, 3)) return Mask::full().c_mask();
  if (one_in(random, 2)) return Mask::causal().c_mask();
  const std::int64_t left = side();
  return Mask::window(left, side()).c_mask();
}

std::string described(const char* name, const HostTensor& tensor) {
  std::ostringstream text;
  text << " " << name << "[" << tensor.shape[0] << "," << tensor.shape[1] << "," << tensor.shape[2] << ","
       << tensor.shape[3] << "]/(" << tensor.stride[0] << "," << tensor.stride[1] << "," << tensor.stride[2]
       << ")";
  return text.str();
}

}  // namespace

Call random_call(std::uint64_t seed, tandem_backend backend) {
  Random random(seed);
  Call call;
  call.backend = backend;
  const tandem_dtype dtype = random_dtype(random, backend);
  const std::int64_t batch = one_of(random, {1l, 1l, 2l, 3l}), kv_heads = one_of(random, {1l, 1l, 2l, 3l});
  const std::int64_t group = one_of(random, {1l, 1l, 2l, 3l, 8l}), d = random_head_dim(random);
  std::int64_t q_len = random_length(random);
  std::int64_t k_len = one_in(random, 3) ? q_len : random_length(random);
  const std::int64_t row = batch * kv_heads * group * d;
  while (q_len * k_len * row > max_products || std::max(q_len, k_len) * row > max_elements) {
    (q_len > k_len ? q_len : k_len) /= 2;
  }
  // Scores from nearly uniform to nearly one-hot.
  const float magnitude = one_of(random, {0.1f, 1.0f, 1.0f, 3.0f});
  call.q = random_tensor(random, dtype, {batch, q_len, kv_heads * group, d}, magnitude);
  call.k = random_tensor(random, dtype, {batch, k_len, kv_heads, d}, magnitude);
  call.v = random_tensor(random, dtype, {batch, k_len, kv_heads, d}, 1.0f);
  call.mask = random_mask(random, q_len, k_len);
  draw_options(random, call);
  return call;
}

std::string described(const Call& call) {
  std::ostringstream text;
  text << name_of(call.q.dtype) << described("q", call.q) << described("k", call.k) << described("v", call.v)
       << " mask " << spelled(call.mask) << " scale "
       << (call.scale > 0 ? general(call.scale, 4) : std::string("1/sqrt(d)"));
  if (call.softcap > 0) text << " softcap " << general(call.softcap, 4);
  if (!call.want_lse) text << " without lse";
  return text.str();
}

}  // namespace tandem::cli
