#include "tests/gpu/device_decode.h"

#include <algorithm>
#include <sstream>

#include "tests/gpu/device_forward.h"
#include "tests/support/compare.h"
#include "tests/support/decode_reference.h"

namespace tandem::test {
namespace {

constexpr std::int64_t enough_rows = 150;

std::span<const std::byte> bytes_of(const std::vector<std::int32_t>& words) {
  return std::as_bytes(std::span(words));
}

/// Compares values of one or more steps that were pooled.
std::string compare_pools(const DecodeCase& c, const Pool& o, const Pool& lse) {
  std::ostringstream failure;
  const Comparison of_o = compare(o.result, o.standard, o.reference, allowance_of(c));
  if (!of_o) failure << "o: " << of_o << "; ";
  const Comparison of_lse = compare(lse.result, lse.standard, lse.reference, allowance_of_lse(c));
  if (!of_lse) failure << "lse: " << of_lse << "; ";
  return failure.str();
}

/// Adds the step's values to the pools; says what else is wrong.
std::string add_step(const DecodeTensors& after, const DecodeTensors& before, Pool& o, Pool& lse) {
  const cpu::ReferenceValues reference = reference_of(after, before);
  const ForwardValues standard = standard_decode(before);
  o.add(after.o.values(), standard.o, reference.o);
  if (after.setup.lse) lse.add(after.lse.values(), standard.lse, reference.lse);
  std::string failure = after.cache_failure(before);
  if (!after.o.guards_intact()) failure += "cells outside of o were written; ";
  if (after.setup.lse ? !after.lse.guards_intact() : !after.lse.untouched())
    failure += "cells outside of lse were written; ";
  return failure;
}

}  // namespace

std::byte* DecodeWorkspace::of(std::size_t needed) {
  if (needed > bytes()) {
    memory_.emplace(std::max(needed, std::size_t{64} << 20));
    check_cuda(cudaMemset(memory_->data(), 0, memory_->bytes()), "zeroing of a workspace");
    check_cuda(cudaDeviceSynchronize(), "zeroing of a workspace");
  }
  return memory_->data();
}

DeviceDecode::DeviceDecode(const DecodeTensors& host)
    : q_(host.q.storage()),
      qv_(host.qv.storage()),
      k_cache_(host.k_cache.storage()),
      v_cache_(host.v_cache.storage()),
      k_new_(host.k_new.storage()),
      v_new_(host.v_new.storage()),
      o_(host.o.storage()),
      lse_(host.lse.storage()),
      cos_(host.cos.storage()),
      sin_(host.sin.storage()),
      page_table_(bytes_of(host.page_table)),
      lengths_(bytes_of(host.setup.lengths)),
      batch_index_(bytes_of(host.batch_index)),
      sinks_(std::as_bytes(std::span(host.sinks))),
      k_scale_(host.k_scale.storage()),
      v_scale_(host.v_scale.storage()),
      prefix_sequences_(bytes_of(host.setup.prefix_sequences)),
      prefix_lengths_(bytes_of(host.setup.prefix_lengths)),
      call_(host) {
  const auto words = [](const DeviceMemory& memory) {
    return reinterpret_cast<const std::int32_t*>(memory.data());
  };
  tandem_decode_args& args = call_.args;
  args.backend = TANDEM_BACKEND_HOPPER;
  args.q = host.q.view_at(q_.data());
  if (args.qv.data != nullptr) args.qv = host.qv.view_at(qv_.data());
  call_.cache.k = host.k_cache.view_at(k_cache_.data());
  const bool in_keys = host.setup.values_in_keys;
  call_.cache.v = host.values().view_at((in_keys ? k_cache_ : v_cache_).data());
  call_.cache.v.shape[3] = host.setup.value_columns();
  call_.cache.lengths = words(lengths_);
  if (call_.cache.page_table != nullptr) call_.cache.page_table = words(page_table_);
  if (call_.cache.batch_index != nullptr) call_.cache.batch_index = words(batch_index_);
  if (args.k_new.data != nullptr) args.k_new = host.k_new.view_at(k_new_.data());
  if (args.v_new.data != nullptr) {
    args.v_new = host.new_values().view_at((in_keys ? k_new_ : v_new_).data());
    args.v_new.shape[3] = host.setup.value_columns();
  }
  if (args.rotary != nullptr) {
    call_.rotary.cos = host.cos.view_at(cos_.data()).data;
    call_.rotary.sin = host.sin.view_at(sin_.data()).data;
  }
  if (args.prefixes != nullptr) {
    call_.prefixes.cu_sequences = words(prefix_sequences_);
    call_.prefixes.lengths = words(prefix_lengths_);
  }
  if (args.sinks != nullptr) args.sinks = reinterpret_cast<const float*>(sinks_.data());
  if (call_.scales.k.data != nullptr) {
    call_.scales.k = host.k_scale.view_at(k_scale_.data());
    call_.scales.v = host.v_scale.view_at(v_scale_.data());
  }
  args.o = host.o.view_at(o_.data());
  if (host.setup.lse) args.lse = host.lse.view_at(lse_.data());
}

tandem_status DeviceDecode::run(DecodeWorkspace& workspace, cudaStream_t stream) const {
  std::size_t bytes = 0;
  if (const tandem_status s = tandem_decode_workspace(&call_.args, &bytes); s != TANDEM_OK) return s;
  std::byte* memory = workspace.of(bytes);
  return tandem_decode(&call_.args, memory, workspace.bytes(), stream);
}

void DeviceDecode::make_plan(cudaStream_t stream) {
  std::size_t bytes = 0;
  ASSERT_EQ(tandem_decode_plan_size(&call_.args, &bytes), TANDEM_OK) << tandem_last_error();
  plan_.emplace(bytes);
  ASSERT_EQ(tandem_decode_plan(&call_.args, plan_->data(), bytes, stream), TANDEM_OK) << tandem_last_error();
  call_.args.plan = plan_->data();
}

void DeviceDecode::write(const DecodeTensors& host) {
  q_.write(host.q.storage());
  qv_.write(host.qv.storage());
  k_cache_.write(host.k_cache.storage());
  v_cache_.write(host.v_cache.storage());
  k_new_.write(host.k_new.storage());
  v_new_.write(host.v_new.storage());
  o_.write(host.o.storage());
  lse_.write(host.lse.storage());
  k_scale_.write(host.k_scale.storage());
  v_scale_.write(host.v_scale.storage());
  page_table_.write(bytes_of(host.page_table));
  batch_index_.write(bytes_of(host.batch_index));
  write_lengths(host.setup.lengths);
}

void DeviceDecode::write_lengths(const std::vector<std::int32_t>& lengths) {
  lengths_.write(bytes_of(lengths));
}

void DeviceDecode::read(DecodeTensors& host) const {
  o_.read(host.o.storage());
  lse_.read(host.lse.storage());
  k_cache_.read(host.k_cache.storage());
  v_cache_.read(host.v_cache.storage());
  k_scale_.read(host.k_scale.storage());
  v_scale_.read(host.v_scale.storage());
}

std::string difference(const DecodeTensors& after, const DecodeTensors& before) {
  Pool o, lse;
  const std::string failure = add_step(after, before, o, lse);
  return failure + compare_pools(after.setup, o, lse);
}

std::string failure_of(const DecodeCase& c, DecodeWorkspace& workspace, cudaStream_t stream) {
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < c.batch(); ++b) rows += c.length(b) + c.new_len > 0 ? c.q_len * c.q_heads : 0;
  const std::int64_t runs = rows == 0 ? 1 : (enough_rows + rows - 1) / rows;
  Pool o, lse;
  std::string failure;
  for (std::int64_t run = 0; run < runs && failure.empty(); ++run) {
    DecodeCase own = c;
    own.seed += static_cast<std::uint64_t>(run) * 1'000'003;
    const DecodeTensors before(own);
    DecodeTensors after(own);
    const DeviceDecode device(after);
    if (device.run(workspace, stream) != TANDEM_OK) return tandem_last_error();
    device.read(after);
    failure = add_step(after, before, o, lse);
  }
  return failure + compare_pools(c, o, lse);
}

}  // namespace tandem::test
