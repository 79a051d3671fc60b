// The verbs' conformance on the software Hopper, under every policy.
#include <gtest/gtest.h>
#include <ostream>
#include <string>
#include <type_traits>
#include <vector>

#include "hw/hw.h"
#include "hw/sim/machine.h"
#include "tests/hw/map_request.h"

namespace tandem::test::machine {

struct Mode {
  hw::sim::Policy policy;
  friend std::ostream& operator<<(std::ostream& out, const Mode& mode) {
    return out << hw::sim::name_of(mode.policy);
  }
};
inline std::vector<Mode> modes() {
  return {{hw::sim::Policy::eager}, {hw::sim::Policy::late}, {hw::sim::Policy::random}};
}

inline std::string why_unusable() { return ""; }

template <typename T>
class Buffer {
 public:
  explicit Buffer(const std::vector<T>& values) : values_(values) {}
  T* data() const { return values_.data(); }
  std::vector<T> read() const { return values_; }

 private:
  mutable std::vector<T> values_;  // a pointer to device memory is not const either
};

inline hw::TensorMap encode(const MapRequest& r) {
  hw::sim::TensorMapSpec spec{r.address, {}, {}, {}, r.swizzle, r.element_bytes, r.rank};
  std::copy(std::begin(r.dims), std::end(r.dims), spec.dims);
  std::copy(std::begin(r.stride_bytes), std::end(r.stride_bytes), spec.stride_bytes);
  std::copy(std::begin(r.box), std::end(r.box), spec.box);
  return hw::sim::encode_tensor_map(spec);
}

template <typename Body>
void run(const Mode& mode, int blocks, const Body& body) {
  hw::sim::LaunchConfig config;
  config.blocks = blocks;
  config.threads = Body::threads;
  config.shared_bytes = std::is_empty_v<typename Body::Shared> ? 0 : sizeof(typename Body::Shared);
  config.policy = mode.policy;
  const hw::sim::Report report = hw::sim::launch(config, [&body] { body(); });
  ASSERT_TRUE(report.ok()) << report.text();
}

}  // namespace tandem::test::machine

// The machine comes first.
#include "tests/hw/arithmetic_conformance.h"
#include "tests/hw/barriers_conformance.h"
#include "tests/hw/fp16_conformance.h"
#include "tests/hw/global_conformance.h"
#include "tests/hw/packed_conformance.h"
#include "tests/hw/store_conformance.h"
#include "tests/hw/threads_conformance.h"
#include "tests/hw/tma_conformance.h"
#include "tests/hw/warp_matrix_conformance.h"
#include "tests/hw/wgmma_conformance.h"
