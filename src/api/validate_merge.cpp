#include <vector>

#include "api/checks.h"
#include "api/extent.h"
#include "api/validate.h"
#include "core/dtype.h"

namespace tandem::api {
namespace {

using core::Region;
using core::Role;
using core::Status;
using core::Tensor;
using Args = tandem_merge_args;

constexpr StructName args_name{"args", "tandem_merge_args", TANDEM_SIZE_UP_TO(tandem_merge_args, lse)};

bool wants_lse(const Args& args) { return args.lse.data != nullptr; }

ShortList<Named> named_tensors(const Args& args) {
  ShortList<Named> all = {{"o_parts", &args.o_parts}, {"lse_parts", &args.lse_parts}, {"o", &args.o}};
  if (wants_lse(args)) all.push_back({"lse", &args.lse});
  return all;
}

ShortList<Named> logarithms_of(const Args& args) {
  if (wants_lse(args)) return {{"lse_parts", &args.lse_parts}, {"lse", &args.lse}};
  return {{"lse_parts", &args.lse_parts}};
}

Status check_dtypes(const Args& args) {
  for (const Named& argument : {Named{"o_parts", &args.o_parts}, Named{"o", &args.o}})
    if (const int dtype = number_of(argument.tensor->dtype); dtype < TANDEM_BF16 || dtype > TANDEM_FP32)
      return invalid(argument.name, ".dtype is ", describe_dtype(dtype),
                     "; use TANDEM_BF16, TANDEM_FP16 or TANDEM_FP32");
  for (const Named& argument : logarithms_of(args))
    if (const int dtype = number_of(argument.tensor->dtype); dtype != TANDEM_FP32)
      return invalid(argument.name, ".dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
  return {};
}

Status check_shapes(const Args& args) {
  if (args.parts < 0) return invalid("parts is ", args.parts, "; it has to be 0 or more");
  if (Status s = check_sizes(named_tensors(args)); !s.ok()) return s;
  if (const std::int64_t d = args.o.shape[3]; d == 0 || d % 8 != 0)
    return invalid("o.shape[3] (head dim) is ", d, "; it has to be a multiple of 8, and more than 0");
  const Named o_parts{"o_parts", &args.o_parts}, o{"o", &args.o};
  ShortList<Agreement> agreements = {{o_parts, o, 3}};
  for (int i = 0; i < 3; ++i) {
    agreements.push_back({o_parts, o, i});
    for (const Named& argument : logarithms_of(args)) agreements.push_back({argument, o, i});
  }
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  for (const Named& argument : logarithms_of(args))
    if (const std::int64_t columns = argument.tensor->shape[3]; columns != 1)
      return invalid(argument.name, ".shape[3] is ", columns, "; it has to be 1, one number per row");
  return {};
}

/// A tensor whose parts lie `stride` elements apart.
struct Parts {
  Named named;
  const char* stride_name;
  std::int64_t stride, count;

  /// Part `index`, or false where its offset in bytes does not fit 63 bits.
  bool part(std::int64_t index, Tensor* tensor) const {
    *tensor = *named.tensor;
    std::int64_t offset = 0;
    if (__builtin_mul_overflow(index, stride, &offset)) return false;
    if (__builtin_mul_overflow(offset, static_cast<std::int64_t>(core::size_of(tensor->dtype)), &offset))
      return false;
    const auto address = reinterpret_cast<std::uintptr_t>(tensor->data);
    const std::uintptr_t moved = address + static_cast<std::uintptr_t>(offset);
    tensor->data = reinterpret_cast<void*>(moved);
    return tensor->data == nullptr || address == 0 || (offset < 0) == (moved < address);
  }
};

std::vector<Parts> parts_of(const Args& args) {
  return {{{"o_parts", &args.o_parts}, "o_part_stride", args.o_part_stride, args.parts},
          {{"lse_parts", &args.lse_parts}, "lse_part_stride", args.lse_part_stride, args.parts}};
}

core::TensorList outputs_of(const Args& args) {
  core::TensorList list;
  list.add("o", Role::output, args.o);
  if (wants_lse(args)) list.add("lse", Role::output, args.lse);
  return list;
}

Status check_layouts(const Args& args) {
  core::TensorList of_a_part;
  of_a_part.add("o_parts", Role::input, args.o_parts);
  of_a_part.add("lse_parts", Role::input, args.lse_parts);
  if (Status s = check_strides(of_a_part); !s.ok()) return s;
  if (Status s = check_strides(outputs_of(args)); !s.ok()) return s;
  for (const Parts& parts : parts_of(args))
    if (Tensor last; parts.count > 1 && !parts.part(parts.count - 1, &last))
      return invalid(parts.stride_name, " is ", parts.stride, " with ", parts.count,
                     " parts; offsets in bytes have to fit in 63 bits, and in the address space");
  return check_distinct(outputs_of(args));
}

/// One part at a time, so that an error says which.
Status check_memory(const Args& args) {
  const core::TensorList outputs = outputs_of(args);
  if (Status s = check_addresses(outputs); !s.ok()) return s;
  if (Status s = check_overlaps(outputs); !s.ok()) return s;
  if (is_empty(Region::of(args.o))) return {};  // nor do parts have memory then, however many there are
  for (const Parts& parts : parts_of(args)) {
    for (std::int64_t i = 0; i < parts.count; ++i) {
      Tensor part;
      parts.part(i, &part);
      core::TensorList own;
      own.add(parts.named.name, Role::input, part);
      if (i == 0 || i == parts.count - 1)
        if (Status s = check_addresses(own); !s.ok()) return s;
      for (const core::ListedTensor& output : outputs)
        if (overlap(Region::of(part), output.region))
          return invalid(output.address_name(), " is ", output.region.data,
                         ", whose elements overlap those of part ", i, " of ", parts.named.name,
                         "; an output needs memory of its own");
    }
  }
  return {};
}

}  // namespace

Status validate_merge(const tandem_merge_args* args, core::MergeProblem* problem) {
  Args known;
  if (Status s = read_struct(args_name, args, &known); !s.ok()) return s;
  if (Status s = check_backend(known.backend); !s.ok()) return s;
  for (Tensor* tensor : {&known.o_parts, &known.lse_parts, &known.o, &known.lse})
    drop_unused_strides(*tensor);
  for (const auto check : {check_dtypes, check_shapes, check_layouts, check_memory})
    if (Status s = check(known); !s.ok()) return s;
  *problem = {.parts = known.parts,
              .o_parts = known.o_parts,
              .lse_parts = known.lse_parts,
              .o_part_stride = known.parts > 1 ? known.o_part_stride : 0,
              .lse_part_stride = known.parts > 1 ? known.lse_part_stride : 0,
              .o = known.o,
              .lse = wants_lse(known) ? known.lse : Tensor{}};
  return {};
}

}  // namespace tandem::api
