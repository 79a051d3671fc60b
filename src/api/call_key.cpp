#include "api/call_key.h"

#include "api/checks.h"

namespace tandem::api {
namespace {

/// Whether the structs are there in this library's version; other calls go the long way, which says what is
/// wrong.
template <typename... Struct>
bool are_known(const Struct*... structs) {
  return ((structs == nullptr || structs->struct_size == sizeof(Struct)) && ...);
}

/// Adds a struct that a call may do without, and takes its address out of the one that points to it.
template <typename Struct>
bool add(const Struct*& given, core::CallKey* key) {
  const Struct* own = given;
  given = nullptr;
  return key->add(std::uint64_t{own != nullptr}) && (own == nullptr || key->add(*own));
}

/// The same of variable lengths, which point to a struct themselves; `own` is changed.
bool add_varlen(const tandem_varlen*& given, tandem_varlen* own, core::CallKey* key) {
  if (given != nullptr) {
    if (!are_known(given->rotary)) return false;
    *own = *given;
    if (!add(own->rotary, key)) return false;
    given = own;
  }
  return add(given, key);
}

template <typename Args>
bool is_remembered(const Args* args) {
  return args != nullptr && args->struct_size == sizeof(Args) &&
         number_of(args->backend) == TANDEM_BACKEND_HOPPER;
}

// Whoever adds a field looks here: the address of a struct is not what the struct says.
#ifndef TANDEM_GROWN_STRUCTS  // tests/abi
static_assert(sizeof(tandem_forward_args) == 504 && sizeof(tandem_backward_args) == 856 &&
              sizeof(tandem_decode_args) == 600 && sizeof(tandem_varlen) == 280 &&
              sizeof(tandem_scales) == 448 && sizeof(tandem_cache) == 208 &&
              sizeof(tandem_cache_scales) == 192 && sizeof(tandem_shared_prefixes) == 32 &&
              sizeof(tandem_block_list) == 64 && sizeof(tandem_mask) == 40 && sizeof(tandem_rotary) == 56);
#endif

}  // namespace

bool key_of(const tandem_forward_args* args, Workspace workspace, core::CallKey* key) {
  if (!is_remembered(args) || args->study != nullptr ||
      !are_known(args->mask, args->varlen, args->scales, args->block_list))
    return false;
  tandem_forward_args call = *args;
  tandem_varlen varlen;
  return add_varlen(call.varlen, &varlen, key) && add(call.mask, key) && add(call.scales, key) &&
         add(call.block_list, key) && key->add(call) && key->add(workspace);
}

bool key_of(const tandem_backward_args* args, Workspace workspace, core::CallKey* key) {
  if (!is_remembered(args) || !are_known(args->mask, args->varlen)) return false;
  tandem_backward_args call = *args;
  tandem_varlen varlen;
  return add_varlen(call.varlen, &varlen, key) && add(call.mask, key) && key->add(call) &&
         key->add(workspace);
}

bool key_of(const tandem_decode_args* args, Workspace workspace, core::CallKey* key) {
  if (!is_remembered(args) || args->study != nullptr ||
      !are_known(args->mask, args->cache, args->rotary, args->scales, args->prefixes))
    return false;
  tandem_decode_args call = *args;
  return add(call.mask, key) && add(call.cache, key) && add(call.rotary, key) && add(call.scales, key) &&
         add(call.prefixes, key) && key->add(call) && key->add(workspace);
}

}  // namespace tandem::api
