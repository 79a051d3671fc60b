#include "api/validate.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "api/extent.h"
#include "api/message.h"
#include "core/dtype.h"

namespace tandem::api {
namespace {

using core::Mask;
using core::Status;
using core::Tensor;
using Args = tandem_forward_args;

constexpr std::int64_t max_head_dim = 256;
constexpr std::size_t first_version_of_args = offsetof(Args, softcap) + sizeof(Args::softcap);

constexpr const char* dimension_names[] = {"batch", "sequence length", "heads", "head dim"};

/// A tensor argument and what the caller calls it.
struct Named {
  const char* name;
  const Tensor* tensor;
};

bool wants_lse(const Args& args) { return args.lse.data != nullptr; }

std::vector<Named> inputs_of(const Args& args) { return {{"q", &args.q}, {"k", &args.k}, {"v", &args.v}}; }

std::vector<Named> outputs_of(const Args& args) {
  if (wants_lse(args)) return {{"o", &args.o}, {"lse", &args.lse}};
  return {{"o", &args.o}};
}

std::vector<Named> tensors_of(const Args& args) {
  std::vector<Named> all = inputs_of(args);
  for (const Named& output : outputs_of(args)) all.push_back(output);
  return all;
}

/// The number behind a C enum. A caller may store any number there, which C++ may not read as the enum.
template <typename Enum>
int number_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

// ---- Options

Status check_backend(const Args& args) {
  const int backend = number_of(args.backend);
  if (backend >= TANDEM_BACKEND_AUTO && backend <= TANDEM_BACKEND_REFERENCE) return {};
  return invalid("backend is ", backend,
                 ", which is no tandem_backend; use TANDEM_BACKEND_AUTO, _CPU, _HOPPER or ", "_REFERENCE");
}

Status check_window_side(const char* name, std::int64_t keys, int kind) {
  if (kind != TANDEM_MASK_WINDOW && keys != 0)
    return invalid(name, " is ", keys, ", but mask.kind is ",
                   kind == TANDEM_MASK_FULL ? "TANDEM_MASK_FULL" : "TANDEM_MASK_CAUSAL",
                   ", which has no window; set it to 0, or mask.kind to TANDEM_MASK_WINDOW");
  if (keys < 0 && keys != TANDEM_UNLIMITED)
    return invalid(name, " is ", keys, "; it has to be 0 or more keys, or TANDEM_UNLIMITED (-1)");
  return {};
}

Status check_mask(const Args& args) {
  const int kind = number_of(args.mask.kind);
  if (kind < TANDEM_MASK_FULL || kind > TANDEM_MASK_WINDOW)
    return invalid("mask.kind is ", kind,
                   ", which is no tandem_mask_kind; use TANDEM_MASK_FULL, _CAUSAL or _WINDOW");
  if (Status s = check_window_side("mask.window_left", args.mask.window_left, kind); !s.ok()) return s;
  return check_window_side("mask.window_right", args.mask.window_right, kind);
}

Status check_scales(const Args& args) {
  if (!std::isfinite(args.scale) || args.scale < 0)
    return invalid("scale is ", args.scale, "; it has to be finite and > 0, or 0 for 1 / sqrt(head dim)");
  if (!std::isfinite(args.softcap) || args.softcap < 0)
    return invalid("softcap is ", args.softcap, "; it has to be finite and > 0, or 0 for none");
  return {};
}

// ---- Types and shapes

bool is_dtype(int number) { return number >= TANDEM_BF16 && number <= TANDEM_FP32; }

/// For example "3 (fp32)".
std::string describe_dtype(int number) {
  return text(number, " (", is_dtype(number) ? core::name_of(static_cast<tandem_dtype>(number)) : "unknown",
              ")");
}

Status check_dtypes(const Args& args) {
  const int dtype = number_of(args.q.dtype);
  if (!is_dtype(dtype))
    return invalid("q.dtype is ", dtype,
                   ", which is no tandem_dtype; use TANDEM_BF16, TANDEM_FP16 or TANDEM_FP32");
  for (const auto& [name, tensor] : {Named{"k", &args.k}, Named{"v", &args.v}, Named{"o", &args.o}})
    if (const int own = number_of(tensor->dtype); own != dtype)
      return invalid(name, ".dtype is ", describe_dtype(own), ", but q.dtype is ", describe_dtype(dtype),
                     "; q, k, v and o have one dtype");
  if (const int lse = number_of(args.lse.dtype); wants_lse(args) && lse != TANDEM_FP32)
    return invalid("lse.dtype is ", describe_dtype(lse), "; it has to be TANDEM_FP32");
  return {};
}

Status check_sizes(const Args& args) {
  for (const auto& [name, tensor] : tensors_of(args))
    for (int i = 0; i < 4; ++i)
      if (tensor->shape[i] < 0)
        return invalid(name, ".shape[", i, "] (", dimension_names[i], ") is ", tensor->shape[i],
                       "; sizes are 0 or more");
  const std::int64_t head_dim = args.q.shape[3];
  if (head_dim == 0 || head_dim % 8 != 0 || head_dim > max_head_dim)
    return invalid("q.shape[3] (head dim) is ", head_dim, "; it has to be a multiple of 8 from 8 to ",
                   max_head_dim);
  return {};
}

/// One dimension of one tensor has to be that of another.
struct Agreement {
  Named tensor, model;
  int dimension;
};

Status check_agreement(const Agreement& a) {
  const std::int64_t value = a.tensor.tensor->shape[a.dimension],
                     expected = a.model.tensor->shape[a.dimension];
  if (value == expected) return {};
  return invalid(a.tensor.name, ".shape[", a.dimension, "] (", dimension_names[a.dimension], ") is ", value,
                 ", but it has to be ", a.model.name, ".shape[", a.dimension, "], which is ", expected);
}

Status check_shapes(const Args& args) {
  const Named q{"q", &args.q}, k{"k", &args.k}, v{"v", &args.v}, o{"o", &args.o}, lse{"lse", &args.lse};
  std::vector<Agreement> agreements = {{k, q, 0}, {k, q, 3}, {v, k, 0}, {v, k, 1}, {v, k, 2},
                                       {v, q, 3}, {o, q, 0}, {o, q, 1}, {o, q, 2}, {o, q, 3}};
  if (wants_lse(args))
    for (int i = 0; i < 3; ++i) agreements.push_back({lse, q, i});
  for (const Agreement& agreement : agreements)
    if (Status s = check_agreement(agreement); !s.ok()) return s;
  if (wants_lse(args) && args.lse.shape[3] != 1)
    return invalid("lse.shape[3] is ", args.lse.shape[3], "; it has to be 1, one number per query and head");

  const std::int64_t q_heads = args.q.shape[2], kv_heads = args.k.shape[2];
  const bool divides = kv_heads == 0 ? q_heads == 0 : q_heads % kv_heads == 0;
  if (!divides)
    return invalid("q.shape[2] (heads) is ", q_heads,
                   ", which is not a multiple of k.shape[2] (heads), which is ", kv_heads);
  return {};
}

// ---- Memory

Status check_strides(const Args& args) {
  for (const auto& [name, tensor] : tensors_of(args)) {
    if (tensor->shape[3] != 1 && tensor->stride[3] != 1)
      return invalid(name, ".stride[3] (head dim) is ", tensor->stride[3],
                     "; it has to be 1: the last dimension is contiguous");
    if (Extent extent{}; !extent_of(*tensor, &extent))
      return invalid(name, ".shape is [", tensor->shape[0], ", ", tensor->shape[1], ", ", tensor->shape[2],
                     ", ", tensor->shape[3], "] with ", name, ".stride [", tensor->stride[0], ", ",
                     tensor->stride[1], ", ", tensor->stride[2], ", ", tensor->stride[3],
                     "]; its size and its offsets in bytes have to fit in 63 bits");
  }
  for (const auto& [name, tensor] : outputs_of(args))
    if (overlaps_itself(*tensor))
      return invalid(name, ".stride is [", tensor->stride[0], ", ", tensor->stride[1], ", ",
                     tensor->stride[2], ", ", tensor->stride[3], "], which gives two elements of ", name,
                     " the same address; an output's elements have to be distinct");
  return {};
}

Status check_address(const Named& argument) {
  const auto& [name, tensor] = argument;
  if (is_empty(*tensor)) return {};
  if (tensor->data == nullptr)
    return invalid(name, ".data is NULL; only a tensor without elements may have no memory");
  const auto address = reinterpret_cast<std::uintptr_t>(tensor->data);
  const std::size_t alignment = core::size_of(tensor->dtype);
  if (address % alignment != 0)
    return invalid(name, ".data is ", tensor->data, ", which is not aligned to its elements of ", alignment,
                   " bytes");
  Extent extent{};
  extent_of(*tensor, &extent);
  const bool wraps = address < std::uintptr_t{0} - static_cast<std::uintptr_t>(extent.low) && extent.low < 0;
  if (wraps || address + static_cast<std::uintptr_t>(extent.high) < address)
    return invalid(name, ".data is ", tensor->data, ", from where ", name,
                   ".shape and .stride lead out of the address space");
  return {};
}

Status check_memory(const Args& args) {
  for (const Named& argument : tensors_of(args))
    if (Status s = check_address(argument); !s.ok()) return s;
  std::vector<Named> earlier = inputs_of(args);
  for (const Named& output : outputs_of(args)) {
    for (const Named& other : earlier)
      if (overlap(*output.tensor, *other.tensor))
        return invalid(output.name, ".data is ", output.tensor->data, ", whose elements overlap those of ",
                       other.name, " (", other.name, ".data is ", other.tensor->data,
                       "); an output needs memory of its own");
    earlier.push_back(output);
  }
  return {};
}

// ---- From arguments to the problem

/// The caller's struct as this library's version of it, fields that the caller does not know being 0.
Status read_args(const Args* args, Args* known) {
  if (args == nullptr) return invalid("args is NULL; pass the address of a tandem_forward_args");
  if (Status s = check_struct_size("args", args->struct_size, first_version_of_args, sizeof(Args)); !s.ok())
    return s;
  std::memset(known, 0, sizeof(*known));
  std::memcpy(known, args, args->struct_size);
  for (Tensor* tensor : {&known->q, &known->k, &known->v, &known->o, &known->lse})
    for (int i = 0; i < 4; ++i)
      if (tensor->shape[i] == 1) tensor->stride[i] = 0;
  return {};
}

Mask resolve_mask(const Args& args) {
  if (args.mask.kind == TANDEM_MASK_FULL) return Mask::full();
  const bool causal = args.mask.kind == TANDEM_MASK_CAUSAL;
  const std::int64_t left = causal ? TANDEM_UNLIMITED : args.mask.window_left;
  const std::int64_t right = causal ? 0 : args.mask.window_right;
  // A query's position lies in [sk - sq, sk - 1]: further out than these there are no keys to hide.
  const std::int64_t q_len = args.q.shape[1], k_len = args.k.shape[1];
  const bool left_hides = left != TANDEM_UNLIMITED && left < k_len - 1;
  const bool right_hides = right != TANDEM_UNLIMITED && right < q_len - 1;
  return {left_hides ? left : Mask::unlimited, right_hides ? right : Mask::unlimited};
}

float resolve_scale(const Args& args) {
  if (args.scale > 0) return args.scale;
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.q.shape[3])));
}

}  // namespace

Status check_struct_size(const char* name, std::size_t size, std::size_t first_version, std::size_t own) {
  if (size < first_version)
    return invalid(name, "->struct_size is ", size, ", less than that of the first version, ", first_version,
                   "; set it to the sizeof of the struct");
  if (size > own)
    return unsupported(name, "->struct_size is ", size, ", more than the ", own, " that Tandem ",
                       tandem_version(), " knows; load the library that the header belongs to");
  return {};
}

Status validate(const tandem_forward_args* args, bool need_data, core::ForwardProblem* problem) {
  Args known;
  if (Status s = read_args(args, &known); !s.ok()) return s;
  for (const auto check :
       {check_backend, check_mask, check_scales, check_dtypes, check_sizes, check_shapes, check_strides})
    if (Status s = check(known); !s.ok()) return s;
  if (need_data)
    if (Status s = check_memory(known); !s.ok()) return s;
  *problem = {.q = known.q,
              .k = known.k,
              .v = known.v,
              .o = known.o,
              .lse = wants_lse(known) ? known.lse : Tensor{},
              .mask = resolve_mask(known),
              .scale = resolve_scale(known),
              .softcap = known.softcap};
  return {};
}

}  // namespace tandem::api
