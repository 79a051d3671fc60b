// The inputs of a forward call, quantised to 8 bits as docs/fp8.md recommends.
#pragma once

#include <array>
#include <memory>
#include <string>

#include <tandem/tandem.h>

#include "failure.h"
#include "place.h"
#include "tensor.h"

namespace tandem::cli {

/// How fine 8 bits are (docs/fp8.md): q and k as e4m3; as int8; and v as two terms besides.
enum class EightBitMode { fast, balanced, accurate };
/// By these names.
EightBitMode parse_eight_bit_mode(const std::string& name);

/// How inputs become 8 bits.
struct EightBit {
  EightBitMode mode = EightBitMode::fast;
  /// What is taken off keys and values first, and made up for by the call: fp32, b, 1, kv_heads, d; without
  /// elements: nothing.
  HostTensor k_mean, v_mean;
};

/// 8-bit copies of q, k and v in a place, with their scales and shifts.
class QuantisedInputs {
 public:
  /// Enqueues the quantisation of args.q, k and v, and puts the copies and their scales into `args`, which
  /// points here from now on.
  QuantisedInputs(Place& place, tandem_forward_args& args, const EightBit& how, Exit if_invalid);
  QuantisedInputs(const QuantisedInputs&) = delete;
  QuantisedInputs& operator=(const QuantisedInputs&) = delete;

 private:
  struct Input {
    std::unique_ptr<Buffer> bits, scale, mean;
  };
  /// A copy of a mean, which the input keeps; without data where there is none.
  static tandem_tensor shift_of(Place& place, const HostTensor& mean, Input& input);
  tandem_tensor quantise(Place& place, tandem_quantize_args args, Input& input, tandem_tensor& scale,
                         Exit if_invalid);

  std::array<Input, 3> inputs_;
  std::unique_ptr<Buffer> dots_;  ///< of queries with the mean of keys
  tandem_scales scales_{};
};

}  // namespace tandem::cli
