// The words of an error.
#pragma once

#include <locale>
#include <sstream>
#include <string>

#include "core/status.h"

namespace tandem::api {

/// One string of all parts, as operator<< writes them, in the C locale.
template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  stream.imbue(std::locale::classic());
  (stream << ... << parts);
  return stream.str();
}

template <typename... Parts>
core::Status invalid(const Parts&... parts) {
  return {TANDEM_INVALID_ARGUMENT, text(parts...)};
}

template <typename... Parts>
core::Status unsupported(const Parts&... parts) {
  return {TANDEM_UNSUPPORTED, text(parts...)};
}

}  // namespace tandem::api
