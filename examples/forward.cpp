// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <span>
#include <vector>

#include <tandem/attention.hpp>

int main() {
  const tandem::Shape shape{.batch = 1, .sequence = 1024, .heads = 8, .head_dim = 64};
  std::vector<float> q(1024 * 8 * 64, 0.5f), k = q, v(q.size(), 2.0f), o(q.size());
  const auto view = [&](std::vector<float>& x) { return tandem::Tensor<float>::bshd(x.data(), shape); };

  tandem::ForwardOptions options{.mask = tandem::Mask::causal()};
  std::size_t bytes = 0;
  auto status = tandem::attention_forward_workspace(view(q), view(k), view(v), view(o), options, bytes);
  std::vector<tandem::WorkspaceBlock> workspace(bytes / sizeof(tandem::WorkspaceBlock) + 1);
  options.workspace = std::as_writable_bytes(std::span(workspace));
  if (status) status = tandem::attention_forward(view(q), view(k), view(v), view(o), options);
  if (!status) std::fprintf(stderr, "%s: %s\n", status.name(), status.message().c_str());
  if (status) std::printf("every value is 2, and so is their average: %g\n", o[0]);
  return status ? 0 : 1;
}
