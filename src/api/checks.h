// Checks that several calls share. Each returns OK, or words that name the argument, its value and what is
// allowed.
#pragma once

#include <cstddef>
#include <cstring>
#include <span>
#include <string>

#include <tandem/study.h>
#include <tandem/tandem.h>

#include "api/message.h"
#include "api/short_list.h"
#include "core/mask.h"
#include "core/problem.h"
#include "core/rotary.h"
#include "core/status.h"

namespace tandem::api {

inline constexpr std::int64_t max_head_dim = 256;
/// Of the forward in 16 or 32 bits.
inline constexpr std::int64_t max_forward_head_dim = 512;

/// A tensor argument and what the caller calls it.
struct Named {
  const char* name;
  const core::Tensor* tensor;
};

/// The number behind a C enum. A caller may store any number there, which C++ may not read as the enum.
template <typename Enum>
int number_of(const Enum& value) {
  static_assert(sizeof(Enum) == sizeof(int));
  int number;
  std::memcpy(&number, &value, sizeof(number));
  return number;
}

/// Of a dtype that need not be one.
bool is_8_bit(const tandem_dtype& dtype);
/// For example "3 (fp32)".
std::string describe_dtype(int number);

/// Structs grow at their end, so a caller's struct may be as short as the first version and as long as this
/// library's.
core::Status check_struct_size(const char* name, std::size_t size, std::size_t first_version,
                               std::size_t own);

/// What a caller calls a struct, its type, and the size of the type's first version.
struct StructName {
  const char *name, *type;
  std::size_t first_version;
};

/// The caller's struct as this library's version of it, fields that the caller does not know being 0.
template <typename Struct>
core::Status read_struct(const StructName& own, const Struct* given, Struct* known) {
  if (given == nullptr) return invalid(own.name, " is NULL; pass the address of a ", own.type);
  if (core::Status s = check_struct_size(own.name, given->struct_size, own.first_version, sizeof(Struct));
      !s.ok())
    return s;
  std::memset(known, 0, sizeof(*known));
  std::memcpy(known, given, given->struct_size);
  return {};
}

/// The same for a struct that a call may do without: all 0 then.
template <typename Struct>
core::Status read_optional(const StructName& own, const Struct* given, Struct* known) {
  if (given != nullptr) return read_struct(own, given, known);
  std::memset(known, 0, sizeof(*known));
  return {};
}

/// The first version of a struct reaches to the end of `last`.
#define TANDEM_SIZE_UP_TO(type, last) (offsetof(type, last) + sizeof(type::last))

core::Status read_mask(const tandem_mask* given, tandem_mask* known);
/// The struct for study is of one size: it is no part of the stable interface.
core::Status read_study(const tandem_study* given, tandem_study* known);

/// Strides of dimensions of size 1 become 0. Those of a tensor without elements, which no address depends on,
/// become what every backend takes.
void drop_unused_strides(core::Tensor& tensor);

/// Variable lengths: the struct's own numbers, and that the tensors fit them.
struct VarlenTensors {
  const core::Tensor &q, &k, &v;
};
core::Status read_varlen(const tandem_varlen* given, tandem_varlen* known);
/// Which tensors the struct itself has: what is appended, if anything.
ShortList<Named> tensors_of_varlen(const tandem_varlen& varlen);
core::Status check_varlen(const tandem_varlen& varlen, const VarlenTensors& tensors);
core::Varlen resolve_varlen(const tandem_varlen& varlen, const VarlenTensors& tensors);

/// Rotary embedding. `name`: what a caller calls the struct.
core::Status read_rotary(const char* name, const tandem_rotary* given, tandem_rotary* known);
/// Where it is given.
/// `rotated`: whose rows are.
core::Status check_rotary(const char* name, const tandem_rotary& rotary, const Named& rotated);
core::Rotary resolve_rotary(const tandem_rotary& rotary);

/// Block lists. What is checked is where one is given.
core::Status read_block_list(const tandem_block_list* given, tandem_block_list* known);
core::Status check_block_list(const tandem_block_list& list);
core::BlockList resolve_block_list(const tandem_block_list& list);

core::Status check_backend(const tandem_backend& backend);
core::Status check_mask(const tandem_mask& mask);
core::Status check_study(const tandem_study& study);
/// As callers give them; 0: the default scale, no cap.
struct ScoreFactors {
  float scale, softcap;
};
core::Status check_scales(const ScoreFactors& factors);
/// Keys of a fixed split. `name`: what a caller calls it.
core::Status check_split_size(const char* name, std::int64_t split_size);
core::Status check_slopes(const float* slopes, std::int64_t stride, const ScoreFactors& factors);

core::Status check_dtype_of_q(const core::Tensor& q);
core::Status check_dtype_as_q(const Named& tensor, const core::Tensor& q);
core::Status check_dtype_of_lse(const Named& lse);

core::Status check_sizes(std::span<const Named> tensors);
core::Status check_head_dim(const Named& tensor, std::int64_t most = max_head_dim);
/// `name`: of a number that says yes or no.
core::Status check_switch(const char* name, std::int32_t value);
/// Rows that are multiplied by the Hadamard matrix where `switch_name`'s value is 1.
core::Status check_hadamard(const Named& rows, const char* switch_name, std::int32_t value);

/// One dimension of one tensor has to be that of another.
struct Agreement {
  Named tensor, model;
  int dimension;
};
core::Status check_agreements(std::span<const Agreement> agreements);
core::Status check_columns_of_lse(const Named& lse);
core::Status check_heads(const core::Tensor& q, const Named& k);
/// Of a call that appends to k: no key heads without query heads.
core::Status check_some_heads(const core::Tensor& q, const Named& k);

/// The checks of memory go by the list of a call's tensors, once its problem is known.
///
/// The last dimension is contiguous, and offsets in bytes fit in 63 bits.
core::Status check_strides(const core::TensorList& tensors);
/// No two elements of one output share an address.
core::Status check_distinct(const core::TensorList& tensors);
/// Not NULL where there are elements, aligned, and within the address space.
core::Status check_addresses(const core::TensorList& tensors);
/// No output shares an address with an input or with another output.
core::Status check_overlaps(const core::TensorList& tensors);
/// The memory of a plan that a call brings besides its tensors, `made_by` a function of tandem.h.
core::Status check_plan(core::TensorList tensors, const core::Region& plan, core::Role role,
                        const char* made_by);
/// All of them, the last two where the call's data has to be there.
core::Status check_tensors(const core::TensorList& tensors, bool need_data);

/// The simplest band with the same meaning for `q_len` queries and up to `k_len` keys: a side that hides
/// nothing is unlimited.
core::Mask resolve_mask(const tandem_mask& mask, std::int64_t q_len, std::int64_t k_len);
float resolve_scale(float scale, std::int64_t head_dim);

}  // namespace tandem::api
