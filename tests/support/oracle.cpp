#include "tests/support/oracle.h"

#include <vector>

#include "tests/support/gather.h"

namespace tandem::test {
namespace {

/// A tensor of the elements, which lie in the order b, h, s, d.
core::Tensor view_of(std::vector<float>& elements, const core::Tensor& like) {
  const std::int64_t tokens = like.shape[1], heads = like.shape[2], d = like.shape[3];
  return {elements.data(),
          TANDEM_FP32,
          {like.shape[0], tokens, heads, d},
          {heads * tokens * d, d, tokens * d, 1}};
}

}  // namespace

cpu::ReferenceValues oracle_values(const core::ForwardProblem& problem) {
  core::ForwardProblem p = problem;
  std::vector<float> q = gather(p.q), k = gather(p.k), v = gather_unscaled_values(p);
  p.q = view_of(q, p.q);
  p.k = view_of(k, p.k);
  p.v.shape[1] = p.k_len(), p.v.shape[3] = problem.value_dim();
  p.v = view_of(v, p.v);
  p.quantisation.v_transposed = false, p.quantisation.v_terms = 1;
  return cpu::reference_values(p);
}

}  // namespace tandem::test
