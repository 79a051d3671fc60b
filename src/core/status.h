// Status: how a function below the C ABI says that it failed.
#pragma once

#include <string>
#include <utility>

#include <tandem/tandem.h>

namespace tandem::core {

/// OK, or a tandem_status with a message that names the argument, its value and what is allowed.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(tandem_status code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == TANDEM_OK; }
  tandem_status code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  tandem_status code_ = TANDEM_OK;
  std::string message_;
};

}  // namespace tandem::core
