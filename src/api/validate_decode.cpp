#include "api/checks.h"
#include "api/validate.h"

namespace tandem::api {
namespace {

using core::DecodeProblem;
using core::Region;
using core::Role;
using core::Status;
using core::Tensor;

constexpr std::int64_t max_q_len = 8;
/// Those of multi-head latent attention.
constexpr std::int64_t most_key_columns = 576, most_value_columns = 512;

/// The caller's arguments, and what they point to.
struct Known {
  tandem_decode_args args;
  tandem_cache cache;
  tandem_rotary rotary;
  tandem_mask mask;
  tandem_study study;
  tandem_cache_scales scales;
  tandem_shared_prefixes prefixes;

  bool qv() const { return args.qv.data != nullptr; }
  bool lse() const { return args.lse.data != nullptr; }
  bool appends() const { return args.k_new.data != nullptr; }
  bool paged() const { return cache.page_table != nullptr; }
  bool has_rotary() const { return args.rotary != nullptr; }
  bool eight_bit() const { return is_8_bit(cache.k.dtype); }
  Named k_scales() const { return {"scales.k", &scales.k}; }
  Named v_scales() const { return {"scales.v", &scales.v}; }
  Named k_cache() const { return {"cache.k", &cache.k}; }
};

Status read(const tandem_decode_args* given, Known* known) {
  const StructName args{"args", "tandem_decode_args", TANDEM_SIZE_UP_TO(tandem_decode_args, study)},
      cache{"cache", "tandem_cache", TANDEM_SIZE_UP_TO(tandem_cache, batch_index)},
      scales{"scales", "tandem_cache_scales", TANDEM_SIZE_UP_TO(tandem_cache_scales, per_token)},
      prefixes{"prefixes", "tandem_shared_prefixes", TANDEM_SIZE_UP_TO(tandem_shared_prefixes, lengths)};
  if (Status s = read_struct(args, given, &known->args); !s.ok()) return s;
  if (Status s = read_struct(cache, known->args.cache, &known->cache); !s.ok()) return s;
  if (Status s = read_rotary("rotary", known->args.rotary, &known->rotary); !s.ok()) return s;
  if (Status s = read_optional(scales, known->args.scales, &known->scales); !s.ok()) return s;
  if (Status s = read_optional(prefixes, known->args.prefixes, &known->prefixes); !s.ok()) return s;
  if (Status s = read_mask(known->args.mask, &known->mask); !s.ok()) return s;
  return read_study(known->args.study, &known->study);
}

ShortList<Named> named_tensors(const Known& known) {
  ShortList<Named> all = {{"q", &known.args.q}};
  if (known.qv()) all.push_back({"qv", &known.args.qv});
  if (known.appends()) all.append({{"k_new", &known.args.k_new}, {"v_new", &known.args.v_new}});
  all.append({{"cache.k", &known.cache.k}, {"cache.v", &known.cache.v}, {"o", &known.args.o}});
  if (known.lse()) all.push_back({"lse", &known.args.lse});
  return all;
}

// ---- Options and types

Status check_options(const Known& known) {
  const tandem_decode_args& args = known.args;
  if (Status s = check_backend(args.backend); !s.ok()) return s;
  if (Status s = check_mask(known.mask); !s.ok()) return s;
  if (Status s = check_scales({args.scale, args.softcap}); !s.ok()) return s;
  if (Status s = check_slopes(args.alibi_slopes, args.alibi_stride, {args.scale, args.softcap}); !s.ok())
    return s;
  if (Status s = check_split_size("split_size", args.split_size); !s.ok()) return s;
  if (Status s = check_study(known.study); !s.ok()) return s;
  if (known.appends() != (args.v_new.data != nullptr))
    return invalid(known.appends() ? "v_new.data is NULL, but k_new.data is not"
                                   : "k_new.data is NULL, but v_new.data is not",
                   "; append both keys and values, or neither");
  return {};
}

Status check_dtypes(const Known& known) {
  const tandem_decode_args& args = known.args;
  if (Status s = check_dtype_of_q(args.q); !s.ok()) return s;
  ShortList<Named> tensors = {{"o", &args.o}};
  if (known.qv()) tensors.push_back({"qv", &args.qv});
  if (known.appends()) tensors.append({{"k_new", &args.k_new}, {"v_new", &args.v_new}});
  if (!known.eight_bit()) tensors.append({{"cache.k", &known.cache.k}, {"cache.v", &known.cache.v}});
  for (const Named& tensor : tensors)
    if (Status s = check_dtype_as_q(tensor, args.q); !s.ok()) return s;
  const int of_keys = number_of(known.cache.k.dtype), of_values = number_of(known.cache.v.dtype);
  if (known.eight_bit() && of_values != of_keys)
    return invalid("cache.v.dtype is ", describe_dtype(of_values), ", but cache.k.dtype is ",
                   describe_dtype(of_keys), "; keys and values have one dtype");
  return known.lse() ? check_dtype_of_lse({"lse", &args.lse}) : Status();
}

Status check_scales_of_cache(const Known& known) {
  const tandem_cache_scales& scales = known.scales;
  if (known.args.scales == nullptr) return {};
  if (!known.eight_bit())
    return invalid("scales is given, but cache.k.dtype is ", describe_dtype(number_of(known.cache.k.dtype)),
                   "; only an 8-bit cache has scales: pass NULL");
  if (Status s = check_switch("scales.per_token", scales.per_token); !s.ok()) return s;
  if (Status s = check_switch("scales.hadamard", scales.hadamard); !s.ok()) return s;
  if (Status s = check_hadamard({"q", &known.args.q}, "scales.hadamard", scales.hadamard); !s.ok()) return s;
  const std::int64_t kv_heads = known.cache.k.shape[2];
  for (const Named& own : {known.k_scales(), known.v_scales()}) {
    const Tensor& tensor = *own.tensor;
    if (tensor.data == nullptr && scales.per_token == 0) continue;
    if (tensor.data == nullptr)
      return invalid(own.name, ".data is NULL; with scales.per_token = 1 both keys and values have scales");
    if (const int dtype = number_of(tensor.dtype); dtype != TANDEM_FP32)
      return invalid(own.name, ".dtype is ", describe_dtype(dtype), "; it has to be TANDEM_FP32");
    if (tensor.shape[3] != 1) return invalid(own.name, ".shape[3] is ", tensor.shape[3], "; it has to be 1");
    if (scales.per_token == 1) {
      const Named k = known.k_cache();
      const Agreement agreements[] = {{own, k, 0}, {own, k, 1}, {own, k, 2}};
      if (Status s = check_agreements(agreements); !s.ok()) return s;
      continue;
    }
    if (const std::int64_t batch = known.args.q.shape[0]; tensor.shape[0] != 1 && tensor.shape[0] != batch)
      return invalid(own.name, ".shape[0] (batch) is ", tensor.shape[0],
                     "; it has to be 1 or q.shape[0], which is ", batch);
    if (tensor.shape[1] != 1)
      return invalid(own.name, ".shape[1] is ", tensor.shape[1],
                     "; it has to be 1, but with scales.per_token = 1");
    if (tensor.shape[2] != 1 && tensor.shape[2] != kv_heads)
      return invalid(own.name, ".shape[2] (heads) is ", tensor.shape[2],
                     "; it has to be 1 or cache.k.shape[2], which is ", kv_heads);
  }
  return {};
}

Status check_rotary(const Known& known) {
  return known.has_rotary() ? api::check_rotary("rotary", known.rotary, {"q", &known.args.q}) : Status();
}

// ---- Shapes

ShortList<Agreement> agreements_of(const Known& known) {
  const tandem_decode_args& args = known.args;
  const Named q{"q", &args.q}, qv{"qv", &args.qv}, k = known.k_cache(), v{"cache.v", &known.cache.v},
                                                   k_new{"k_new", &args.k_new}, v_new{"v_new", &args.v_new},
                                                   o{"o", &args.o}, lse{"lse", &args.lse};
  ShortList<Agreement> agreements = {{k, q, 3}, {v, k, 0}, {v, k, 1}, {v, k, 2}};
  if (known.eight_bit()) agreements.push_back({v, q, 3});
  if (known.qv()) agreements.append({{qv, q, 0}, {qv, q, 1}, {qv, q, 2}, {qv, v, 3}});
  agreements.append({{o, q, 0}, {o, q, 1}, {o, q, 2}, {o, v, 3}});
  if (known.appends())
    agreements.append({{k_new, q, 0},
                       {k_new, k, 2},
                       {k_new, q, 3},
                       {v_new, q, 0},
                       {v_new, k_new, 1},
                       {v_new, k, 2},
                       {v_new, v, 3}});
  if (known.lse())
    for (int i = 0; i < 3; ++i) agreements.push_back({lse, q, i});
  return agreements;
}

Status check_cache(const Known& known) {
  const tandem_cache& cache = known.cache;
  const std::int64_t batch = known.args.q.shape[0];
  if (cache.k.shape[1] < 1)
    return invalid("cache.k.shape[1] (", known.paged() ? "page size" : "capacity",
                   ") is 0; it has to be 1 token or more");
  if (!known.paged()) {
    if (cache.batch_index == nullptr && cache.k.shape[0] < batch)
      return invalid("cache.k.shape[0] (entries) is ", cache.k.shape[0], ", less than q.shape[0] (batch), ",
                     batch, "; every sequence needs an entry of its own, or cache.batch_index");
    return {};
  }
  if (cache.page_table_stride < 0)
    return invalid("cache.page_table_stride is ", cache.page_table_stride,
                   "; it has to be 0 or more elements");
  if (cache.pages_per_sequence < 1)
    return invalid("cache.pages_per_sequence is ", cache.pages_per_sequence, "; it has to be 1 slot or more");
  // Half of what fits, so that sums of positions never overflow.
  if (std::int64_t capacity = 0;
      __builtin_mul_overflow(cache.k.shape[1], cache.pages_per_sequence, &capacity) ||
      capacity > core::Mask::max_length)
    return invalid("cache.pages_per_sequence is ", cache.pages_per_sequence, " with pages of ",
                   cache.k.shape[1], " tokens (cache.k.shape[1]); together they have to be at most ",
                   core::Mask::max_length);
  return {};
}

Status check_append(const Known& known) {
  const tandem_decode_args& args = known.args;
  if (!known.appends()) return {};
  const std::int64_t capacity =
      known.paged() ? known.cache.k.shape[1] * known.cache.pages_per_sequence : known.cache.k.shape[1];
  if (args.k_new.shape[1] > capacity)
    return invalid("k_new.shape[1] (sequence length) is ", args.k_new.shape[1],
                   ", more than the capacity of the cache, ", capacity, " tokens");
  return {};
}

Status check_shapes(const Known& known) {
  const tandem_decode_args& args = known.args;
  if (Status s = check_sizes(named_tensors(known)); !s.ok()) return s;
  if (args.q.shape[1] < 1 || args.q.shape[1] > max_q_len)
    return invalid("q.shape[1] (sequence length) is ", args.q.shape[1], "; a decoding step has 1 to ",
                   max_q_len, " queries; tandem_forward takes more");
  const Named v{"cache.v", &known.cache.v};
  if (Status s = check_head_dim({"q", &args.q}, known.eight_bit() ? max_head_dim : most_key_columns); !s.ok())
    return s;
  if (Status s = check_head_dim(v, most_value_columns); !s.ok()) return s;
  if (Status s = check_agreements(agreements_of(known)); !s.ok()) return s;
  if (known.lse())
    if (Status s = check_columns_of_lse({"lse", &args.lse}); !s.ok()) return s;
  if (Status s = check_heads(args.q, known.k_cache()); !s.ok()) return s;
  if (Status s = check_some_heads(args.q, known.k_cache()); !s.ok()) return s;
  if (Status s = check_cache(known); !s.ok()) return s;
  return check_append(known);
}

Status check_prefixes(const Known& known) {
  const std::int64_t groups = known.prefixes.groups, batch = known.args.q.shape[0];
  if (groups < 0 || groups > batch)
    return invalid("prefixes.groups is ", groups, "; it has to be 0 to q.shape[0] (batch), which is ", batch);
  return {};
}

// ---- Memory

/// With what a call may not do without, where it is missing: a problem's list has not got that.
core::TensorList needed_tensors(const Known& known, const DecodeProblem& problem) {
  core::TensorList list = tensors_of(problem);
  if (problem.lengths == nullptr)
    list.add_array("cache.lengths", Role::input, Region::of(nullptr, 4, 1, problem.batch(), 0));
  const tandem_rotary& rotary = known.rotary;
  if (known.has_rotary() && rotary.cos == nullptr)
    list.add_array("rotary.cos", Role::input,
                   Region::of(nullptr, static_cast<std::int64_t>(core::size_of(rotary.dtype)),
                              rotary.positions, rotary.dim / 2, rotary.dim / 2));
  return list;
}

DecodeProblem problem_of(const Known& known) {
  const tandem_decode_args& args = known.args;
  const tandem_cache& cache = known.cache;
  DecodeProblem problem{};
  problem.q = args.q;
  if (known.qv()) problem.qv = args.qv;
  problem.k_cache = cache.k;
  problem.v_cache = cache.v;
  if (known.appends()) {
    problem.k_new = args.k_new;
    problem.v_new = args.v_new;
  }
  problem.o = args.o;
  if (known.lse()) problem.lse = args.lse;
  problem.page_table = cache.page_table;
  problem.lengths = cache.lengths;
  problem.batch_index = cache.batch_index;
  problem.page_table_stride = known.paged() ? cache.page_table_stride : 0;
  problem.pages_per_sequence = known.paged() ? cache.pages_per_sequence : 1;
  if (known.has_rotary()) problem.rotary = resolve_rotary(known.rotary);
  problem.mask = resolve_mask(known.mask, args.q.shape[1], problem.capacity());
  problem.scale = resolve_scale(args.scale, problem.key_columns());
  problem.softcap = args.softcap;
  problem.split_size = args.split_size;
  problem.plan = args.plan;
  problem.sinks = args.sinks;
  if (args.alibi_slopes != nullptr) problem.slopes = {args.alibi_slopes, args.alibi_stride};
  problem.tree = args.tree;
  problem.prefixes = {known.prefixes.groups, known.prefixes.cu_sequences, known.prefixes.lengths};
  problem.kernel = known.study.kernel;
  problem.block_m = known.study.block_m, problem.block_n = known.study.block_n;
  if (known.eight_bit())
    problem.scales = {known.scales.k, known.scales.v, known.scales.per_token == 1, known.scales.hadamard == 1,
                      known.scales.seed};
  return problem;
}

}  // namespace

Status validate_decode(const tandem_decode_args* args, bool need_data, DecodeProblem* problem) {
  Known known{};
  if (Status s = read(args, &known); !s.ok()) return s;
  tandem_decode_args& a = known.args;
  for (Tensor* tensor : {&a.q, &a.qv, &known.cache.k, &known.cache.v, &a.k_new, &a.v_new, &a.o, &a.lse,
                         &known.scales.k, &known.scales.v})
    drop_unused_strides(*tensor);
  for (const auto check :
       {check_options, check_dtypes, check_shapes, check_rotary, check_scales_of_cache, check_prefixes})
    if (Status s = check(known); !s.ok()) return s;
  *problem = problem_of(known);
  if (known.has_rotary() && known.appends() && problem->values_in_keys())
    return invalid(
        "rotary is given, but cache.v lies in cache.k, whose appended rows it would turn; "
        "turn q and k_new before the call");
  return check_tensors(needed_tensors(known, *problem), need_data);
}

}  // namespace tandem::api
