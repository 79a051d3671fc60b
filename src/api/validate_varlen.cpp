#include <algorithm>
#include <limits>

#include "api/checks.h"

namespace tandem::api {
namespace {

using core::Status;
using core::Tensor;

/// Arrays of lengths have 32 bits, and so have the kernels' numbers of sequences.
constexpr std::int64_t longest = std::numeric_limits<std::int32_t>::max();

Status check_bound(const char* name, std::int64_t bound) {
  if (bound >= 0 && bound <= core::Mask::max_length) return {};
  return invalid("varlen.", name, " is ", bound, "; it has to be from 0 (not known) to ",
                 core::Mask::max_length);
}

/// Rows that are a length themselves, since the call has no arrays of them.
Status check_length(const Named& tensor, const char* missing) {
  if (tensor.tensor->shape[1] <= longest) return {};
  return invalid(tensor.name, ".shape[1] (sequence length) is ", tensor.tensor->shape[1],
                 "; it has to be at most ", longest, ", since ", missing, " NULL");
}

Status check_lengths(const tandem_varlen& varlen, const VarlenTensors& tensors) {
  for (const auto& [name, length] : {std::pair{"q", tensors.q.shape[1]}, {"k", tensors.k.shape[1]}})
    if (length > core::Mask::max_length)
      return invalid(name, ".shape[1] (sequence length) is ", length, "; with varlen it has to be at most ",
                     core::Mask::max_length);
  if (varlen.cu_seqlens_q == nullptr)
    if (Status s = check_length({"q", &tensors.q}, "varlen.cu_seqlens_q is"); !s.ok()) return s;
  if (varlen.cu_seqlens_k != nullptr || varlen.seqused_k != nullptr) return {};
  return check_length({"k", &tensors.k}, "varlen.cu_seqlens_k and varlen.seqused_k are");
}

/// The batch dimension of q or k: 1 where sequences are packed, else an entry for each.
Status check_entries(const char* name, const Tensor& tensor, const std::int32_t* cu_seqlens,
                     std::int64_t batch) {
  const std::int64_t expected = cu_seqlens != nullptr ? 1 : batch;
  if (tensor.shape[0] == expected) return {};
  return invalid(name, ".shape[0] (batch) is ", tensor.shape[0], "; it has to be ", expected,
                 cu_seqlens != nullptr ? ", since sequences are packed (varlen.cu_seqlens_"
                                       : ", an entry for each sequence of varlen.batch (varlen.cu_seqlens_",
                 name, cu_seqlens != nullptr ? ")" : " is NULL)");
}

Status check_pages(const tandem_varlen& varlen, const Tensor& k) {
  if (varlen.cu_seqlens_k != nullptr)
    return invalid(
        "varlen.cu_seqlens_k and varlen.page_table are both given; keys are packed or paged, not both");
  if (varlen.seqused_k == nullptr && varlen.batch > 0)
    return invalid("varlen.seqused_k is NULL; paged keys need the number of keys in use of each sequence");
  if (k.shape[1] < 1) return invalid("k.shape[1] (page size) is 0; it has to be 1 token or more");
  if (varlen.page_table_stride < 0)
    return invalid("varlen.page_table_stride is ", varlen.page_table_stride,
                   "; it has to be 0 or more elements");
  if (varlen.pages_per_sequence < 1)
    return invalid("varlen.pages_per_sequence is ", varlen.pages_per_sequence,
                   "; it has to be 1 slot or more");
  if (std::int64_t room = 0;
      __builtin_mul_overflow(k.shape[1], varlen.pages_per_sequence, &room) || room > core::Mask::max_length)
    return invalid("varlen.pages_per_sequence is ", varlen.pages_per_sequence, " with pages of ", k.shape[1],
                   " tokens (k.shape[1]); together they have to be at most ", core::Mask::max_length);
  return {};
}

/// What is only for keys that have an entry for each sequence.
Status check_entries_only(const tandem_varlen& varlen) {
  for (auto [name, numbers] :
       {std::pair{"leftpad_k", varlen.leftpad_k}, {"batch_index", varlen.batch_index}}) {
    if (numbers == nullptr) continue;
    if (varlen.cu_seqlens_k != nullptr || varlen.page_table != nullptr)
      return invalid(
          "varlen.", name, " is given, but keys are ",
          varlen.page_table != nullptr ? "paged (varlen.page_table)" : "packed (varlen.cu_seqlens_k)",
          "; it is for entries of k and v: pass NULL");
  }
  return {};
}

Status check_appended(const tandem_varlen& varlen, const VarlenTensors& tensors) {
  if (varlen.cu_seqlens_k != nullptr)
    return invalid(
        "varlen.k_new is given, but varlen.cu_seqlens_k too; packed keys have no room to append to: pass "
        "entries or pages");
  if (varlen.seqused_k == nullptr && varlen.batch > 0)
    return invalid(
        "varlen.seqused_k is NULL; to append, the number of keys in use before is needed of each sequence");
  const Named q{"q", &tensors.q}, k{"k", &tensors.k}, k_new{"varlen.k_new", &varlen.k_new},
      v_new{"varlen.v_new", &varlen.v_new}, v{"v", &tensors.v};
  for (const Named& tensor : {k_new, v_new})
    if (Status s = check_dtype_as_q(tensor, tensors.q); !s.ok()) return s;
  const ShortList<Agreement> agreements = {{k_new, k, 2},     {k_new, q, 3}, {v_new, k_new, 0},
                                           {v_new, k_new, 1}, {v_new, k, 2}, {v_new, v, 3}};
  if (Status s = check_agreements(agreements); !s.ok()) return s;
  if (Status s = check_some_heads(tensors.q, k); !s.ok()) return s;
  const bool packed = varlen.cu_seqlens_k_new != nullptr;
  if (varlen.k_new.shape[0] != (packed ? 1 : varlen.batch))
    return invalid("varlen.k_new.shape[0] (batch) is ", varlen.k_new.shape[0], "; it has to be ",
                   packed ? 1 : varlen.batch,
                   packed ? ", since new keys are packed (varlen.cu_seqlens_k_new)"
                          : ", an entry for each sequence of varlen.batch (varlen.cu_seqlens_k_new is NULL)");
  if (varlen.k_new.shape[1] > core::Mask::max_length)
    return invalid("varlen.k_new.shape[1] (sequence length) is ", varlen.k_new.shape[1],
                   "; it has to be at most ", core::Mask::max_length);
  return packed ? Status() : check_length(k_new, "varlen.cu_seqlens_k_new is");
}

/// Keys that one sequence has room for.
std::int64_t room_for_keys(const tandem_varlen& varlen, const Tensor& k) {
  return varlen.page_table != nullptr ? varlen.pages_per_sequence * k.shape[1] : k.shape[1];
}

std::int64_t bounded(std::int64_t bound, std::int64_t room) {
  return bound == 0 ? room : std::min(bound, room);
}

}  // namespace

Status read_varlen(const tandem_varlen* given, tandem_varlen* known) {
  return read_optional({"varlen", "tandem_varlen", TANDEM_SIZE_UP_TO(tandem_varlen, max_seqlen_k)}, given,
                       known);
}

ShortList<Named> tensors_of_varlen(const tandem_varlen& varlen) {
  if (varlen.k_new.data == nullptr) return {};
  return {{"varlen.k_new", &varlen.k_new}, {"varlen.v_new", &varlen.v_new}};
}

Status check_varlen(const tandem_varlen& varlen, const VarlenTensors& tensors) {
  if (varlen.batch < 0 || varlen.batch > longest)
    return invalid("varlen.batch is ", varlen.batch, "; it has to be from 0 to ", longest);
  if (Status s = check_bound("max_seqlen_q", varlen.max_seqlen_q); !s.ok()) return s;
  if (Status s = check_bound("max_seqlen_k", varlen.max_seqlen_k); !s.ok()) return s;
  if (Status s = check_split_size("varlen.split_size", varlen.split_size); !s.ok()) return s;
  if (Status s = check_lengths(varlen, tensors); !s.ok()) return s;
  if (Status s = check_entries("q", tensors.q, varlen.cu_seqlens_q, varlen.batch); !s.ok()) return s;
  if (Status s = check_entries_only(varlen); !s.ok()) return s;
  const bool appends = varlen.k_new.data != nullptr;
  if (appends != (varlen.v_new.data != nullptr))
    return invalid(appends ? "varlen.v_new.data is NULL, but varlen.k_new.data is not"
                           : "varlen.k_new.data is NULL, but varlen.v_new.data is not",
                   "; append both keys and values, or neither");
  if (appends)
    if (Status s = check_appended(varlen, tensors); !s.ok()) return s;
  if (varlen.page_table != nullptr) return check_pages(varlen, tensors.k);
  if (varlen.batch_index != nullptr) return {};
  // An array without elements may be NULL: of no sequence, keys may be pages, or entries by an index.
  if (varlen.batch == 0 && varlen.cu_seqlens_k == nullptr) return {};
  return check_entries("k", tensors.k, varlen.cu_seqlens_k, varlen.batch);
}

core::Varlen resolve_varlen(const tandem_varlen& varlen, const VarlenTensors& tensors) {
  return {.given = true,
          .sequences = varlen.batch,
          .cu_seqlens_q = varlen.cu_seqlens_q,
          .cu_seqlens_k = varlen.cu_seqlens_k,
          .seqused_k = varlen.seqused_k,
          .page_table = varlen.page_table,
          .page_table_stride = varlen.page_table_stride,
          .pages_per_sequence = varlen.pages_per_sequence,
          .max_seqlen_q = bounded(varlen.max_seqlen_q, tensors.q.shape[1]),
          .max_seqlen_k = bounded(varlen.max_seqlen_k, room_for_keys(varlen, tensors.k)),
          .k_new = varlen.k_new.data != nullptr ? varlen.k_new : Tensor{},
          .v_new = varlen.k_new.data != nullptr ? varlen.v_new : Tensor{},
          .cu_seqlens_k_new = varlen.k_new.data != nullptr ? varlen.cu_seqlens_k_new : nullptr,
          .leftpad_k = varlen.leftpad_k,
          .batch_index = varlen.batch_index,
          .split_size = varlen.split_size};
}

}  // namespace tandem::api
