// One decoding step of the C interface with its tensors, prepared in a place, and fetched.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <tandem/study.h>
#include <tandem/tandem.h>

#include "call.h"

namespace tandem::cli {

/// A step with inputs on the host.
struct DecodeCall {
  tandem_backend backend = TANDEM_BACKEND_CPU;  ///< resolved: not AUTO
  HostTensor q, k_cache, v_cache;
  HostTensor k_new, v_new;               ///< without tokens: nothing is appended
  std::vector<std::int32_t> page_table;  ///< rows of pages_per_sequence; empty: contiguous
  std::int64_t pages_per_sequence = 1;
  std::vector<std::int32_t> lengths;
  std::vector<std::int32_t> batch_index;  ///< empty: sequence i has entry or row i
  HostTensor cos, sin;  ///< 1, 1, positions, dim / 2; without positions: no rotary embedding
  bool interleaved = false;
  tandem_mask mask = Mask::full().c_mask();
  float scale = 0;    ///< 0: 1 / sqrt(head dim)
  float softcap = 0;  ///< 0: off
  bool want_lse = true;
  std::int64_t split_size = 0;
  bool planned = false;  ///< with a plan of tandem_decode_plan
  tandem_decode_kernel kernel = TANDEM_DECODE_AUTO;
  Layout o_layout = Layout::bshd(), lse_layout = Layout::bshd();

  std::int64_t new_len() const { return k_new.shape[1]; }
  std::int64_t capacity() const { return pages_per_sequence * k_cache.shape[1]; }
  /// Tokens of a sequence after the step.
  std::int64_t keys(std::int64_t sequence) const;
  /// Where one of them lies in the cache.
  struct Place {
    std::int64_t page, row;
  };
  Place place(std::int64_t sequence, std::int64_t token) const;
};

/// "auto", "plain", "shared_p", "register_p".
std::string name_of(tandem_decode_kernel kernel);
tandem_decode_kernel parse_decode_kernel(const std::string& text);

struct DecodeOutput {
  HostTensor o, lse;  ///< lse is empty where it was not wanted
  HostTensor k_cache, v_cache;
};

/// A step whose tensors lie in `place`, ready to be enqueued any number of times.
class PreparedDecode {
 public:
  /// Both have to outlive it. `copies` of the cache, which steps may take in turns so that none finds its own
  /// in a hardware cache.
  PreparedDecode(Place& place, const DecodeCall& call, int copies = 1);
  PreparedDecode(const PreparedDecode&) = delete;
  /// The step over one copy of the cache.
  void enqueue(int copy = 0);
  /// Waits, and copies the results, with the first copy of the cache, to the host.
  DecodeOutput fetch();

 private:
  void describe_cache();
  void prepare_plan();

  Place& place_;
  const DecodeCall& call_;
  DecodeOutput output_;  ///< poisoned, as uploaded
  std::unique_ptr<Buffer> q_, k_new_, v_new_, page_table_, lengths_, batch_index_, cos_, sin_, o_, lse_,
      plan_, workspace_;
  std::vector<std::unique_ptr<Buffer>> k_caches_, v_caches_;
  std::size_t workspace_bytes_ = 0;
  tandem_cache cache_{};
  tandem_rotary rotary_{};
  tandem_study study_{};
  tandem_decode_args args_{};  ///< points to those above
};

}  // namespace tandem::cli
