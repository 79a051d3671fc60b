// What a call is given by Python: its objects one after another, as tensors of the C interface and numbers.
#pragma once

#include <cstddef>
#include <cstdint>

#include <tandem/tandem.h>

#include "dlpack.h"

namespace tandem::native {

using Object = void;

/// What is used of CPython, of libtandem and of the framework. Mirrored in tandem/_native.py.
struct Table {
  std::size_t version;  ///< of the functions' arguments
  Object* none;
  Object* (*from_long)(long);
  long long (*as_long_long)(Object*);
  double (*as_double)(Object*);
  Object* (*error_occurred)();
  void (*clear_error)();
  void* (*save_thread)();
  void (*restore_thread)(void*);
  decltype(&tandem_forward_workspace) forward_workspace;
  decltype(&tandem_forward) forward;
  decltype(&tandem_decode_workspace) decode_workspace;
  decltype(&tandem_decode) decode;
  decltype(&tandem_backward_workspace) backward_workspace;
  decltype(&tandem_backward) backward;
  const Exchange* exchange;
};

inline Table table;

inline constexpr std::size_t version_of_arguments = 3;

inline constexpr long not_here = -1;

/// Arguments in their order. Where one is not as expected, `ok` becomes false and the rest is of no meaning.
class Arguments {
 public:
  Arguments(Object* const* objects, std::ptrdiff_t count) : objects_(objects), left_(count) {}

  bool ok = true;
  Device device{};  ///< of all tensors

  /// b, s, h, d; or, if it may be packed, rows, h, d, as a batch of one. An absent one is all zeros.
  tandem_tensor tensor(bool may_be_packed = false) {
    View view;
    if (!next_view(&view)) return {};
    const bool packed = may_be_packed && view.ndim == 3;
    ok = ok && (packed || view.ndim == 4) && dtype_of(view.dtype) != 0 && is_row(view);
    return ok ? described(view, packed ? 1 : 0) : tandem_tensor{};
  }

  /// b, s, h of fp32; or rows, h.
  tandem_tensor rows(bool may_be_packed = false) {
    View view;
    if (!next_view(&view)) return {};
    const bool packed = may_be_packed && view.ndim == 2;
    ok = ok && (packed || view.ndim == 3) && dtype_of(view.dtype) == TANDEM_FP32;
    return ok ? described(view, packed ? 1 : 0) : tandem_tensor{};
  }

  /// Scales of a cache: b, h, or one for each of entries or pages, tokens, heads; of fp32.
  tandem_tensor scales(bool* per_token) {
    View view;
    if (!next_view(&view)) return {};
    *per_token = view.ndim == 3;
    ok = ok && (view.ndim == 2 || view.ndim == 3) && dtype_of(view.dtype) == TANDEM_FP32;
    if (!ok) return {};
    tandem_tensor t = described(view, 0);
    if (!*per_token) t.shape[2] = t.shape[1], t.stride[2] = t.stride[1], t.shape[1] = t.stride[1] = 1;
    return t;
  }

  /// int32 of `dims` dimensions, the last one contiguous; false where there is none.
  bool numbers(int dims, View* view) {
    if (!next_view(view)) return false;
    const auto [code, bits, lanes] = view->dtype;
    ok = ok && view->ndim == dims && code == type_int && bits == 32 && lanes == 1 && is_row(*view);
    return ok;
  }

  /// A contiguous matrix of a floating-point type; false where there is none.
  bool matrix(View* view) {
    if (!next_view(view)) return false;
    ok = ok && view->ndim == 2 && dtype_of(view->dtype) != 0 && is_row(*view) &&
         (view->shape[0] <= 1 || view->strides[0] == view->shape[1]);
    return ok;
  }

  /// So many contiguous numbers of fp32; nullptr where there are none.
  float* floats(std::int64_t count) {
    View view;
    if (!next_view(&view)) return nullptr;
    ok =
        ok && view.ndim == 1 && dtype_of(view.dtype) == TANDEM_FP32 && view.shape[0] == count && is_row(view);
    return reinterpret_cast<float*>(static_cast<char*>(view.data) + view.byte_offset);
  }

  /// ALiBi's slopes: contiguous rows of so many fp32 numbers, one, or one for each of `rows`; nullptr where
  /// there are none.
  const float* slopes(std::int64_t rows, std::int64_t heads, std::int64_t* stride) {
    View view;
    if (!next_view(&view)) return nullptr;
    const bool many = view.ndim == 2;
    ok = ok && (many || view.ndim == 1) && dtype_of(view.dtype) == TANDEM_FP32 && is_row(view) &&
         view.shape[view.ndim - 1] == heads && (!many || view.shape[0] == rows);
    *stride = ok && many && rows > 1 ? view.strides[0] : 0;
    return reinterpret_cast<const float*>(static_cast<const char*>(view.data) + view.byte_offset);
  }

  /// A word of 64 bits for each query: b, s, or, if packed, one row of them; contiguous. nullptr where there
  /// are none.
  const std::uint64_t* words(const tandem_tensor& q, bool packed) {
    View view;
    if (!next_view(&view)) return nullptr;
    const auto [code, bits, lanes] = view.dtype;
    ok = ok && (code == type_int || code == type_uint) && bits == 64 && lanes == 1 && is_row(view) &&
         view.ndim == (packed ? 1 : 2) && view.shape[view.ndim - 1] == q.shape[1];
    if (ok && !packed)
      ok = view.shape[0] == q.shape[0] && (view.shape[0] <= 1 || view.strides[0] == view.shape[1]);
    return reinterpret_cast<const std::uint64_t*>(static_cast<const char*>(view.data) + view.byte_offset);
  }

  std::int64_t integer() {
    Object* object = next();
    if (object == nullptr) return 0;
    const long long value = table.as_long_long(object);
    return value == -1 && table.error_occurred() != nullptr ? fail() : value;
  }

  /// Not one that only rounding makes 0, which stands for a default.
  float real() {
    Object* object = next();
    if (object == nullptr) return 0;
    const double value = table.as_double(object);
    const bool is_number = value != -1 || table.error_occurred() == nullptr;
    const auto rounded = static_cast<float>(value);
    return is_number && (rounded != 0 || value == 0) ? rounded : static_cast<float>(fail());
  }

  bool at_end() const { return left_ == 0; }

  static tandem_dtype dtype_of(DataType type) {
    if (type.lanes != 1) return {};
    if (type.code == type_bfloat && type.bits == 16) return TANDEM_BF16;
    if (type.code == type_float && type.bits == 16) return TANDEM_FP16;
    if (type.code == type_float8_e4m3fn && type.bits == 8) return TANDEM_E4M3;
    if (type.code == type_int && type.bits == 8) return TANDEM_INT8;
    return type.code == type_float && type.bits == 32 ? TANDEM_FP32 : tandem_dtype{};
  }

 private:
  Object* const* objects_;
  std::ptrdiff_t left_;
  bool has_device_ = false;

  int fail() {
    if (table.error_occurred() != nullptr) table.clear_error();
    ok = false;
    return 0;
  }

  Object* next() {
    if (!ok || left_ == 0) {
      ok = false;
      return nullptr;
    }
    --left_;
    return *objects_++;
  }

  static bool is_row(const View& view) {
    const int last = view.ndim - 1;
    return view.shape[last] <= 1 || view.strides[last] == 1;
  }

  bool next_view(View* view) {
    Object* object = next();
    if (object == nullptr || object == table.none) return false;
    if (table.exchange->view_of(object, view) != 0 || view->strides == nullptr) {
      fail();
      return false;
    }
    if (view->device.type == device_cuda_host) view->device.type = device_cpu;
    if (!has_device_) device = view->device, has_device_ = true;
    ok = ok && view->device.type == device.type && view->device.id == device.id;
    return ok;
  }

  /// With so many dimensions of size 1 in front, and the missing ones behind.
  static tandem_tensor described(const View& view, int in_front) {
    tandem_tensor t{};
    t.data = static_cast<char*>(view.data) + view.byte_offset;
    t.dtype = dtype_of(view.dtype);
    for (int i = 0; i < 4; ++i) {
      const int own = i - in_front;
      const bool exists = own >= 0 && own < view.ndim;
      t.shape[i] = exists ? view.shape[own] : 1;
      t.stride[i] = exists ? view.strides[own] : 1;
    }
    return t;
  }
};

}  // namespace tandem::native
