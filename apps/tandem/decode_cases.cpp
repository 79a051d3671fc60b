#include "decode_cases.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <sstream>

#include "draw.h"
#include "element.h"
#include "options.h"
#include "report.h"

namespace tandem::cli {
namespace {

/// What the tensors' shapes follow from.
struct Sizes {
  tandem_dtype dtype;
  std::int64_t batch, tokens, kv_heads, group, head_dim, new_len, page_size, capacity;

  bool paged() const { return page_size > 0; }
  std::int64_t slots() const { return paged() ? capacity / page_size : 1; }
};

Sizes random_sizes(Random& random, tandem_backend backend) {
  Sizes s{};
  s.dtype = random_dtype(random, backend);
  s.batch = one_of(random, {1l, 2l, 3l, 6l});
  s.tokens = one_of(random, {1l, 1l, 1l, 2l, 4l, 7l, 8l});
  s.kv_heads = one_of(random, {1l, 2l, 3l});
  s.group = one_of(random, {1l, 2l, 3l, 4l, 8l, 16l});
  s.head_dim =
      backend == TANDEM_BACKEND_HOPPER ? one_of(random, {64l, 128l, 256l}) : 8 * between(random, 1, 32);
  s.new_len = one_in(random, 2) ? one_of(random, {1l, 1l, 3l, s.tokens}) : 0;
  s.page_size = one_of(random, {0l, 0l, 1l, 16l, 64l, 128l, 256l});
  s.capacity = between(random, 16, one_of(random, {64l, 300l, 700l}));
  if (s.paged()) s.capacity = (s.capacity + s.page_size - 1) / s.page_size * s.page_size;
  return s;
}

void draw_lengths(Random& random, const Sizes& s, DecodeCall& call) {
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t length = one_in(random, 8) ? 0 : between(random, 0, s.capacity - s.new_len);
    call.lengths.push_back(static_cast<std::int32_t>(length));
  }
  if (!one_in(random, 3)) return;
  call.batch_index.resize(static_cast<std::size_t>(s.batch));
  std::iota(call.batch_index.begin(), call.batch_index.end(), 0);
  std::shuffle(call.batch_index.begin(), call.batch_index.end(), random);
}

/// Pages in random order for what is in use, any number elsewhere.
void draw_page_table(Random& random, const Sizes& s, DecodeCall& call) {
  if (!s.paged()) return;
  call.pages_per_sequence = s.slots();
  std::vector<std::int32_t> pages(static_cast<std::size_t>(s.batch * s.slots()));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), random);
  call.page_table = pages;
  for (std::int64_t b = 0; b < s.batch; ++b) {
    const std::int64_t row = call.batch_index.empty() ? b : call.batch_index[static_cast<std::size_t>(b)];
    const std::int64_t used = call.lengths[static_cast<std::size_t>(b)] + s.new_len;
    for (std::int64_t slot = (used + s.page_size - 1) / s.page_size; slot < s.slots(); ++slot)
      call.page_table[static_cast<std::size_t>(row * s.slots() + slot)] = static_cast<std::int32_t>(random());
  }
}

void draw_cache(Random& random, const Sizes& s, float magnitude, DecodeCall& call) {
  const Shape shape{s.batch * s.slots(), s.paged() ? s.page_size : s.capacity, s.kv_heads, s.head_dim};
  call.k_cache = HostTensor::poisoned(s.dtype, shape, random_layout(random));
  call.v_cache = HostTensor::poisoned(s.dtype, shape, random_layout(random));
  draw_lengths(random, s, call);
  draw_page_table(random, s, call);
  std::normal_distribution<float> normal;
  std::vector<float> k(static_cast<std::size_t>(s.head_dim)), v(k.size());
  for (std::int64_t b = 0; b < s.batch; ++b)
    for (std::int64_t token = 0; token < call.lengths[static_cast<std::size_t>(b)]; ++token) {
      const auto [page, row] = call.place(b, token);
      for (std::int64_t head = 0; head < s.kv_heads; ++head) {
        for (float& value : k) value = magnitude * normal(random);
        for (float& value : v) value = normal(random);
        encode(s.dtype, k, call.k_cache.row(page, row, head).data());
        encode(s.dtype, v, call.v_cache.row(page, row, head).data());
      }
    }
}

void draw_rotary(Random& random, const Sizes& s, DecodeCall& call) {
  if (s.head_dim < 16 || one_in(random, 2)) return;
  const std::int64_t half = 8 * between(random, 1, s.head_dim / 16);
  std::vector<float> cos, sin;
  for (std::int64_t position = 0; position < s.capacity; ++position)
    for (std::int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) *
                           std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(half));
      cos.push_back(static_cast<float>(std::cos(angle)));
      sin.push_back(static_cast<float>(std::sin(angle)));
    }
  const tandem_dtype dtype = one_in(random, 3) ? s.dtype : TANDEM_FP32;
  call.cos = HostTensor::from_dense(dtype, {1, 1, s.capacity, half}, Layout::bshd(), cos);
  call.sin = HostTensor::from_dense(dtype, {1, 1, s.capacity, half}, Layout::bshd(), sin);
  call.interleaved = one_in(random, 2);
}

tandem_mask random_mask(Random& random, std::int64_t capacity) {
  const auto side = [&] { return one_in(random, 4) ? TANDEM_UNLIMITED : between(random, 0, capacity); };
  if (one_in(random, 3)) return Mask::full().c_mask();
  if (one_in(random, 2)) return Mask::causal().c_mask();
  const std::int64_t left = side();
  return Mask::window(left, side()).c_mask();
}

}  // namespace

DecodeCall random_step(std::uint64_t seed, tandem_backend backend) {
  Random random(seed);
  const Sizes s = random_sizes(random, backend);
  DecodeCall call;
  call.backend = backend;
  const float magnitude =
      one_of(random, {0.1f, 1.0f, 1.0f, 3.0f});  // scores from nearly uniform to nearly one-hot
  call.q = random_tensor(random, s.dtype, {s.batch, s.tokens, s.kv_heads * s.group, s.head_dim}, magnitude);
  call.k_new = random_tensor(random, s.dtype, {s.batch, s.new_len, s.kv_heads, s.head_dim}, magnitude);
  call.v_new = random_tensor(random, s.dtype, {s.batch, s.new_len, s.kv_heads, s.head_dim}, 1.0f);
  draw_cache(random, s, magnitude, call);
  draw_rotary(random, s, call);
  call.mask = random_mask(random, s.capacity);
  call.split_size = one_of(random, {0l, 0l, 64l, 128l, 256l});
  call.planned = one_in(random, 3);
  draw_options(random, call);
  return call;
}

std::string described(const DecodeCall& call) {
  std::ostringstream text;
  const Shape &q = call.q.shape, &cache = call.k_cache.shape;
  text << name_of(call.q.dtype) << " b" << q[0] << " sq" << q[1] << " h" << q[2] << "/" << cache[2] << " d"
       << q[3] << (call.page_table.empty() ? " capacity " : " pages of ") << cache[1] << " lengths";
  for (const std::int32_t length : call.lengths) text << " " << length;
  text << " new " << call.new_len();
  if (!call.batch_index.empty()) text << " indexed";
  if (call.cos.shape[2] > 0)
    text << " rotary " << 2 * call.cos.shape[3] << (call.interleaved ? " interleaved" : " halves");
  text << " mask " << spelled(call.mask) << " scale "
       << (call.scale > 0 ? general(call.scale, 4) : std::string("1/sqrt(d)"));
  if (call.softcap > 0) text << " softcap " << general(call.softcap, 4);
  if (call.split_size > 0) text << " split " << call.split_size;
  if (call.planned) text << " planned";
  if (call.kernel != TANDEM_DECODE_AUTO) text << " kernel " << name_of(call.kernel);
  if (!call.want_lse) text << " without lse";
  return text.str();
}

}  // namespace tandem::cli
