#include "tests/support/gather.h"

#include "core/dtype.h"
#include "tests/support/element.h"

namespace tandem::test {

std::vector<float> gather(const core::Tensor& t) {
  std::vector<float> elements(static_cast<std::size_t>(t.shape[0] * t.shape[1] * t.shape[2] * t.shape[3]));
  float* to = elements.data();
  with_element(t.dtype, [&](auto element) {
    for (std::int64_t b = 0; b < t.shape[0]; ++b)
      for (std::int64_t h = 0; h < t.shape[2]; ++h)
        for (std::int64_t s = 0; s < t.shape[1]; ++s) {
          const auto* row = core::row_of<decltype(element)>(t, b, s, h);
          for (std::int64_t i = 0; i < t.shape[3]; ++i) *to++ = static_cast<float>(row[i]);
        }
  });
  return elements;
}

std::vector<float> gather_unscaled_values(const core::ForwardProblem& p) {
  const std::vector<float> elements = gather(p.v);
  if (!p.quantisation.v_transposed) return elements;
  const std::int64_t row = p.v.shape[3];
  std::vector<float> values;
  values.reserve(static_cast<std::size_t>(p.batch() * p.kv_heads() * p.k_len() * p.value_dim()));
  for (std::int64_t head = 0; head < p.batch() * p.kv_heads(); ++head) {
    const float* of_head = elements.data() + head * p.v.shape[1] * row;
    for (std::int64_t key = 0; key < p.k_len(); ++key)
      for (std::int64_t i = 0; i < p.value_dim(); ++i) {
        const float* at = of_head + core::position_of_key(key);
        float value = at[i * row];
        if (p.quantisation.v_terms == 2) value += at[(p.head_dim() + i) * row];
        values.push_back(value);
      }
  }
  return values;
}

}  // namespace tandem::test
