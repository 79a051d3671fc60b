// A problem of variable lengths in device memory, and batches that tests of the card draw.
#pragma once

#include <algorithm>
#include <gtest/gtest.h>
#include <iterator>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu/device_forward.h"
#include "tests/support/compare.h"
#include "tests/support/varlen_call.h"
#include "tests/support/varlen_case.h"

namespace tandem::test {

inline std::span<const std::byte> bytes_of(const std::vector<std::int32_t>& words) {
  return std::as_bytes(std::span(words));
}

/// As a caller says them; 0: not known.
struct Bounds {
  std::int64_t queries = 0, keys = 0;
};

struct BoundedCall : VarlenCall {
  BoundedCall(const core::ForwardProblem& p, const tandem_mask& mask, const Bounds& bounds)
      : VarlenCall(p, mask, TANDEM_BACKEND_HOPPER) {
    if (!p.blocks.given()) varlen.max_seqlen_q = bounds.queries;
    varlen.max_seqlen_k = bounds.keys;
  }
};

/// Copies of all that a problem of variable lengths points to, and its workspace.
class DeviceVarlen {
 public:
  explicit DeviceVarlen(const VarlenTensors& host, const Bounds& bounds = {})
      : q_(host.q.storage()),
        k_(host.k.storage()),
        v_(host.v.storage()),
        o_(host.o.storage()),
        lse_(host.lse.storage()),
        cu_seqlens_q_(bytes_of(host.cu_seqlens_q)),
        cu_seqlens_k_(bytes_of(host.cu_seqlens_k)),
        seqused_k_(bytes_of(host.seqused_k)),
        page_table_(bytes_of(host.page_table)),
        sinks_(std::as_bytes(std::span(host.sinks))),
        slopes_(std::as_bytes(std::span(host.slopes))),
        tree_(std::as_bytes(std::span(host.tree))),
        k_new_(host.k_new.storage()),
        v_new_(host.v_new.storage()),
        cos_(host.cos.storage()),
        sin_(host.sin.storage()),
        cu_seqlens_new_(bytes_of(host.cu_seqlens_new)),
        leftpad_(bytes_of(host.leftpad)),
        batch_index_(bytes_of(host.batch_index)),
        list_counts_(std::as_bytes(host.blocks.counts())),
        list_blocks_(std::as_bytes(host.blocks.numbers())),
        call_(problem_of(host), to_c(host.setup.mask), bounds),
        workspace_(workspace_bytes()) {}

  void run(cudaStream_t stream = nullptr) const {
    ASSERT_EQ(tandem_forward(&call_.args, workspace_.data(), workspace_.bytes(), stream), TANDEM_OK)
        << tandem_last_error();
  }
  /// Memory for the plan that this call and others of its lengths share.
  DeviceMemory memory_of_plan() const {
    std::size_t bytes = 0;
    EXPECT_EQ(tandem_forward_plan_size(&call_.args, &bytes), TANDEM_OK) << tandem_last_error();
    EXPECT_GT(bytes, 0U);
    return DeviceMemory(bytes);
  }
  void make_plan(const DeviceMemory& plan, cudaStream_t stream = nullptr) const {
    ASSERT_EQ(tandem_forward_plan(&call_.args, plan.data(), plan.bytes(), stream), TANDEM_OK)
        << tandem_last_error();
  }
  void use_plan(const DeviceMemory& plan) { call_.args.plan = plan.data(); }
  void read(VarlenTensors& host) const {
    o_.read(host.o.storage());
    lse_.read(host.lse.storage());
    k_.read(host.k.storage());
    v_.read(host.v.storage());
  }
  void write_lengths(const VarlenTensors& host) {
    cu_seqlens_q_.write(bytes_of(host.cu_seqlens_q));
    seqused_k_.write(bytes_of(host.seqused_k));
  }

 private:
  core::ForwardProblem problem_of(const VarlenTensors& host) const {
    core::ForwardProblem p = host.problem();
    p.q = host.q.view_at(q_.data()), p.k = host.k.view_at(k_.data()), p.v = host.v.view_at(v_.data());
    p.o = host.o.view_at(o_.data());
    if (host.setup.lse) p.lse = host.lse.view_at(lse_.data());
    const auto moved = [](const std::int32_t*& words, const DeviceMemory& to) {
      if (words != nullptr) words = reinterpret_cast<const std::int32_t*>(to.data());
    };
    moved(p.varlen.cu_seqlens_q, cu_seqlens_q_), moved(p.varlen.cu_seqlens_k, cu_seqlens_k_);
    moved(p.varlen.seqused_k, seqused_k_), moved(p.varlen.page_table, page_table_);
    moved(p.varlen.cu_seqlens_k_new, cu_seqlens_new_), moved(p.varlen.leftpad_k, leftpad_);
    moved(p.varlen.batch_index, batch_index_);
    if (p.varlen.appends()) {
      p.varlen.k_new = host.k_new.view_at(k_new_.data());
      p.varlen.v_new = host.v_new.view_at(v_new_.data());
    }
    if (p.varlen.rotates()) {
      p.varlen.rotary.cos = host.cos.view_at(cos_.data()).data;
      p.varlen.rotary.sin = host.sin.view_at(sin_.data()).data;
    }
    if (p.sinks != nullptr) p.sinks = reinterpret_cast<const float*>(sinks_.data());
    if (p.tree != nullptr) p.tree = reinterpret_cast<const std::uint64_t*>(tree_.data());
    if (p.slopes.given()) p.slopes.data = reinterpret_cast<const float*>(slopes_.data());
    if (p.blocks.given()) moved(p.blocks.counts, list_counts_), moved(p.blocks.blocks, list_blocks_);
    return p;
  }
  std::size_t workspace_bytes() const {
    std::size_t bytes = 0;
    EXPECT_EQ(tandem_forward_workspace(&call_.args, &bytes), TANDEM_OK) << tandem_last_error();
    return bytes;
  }

  DeviceMemory q_, k_, v_, o_, lse_, cu_seqlens_q_, cu_seqlens_k_, seqused_k_, page_table_, sinks_, slopes_,
      tree_, k_new_, v_new_, cos_, sin_, cu_seqlens_new_, leftpad_, batch_index_, list_counts_, list_blocks_;
  BoundedCall call_;
  DeviceMemory workspace_;
};

/// "" if the case's outputs are right.
inline std::string failure_of(const VarlenTensors& tensors) {
  const VarlenValues values = varlen_values(tensors);
  std::ostringstream failure;
  if (const Comparison o = compare(values.result.o, values.standard.o, values.reference.o); !o)
    failure << "o: " << o;
  if (!others_untouched(tensors)) failure << " rows of no sequence were written";
  failure << tensors.cache_failure();
  if (tensors.setup.lse)
    if (const Comparison lse = compare(values.result.lse, values.standard.lse, values.reference.lse); !lse)
      failure << " lse: " << lse;
  return failure.str();
}

class HopperVarlen : public HopperForward {};

/// Of any kind.
inline VarlenCase random_case(std::uint64_t seed) {
  Random random(seed);
  VarlenCase c = draw_varlen_case(random, {128, 128, 6});
  static constexpr std::int64_t head_dims[] = {64, 96, 128, 192, 256, 8, 40, 80, 136};
  c.dtype = random() % 2 == 0 ? TANDEM_BF16 : TANDEM_FP16;
  c.head_dim = head_dims[seed % std::size(head_dims)];
  if (c.head_dim > 192) c.mask.chunk = 0, c.tree = false;
  c.rotary_dim = std::min(c.rotary_dim, c.head_dim / 16 * 16);
  if (random() % 4 == 0) c.softcap = static_cast<float>(2 + random() % 40);
  if (c.head_dim > 128 && c.head_dim <= 192 && !c.appends() && random() % 2 == 0)
    c.value_dim = 8 * static_cast<std::int64_t>(1 + random() % 16);
  return c;
}

/// Sequences of few queries, which run decode's body, over pages of 64.
inline VarlenCase steps_of(std::int64_t head_dim, std::int64_t most_queries,
                           std::vector<std::int64_t> prompts) {
  VarlenCase c;
  c.head_dim = head_dim;
  c.keys = KeyLayout::paged;
  c.page_size = 64;
  c.q_heads = 8, c.kv_heads = 2;
  c.mask = core::Mask::causal();
  for (std::int64_t i = 0; i < 20; ++i)
    c.q_lens.push_back(1 + i % most_queries), c.k_lens.push_back(20 + 97 * i);
  c.q_lens.push_back(1), c.k_lens.push_back(5000);
  for (const std::int64_t length : prompts) c.q_lens.push_back(length), c.k_lens.push_back(length + 300);
  c.new_lens = c.q_lens;
  c.rotary_dim = 32;
  return c;
}

}  // namespace tandem::test
