// The C ABI boundary: no exception crosses it, and every failure leaves its words with the calling thread.
#include <cstddef>
#include <exception>
#include <new>
#include <stdexcept>
#include <string_view>

#include <tandem/study.h>
#include <tandem/tandem.h>

#include "api/calls.h"
#include "api/operations.h"

namespace tandem::api {
namespace {

/// A fixed buffer: keeping the message must not be able to fail.
thread_local char last_error[1024] = "";

void keep(std::string_view words) {
  const std::size_t kept = words.copy(last_error, sizeof(last_error) - 1);
  last_error[kept] = '\0';
}

tandem_status no_memory() {
  keep("host memory ran out; use fewer tokens");
  return TANDEM_OUT_OF_MEMORY;
}

template <typename Body>
tandem_status guarded(Body&& body) noexcept {
  try {
    const core::Status status = body();
    if (!status.ok()) keep(status.message());
    return status.code();
  } catch (const std::bad_alloc&) {
    return no_memory();
  } catch (const std::length_error&) {
    return no_memory();
  } catch (const std::exception& defect) {
    keep(defect.what());
  } catch (...) {
    keep("an exception of an unknown type");
  }
  return TANDEM_INTERNAL_ERROR;
}

#define TANDEM_TEXT_OF(value) #value
#define TANDEM_VERSION_TEXT(major, minor, patch) \
  TANDEM_TEXT_OF(major) "." TANDEM_TEXT_OF(minor) "." TANDEM_TEXT_OF(patch)

}  // namespace
}  // namespace tandem::api

extern "C" {

tandem_status tandem_forward_workspace(const tandem_forward_args* args, size_t* bytes) {
  return tandem::api::guarded(
      [&] { return tandem::api::query_workspace(tandem::api::forward_operation, args, bytes); });
}

tandem_status tandem_forward(const tandem_forward_args* args, void* workspace, size_t workspace_bytes,
                             void* stream) {
  return tandem::api::guarded([&] {
    return tandem::api::run(tandem::api::forward_operation, args, {workspace, workspace_bytes}, stream);
  });
}

tandem_status tandem_forward_plan_size(const tandem_forward_args* args, size_t* bytes) {
  return tandem::api::guarded(
      [&] { return tandem::api::query_plan(tandem::api::forward_operation, args, bytes); });
}

tandem_status tandem_forward_plan(const tandem_forward_args* args, void* plan, size_t plan_bytes,
                                  void* stream) {
  return tandem::api::guarded([&] {
    return tandem::api::make_plan(tandem::api::forward_operation, args, {plan, plan_bytes}, stream);
  });
}

tandem_status tandem_backward_workspace(const tandem_backward_args* args, size_t* bytes) {
  return tandem::api::guarded(
      [&] { return tandem::api::query_workspace(tandem::api::backward_operation, args, bytes); });
}

tandem_status tandem_backward(const tandem_backward_args* args, void* workspace, size_t workspace_bytes,
                              void* stream) {
  return tandem::api::guarded([&] {
    return tandem::api::run(tandem::api::backward_operation, args, {workspace, workspace_bytes}, stream);
  });
}

tandem_status tandem_decode_workspace(const tandem_decode_args* args, size_t* bytes) {
  return tandem::api::guarded(
      [&] { return tandem::api::query_workspace(tandem::api::decode_operation, args, bytes); });
}

tandem_status tandem_decode(const tandem_decode_args* args, void* workspace, size_t workspace_bytes,
                            void* stream) {
  return tandem::api::guarded([&] {
    return tandem::api::run(tandem::api::decode_operation, args, {workspace, workspace_bytes}, stream);
  });
}

tandem_status tandem_decode_plan_size(const tandem_decode_args* args, size_t* bytes) {
  return tandem::api::guarded(
      [&] { return tandem::api::query_plan(tandem::api::decode_operation, args, bytes); });
}

tandem_status tandem_decode_plan(const tandem_decode_args* args, void* plan, size_t plan_bytes,
                                 void* stream) {
  return tandem::api::guarded([&] {
    return tandem::api::make_plan(tandem::api::decode_operation, args, {plan, plan_bytes}, stream);
  });
}

tandem_status tandem_quantize(const tandem_quantize_args* args, void* stream) {
  return tandem::api::guarded(
      [&] { return tandem::api::run(tandem::api::quantize_operation, args, {}, stream); });
}

tandem_status tandem_merge(const tandem_merge_args* args, void* stream) {
  return tandem::api::guarded(
      [&] { return tandem::api::run(tandem::api::merge_operation, args, {}, stream); });
}

tandem_status tandem_explain_forward(const tandem_forward_args* args, char* text, size_t size) {
  return tandem::api::guarded([&] { return tandem::api::explain_forward(args, text, size); });
}

tandem_status tandem_get_info(tandem_info* info) {
  return tandem::api::guarded([&] { return tandem::api::describe(info); });
}

const char* tandem_last_error(void) { return tandem::api::last_error; }

const char* tandem_status_name(tandem_status status) {
  switch (status) {
    case TANDEM_OK:
      return "TANDEM_OK";
    case TANDEM_INVALID_ARGUMENT:
      return "TANDEM_INVALID_ARGUMENT";
    case TANDEM_UNSUPPORTED:
      return "TANDEM_UNSUPPORTED";
    case TANDEM_WORKSPACE_TOO_SMALL:
      return "TANDEM_WORKSPACE_TOO_SMALL";
    case TANDEM_NO_DEVICE:
      return "TANDEM_NO_DEVICE";
    case TANDEM_DEVICE_ERROR:
      return "TANDEM_DEVICE_ERROR";
    case TANDEM_INTERNAL_ERROR:
      return "TANDEM_INTERNAL_ERROR";
    case TANDEM_OUT_OF_MEMORY:
      return "TANDEM_OUT_OF_MEMORY";
  }
  return "an unknown status";
}

const char* tandem_version(void) {
  return TANDEM_VERSION_TEXT(TANDEM_VERSION_MAJOR, TANDEM_VERSION_MINOR, TANDEM_VERSION_PATCH);
}

}  // extern "C"
