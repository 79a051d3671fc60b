#include "tests/gpu/device_forward.h"

#include <algorithm>
#include <sstream>

#include "cpu/forward.h"
#include "tests/support/compare.h"
#include "tests/support/standard.h"

namespace tandem::test {
namespace {

/// Different rows whose output is more than zeros.
std::int64_t rows_with_keys(const ForwardCase& c) {
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < c.q_len; ++i) {
    const core::KeyRange keys = c.mask.visible_keys(i, c.q_len, c.k_len);
    if (keys.begin < keys.end) rows += (c.q.broadcast[0] ? 1 : c.batch) * c.q_heads;
  }
  return rows;
}

constexpr std::int64_t enough_rows = 400;

}  // namespace

tandem_status forward_on(cudaStream_t stream, const tandem_forward_args& args) {
  return tandem_forward(&args, nullptr, 0, stream);
}

DeviceForward::DeviceForward(const ForwardTensors& host)
    : q_(host.q.storage()),
      k_(host.k.storage()),
      v_(host.v.storage()),
      o_(host.o.storage()),
      lse_(host.lse.storage()),
      q_scale_(host.q_scale.storage()),
      k_scale_(host.k_scale.storage()),
      v_scale_(host.v_scale.storage()),
      v_shift_(host.v_shift.storage()),
      q_dot_k_shift_(host.q_dot_k_shift.storage()),
      block_counts_(std::as_bytes(host.blocks.counts())),
      block_numbers_(std::as_bytes(host.blocks.numbers())),
      call_(host.setup) {
  tandem_forward_args& args = call_.args;
  args.backend = TANDEM_BACKEND_HOPPER;
  args.q = host.q.view_at(q_.data());
  args.k = host.k.view_at(k_.data());
  args.v = host.v.view_at(v_.data());
  args.o = host.o.view_at(o_.data());
  if (host.setup.lse) args.lse = host.lse.view_at(lse_.data());
  if (host.setup.blocks.given()) {
    call_.block_list = to_c(host.blocks.view());
    call_.block_list.counts = reinterpret_cast<const std::int32_t*>(block_counts_.data());
    call_.block_list.blocks = reinterpret_cast<const std::int32_t*>(block_numbers_.data());
    args.block_list = &call_.block_list;
  }
  const EightBitCase& eight_bit = host.setup.eight_bit;
  if (eight_bit.q.heads > 0) call_.scales.q = host.q_scale.view_at(q_scale_.data());
  if (eight_bit.k.heads > 0) call_.scales.k = host.k_scale.view_at(k_scale_.data());
  if (eight_bit.v.heads > 0) call_.scales.v = host.v_scale.view_at(v_scale_.data());
  if (eight_bit.v_shift) call_.scales.v_shift = host.v_shift.view_at(v_shift_.data());
  if (eight_bit.q_dot_k_shift) call_.scales.q_dot_k_shift = host.q_dot_k_shift.view_at(q_dot_k_shift_.data());
}

void DeviceForward::run(cudaStream_t stream) const {
  EXPECT_EQ(forward_on(stream, args()), TANDEM_OK) << tandem_last_error();
}

void DeviceForward::write_inputs(const ForwardTensors& host) {
  q_.write(host.q.storage());
  k_.write(host.k.storage());
  v_.write(host.v.storage());
  q_scale_.write(host.q_scale.storage());
  k_scale_.write(host.k_scale.storage());
  v_scale_.write(host.v_scale.storage());
  v_shift_.write(host.v_shift.storage());
  q_dot_k_shift_.write(host.q_dot_k_shift.storage());
}

void DeviceForward::write_outputs(const ForwardTensors& host) {
  o_.write(host.o.storage());
  lse_.write(host.lse.storage());
}

void DeviceForward::read_outputs(ForwardTensors& host) const {
  o_.read(host.o.storage());
  lse_.read(host.lse.storage());
}

std::vector<std::byte> output_bytes(const ForwardCase& c, cudaStream_t stream) {
  ForwardTensors tensors(c);
  const DeviceForward device(tensors);
  device.run(stream);
  device.read_outputs(tensors);
  std::vector<std::byte> bytes(tensors.o.storage().begin(), tensors.o.storage().end());
  bytes.insert(bytes.end(), tensors.lse.storage().begin(), tensors.lse.storage().end());
  return bytes;
}

void Pool::add(const std::vector<double>& r, const std::vector<double>& s, const std::vector<double>& f) {
  result.insert(result.end(), r.begin(), r.end());
  standard.insert(standard.end(), s.begin(), s.end());
  reference.insert(reference.end(), f.begin(), f.end());
}

std::string failure_of(const ForwardCase& c, cudaStream_t stream) {
  const std::int64_t rows = std::max<std::int64_t>(rows_with_keys(c), 1);
  const std::int64_t runs = rows_with_keys(c) == 0 ? 1 : (enough_rows + rows - 1) / rows;
  Pool o, lse;
  std::ostringstream failure;
  for (std::int64_t run = 0; run < runs; ++run) {
    ForwardCase own = c;
    own.seed += static_cast<std::uint64_t>(run) * 1'000'003;
    ForwardTensors tensors(own);
    const DeviceForward device(tensors);
    if (forward_on(stream, device.args()) != TANDEM_OK) return tandem_last_error();
    device.read_outputs(tensors);
    const cpu::ReferenceValues reference = cpu::reference_values(tensors.problem());
    const ForwardValues standard = standard_forward(tensors.problem());
    o.add(tensors.o.values(), standard.o, reference.o);
    if (c.lse) lse.add(tensors.lse.values(), standard.lse, reference.lse);
    if (!tensors.o.guards_intact()) failure << "cells outside of o were written; ";
    if (c.lse ? !tensors.lse.guards_intact() : !tensors.lse.untouched()) {
      failure << "cells outside of lse were written; ";
    }
  }
  const Comparison o_comparison = compare(o.result, o.standard, o.reference, allowance_of_o(c.dtype));
  if (!o_comparison) failure << "o: " << o_comparison << "; ";
  const Comparison lse_comparison =
      compare(lse.result, lse.standard, lse.reference, allowance_of_lse(c.dtype));
  if (!lse_comparison) failure << "lse: " << lse_comparison << "; ";
  return failure.str();
}

}  // namespace tandem::test
