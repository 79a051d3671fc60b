#include "decode_call.h"

#include <algorithm>

namespace tandem::cli {
namespace {

constexpr const char* kernel_names[] = {"auto", "plain", "shared_p", "register_p"};

/// nullptr for an empty list.
template <typename T>
std::unique_ptr<Buffer> uploaded_list(Place& place, const std::vector<T>& list) {
  return list.empty() ? nullptr : uploaded(place, std::as_bytes(std::span(list)));
}

template <typename T>
const T* address(const std::unique_ptr<Buffer>& buffer) {
  return buffer == nullptr ? nullptr : static_cast<const T*>(buffer->data());
}

}  // namespace

std::string name_of(tandem_decode_kernel kernel) { return kernel_names[kernel]; }

tandem_decode_kernel parse_decode_kernel(const std::string& text) {
  const auto* const found = std::find(std::begin(kernel_names), std::end(kernel_names), text);
  if (found == std::end(kernel_names))
    throw Failure(Exit::usage, "kernel '" + text + "' is not one of auto, plain, shared_p, register_p");
  return static_cast<tandem_decode_kernel>(found - std::begin(kernel_names));
}

std::int64_t DecodeCall::keys(std::int64_t sequence) const {
  const std::int64_t length = lengths[static_cast<std::size_t>(sequence)];
  return std::clamp<std::int64_t>(length, 0, capacity() - new_len()) + new_len();
}

DecodeCall::Place DecodeCall::place(std::int64_t sequence, std::int64_t token) const {
  const std::int64_t row = batch_index.empty() ? sequence : batch_index[static_cast<std::size_t>(sequence)];
  if (page_table.empty()) return {row, token};
  const std::int64_t page_size = k_cache.shape[1], slot = row * pages_per_sequence + token / page_size;
  return {page_table[static_cast<std::size_t>(slot)], token % page_size};
}

PreparedDecode::PreparedDecode(Place& place, const DecodeCall& call, int copies)
    : place_(place), call_(call), q_(uploaded(place, call.q.storage)) {
  for (int copy = 0; copy < copies; ++copy) {
    k_caches_.push_back(uploaded(place, call.k_cache.storage));
    v_caches_.push_back(uploaded(place, call.v_cache.storage));
  }
  const Shape& q = call.q.shape;
  output_.o = HostTensor::poisoned(call.q.dtype, q, call.o_layout);
  o_ = uploaded(place, output_.o.storage);
  args_.struct_size = sizeof args_;
  args_.backend = call.backend;
  args_.q = call.q.view(q_->data());
  args_.o = output_.o.view(o_->data());
  if (call.want_lse) {
    output_.lse = HostTensor::poisoned(TANDEM_FP32, {q[0], q[1], q[2], 1}, call.lse_layout);
    lse_ = uploaded(place, output_.lse.storage);
    args_.lse = output_.lse.view(lse_->data());
  }
  describe_cache();
  args_.mask = &call.mask;
  args_.scale = call.scale;
  args_.softcap = call.softcap;
  args_.split_size = call.split_size;
  study_.struct_size = sizeof study_;
  study_.kernel = call.kernel;
  args_.study = &study_;
  if (call.planned) prepare_plan();
  require(tandem_decode_workspace(&args_, &workspace_bytes_), Exit::usage);
  workspace_ = uploaded(place, std::vector<std::byte>(workspace_bytes_));  // zeroed
}

void PreparedDecode::describe_cache() {
  lengths_ = uploaded_list(place_, call_.lengths);
  page_table_ = uploaded_list(place_, call_.page_table);
  batch_index_ = uploaded_list(place_, call_.batch_index);
  cache_ = {sizeof cache_,
            call_.k_cache.view(k_caches_[0]->data()),
            call_.v_cache.view(v_caches_[0]->data()),
            address<std::int32_t>(page_table_),
            call_.pages_per_sequence,
            call_.pages_per_sequence,
            address<std::int32_t>(lengths_),
            address<std::int32_t>(batch_index_)};
  args_.cache = &cache_;
  if (call_.new_len() > 0) {
    k_new_ = uploaded(place_, call_.k_new.storage);
    v_new_ = uploaded(place_, call_.v_new.storage);
    args_.k_new = call_.k_new.view(k_new_->data());
    args_.v_new = call_.v_new.view(v_new_->data());
  }
  if (call_.cos.shape[2] > 0) {
    cos_ = uploaded(place_, call_.cos.storage);
    sin_ = uploaded(place_, call_.sin.storage);
    rotary_ = {sizeof rotary_,           cos_->data(),       sin_->data(),
               call_.cos.dtype,          call_.cos.shape[2], 2 * call_.cos.shape[3],
               call_.interleaved ? 1 : 0};
    args_.rotary = &rotary_;
  }
}

void PreparedDecode::prepare_plan() {
  std::size_t bytes = 0;
  require(tandem_decode_plan_size(&args_, &bytes), Exit::usage);
  plan_ = std::make_unique<Buffer>(place_, bytes);
  require(tandem_decode_plan(&args_, plan_->data(), bytes, place_.stream()), Exit::usage);
  args_.plan = plan_->data();
}

void PreparedDecode::enqueue(int copy) {
  const auto at = static_cast<std::size_t>(copy) % k_caches_.size();
  cache_.k = call_.k_cache.view(k_caches_[at]->data());
  cache_.v = call_.v_cache.view(v_caches_[at]->data());
  require(tandem_decode(&args_, workspace_->data(), workspace_bytes_, place_.stream()), Exit::usage);
}

DecodeOutput PreparedDecode::fetch() {
  DecodeOutput result = output_;
  result.k_cache = call_.k_cache;
  result.v_cache = call_.v_cache;
  const auto download = [this](HostTensor& to, const std::unique_ptr<Buffer>& from) {
    if (from) place_.download(to.storage.data(), from->data(), to.storage.size());
  };
  download(result.o, o_);
  download(result.lse, lse_);
  download(result.k_cache, k_caches_[0]);
  download(result.v_cache, v_caches_[0]);
  return result;
}

}  // namespace tandem::cli
