// Which features the calls had that a fuzzer compared with its oracle. The driver's --least makes a test of
// it: a feature that is never drawn, or never in a call that runs, would be compared by nobody.
#pragma once

#include <cstdint>
#include <map>
#include <string>

namespace tandem::fuzz {

/// Of each feature, the calls that were compared and had it.
inline std::map<std::string, std::uint64_t>& features() {
  static std::map<std::string, std::uint64_t> all;
  return all;
}

/// Of every call that is compared, for every feature.
inline void count_feature(const char* name, bool has_it) { features()[name] += has_it ? 1 : 0; }

}  // namespace tandem::fuzz
