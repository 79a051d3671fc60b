// Calls of libtandem straight from Python: functions as CPython calls its own, over tensors that the
// framework shows by DLPack's C interface. It is built against neither: tandem/_native.py hands in the
// addresses of what it uses, once, and makes Python functions of the two at the end. A call that is not as it
// should be answers `not_here`, and is repeated on the way that says what is wrong with it.
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include <tandem/tandem.h>

#include "arguments.h"
#include "dlpack.h"
#include "known_sizes.h"

namespace tandem::native {
namespace {

/// Memory of the framework for one call: on a device it goes back to the framework's allocator as soon as the
/// call is enqueued, which lends it to later work of the same stream only.
class Workspace {
 public:
  Workspace(Device device, std::size_t bytes) {
    if (bytes == 0) return;
    std::int64_t size = static_cast<std::int64_t>(bytes) + 255, one = 1;
    View like{nullptr, device, 1, {type_uint, 8, 1}, &size, &one, 0};
    if (table.exchange->allocate(&like, &memory_, nullptr, [](void*, const char*, const char*) {}) != 0) {
      if (table.error_occurred() != nullptr) table.clear_error();
      memory_ = nullptr;
    }
  }
  ~Workspace() {
    if (memory_ != nullptr && memory_->deleter != nullptr) memory_->deleter(memory_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  void* data() const {
    if (memory_ == nullptr) return nullptr;
    const auto address = reinterpret_cast<std::uintptr_t>(memory_->view.data) + memory_->view.byte_offset;
    return reinterpret_cast<void*>((address + 255) / 256 * 256);
  }

 private:
  Managed* memory_ = nullptr;
};

/// The current stream of a device; false where there is none to be had.
bool stream_of(Device device, void** stream) {
  *stream = nullptr;
  if (device.type == device_cpu) return true;
  if (device.type == device_cuda && table.exchange->current_stream(device.type, device.id, stream) == 0)
    return true;
  if (table.error_occurred() != nullptr) table.clear_error();
  return false;
}

/// Calls without the interpreter's lock where the call computes; where it only enqueues that costs too much.
template <typename Call>
tandem_status run(Device device, Call call) {
  if (device.type != device_cpu) return call();
  void* thread = table.save_thread();
  const tandem_status status = call();
  table.restore_thread(thread);
  return status;
}

tandem_backend backend_of(Device device) {
  return device.type == device_cpu ? TANDEM_BACKEND_CPU : TANDEM_BACKEND_HOPPER;
}

struct Masked {
  tandem_mask mask;
  bool hides;
};

Masked mask_of(std::int64_t left, std::int64_t right, std::int64_t chunk = 0) {
  return {{sizeof(tandem_mask), TANDEM_MASK_WINDOW, left, right, chunk},
          left != TANDEM_UNLIMITED || right != TANDEM_UNLIMITED || chunk != 0};
}

const std::int32_t* address_of(const View& view) {
  return reinterpret_cast<const std::int32_t*>(static_cast<const char*>(view.data) + view.byte_offset);
}

/// A forward call as it comes from Python, of one length or of several.
struct Forward {
  tandem_forward_args args{};
  tandem_varlen varlen{};
  tandem_rotary rotary{};
  std::int64_t left = 0, right = 0, chunk = 0;
  bool packed = false;  ///< its queries
};

/// Tables of cosines and sines; false where there are none.
bool read_rotary(Arguments& given, tandem_rotary* rotary) {
  View cos{}, sin{};
  const bool has_cos = given.matrix(&cos), has_sin = given.matrix(&sin);
  const bool interleaved = given.integer() != 0;
  given.ok = given.ok && has_cos == has_sin;
  if (!given.ok || !has_cos) return false;
  given.ok = cos.shape[0] == sin.shape[0] && cos.shape[1] == sin.shape[1] &&
             Arguments::dtype_of(cos.dtype) == Arguments::dtype_of(sin.dtype);
  rotary->struct_size = sizeof(*rotary);
  rotary->cos = static_cast<char*>(cos.data) + cos.byte_offset;
  rotary->sin = static_cast<char*>(sin.data) + sin.byte_offset;
  rotary->dtype = Arguments::dtype_of(cos.dtype);
  rotary->positions = cos.shape[0], rotary->dim = 2 * cos.shape[1], rotary->interleaved = interleaved;
  return true;
}

/// What is appended, where entries begin and which they are, and the rotary embedding.
bool read_cache(Arguments& given, Forward* call) {
  tandem_varlen& varlen = call->varlen;
  varlen.k_new = given.tensor(true), varlen.v_new = given.tensor(true);
  View cu_new{}, leftpad{}, index{};
  const bool has_cu_new = given.numbers(1, &cu_new), has_leftpad = given.numbers(1, &leftpad);
  const bool has_index = given.numbers(1, &index);
  if (!given.ok || (has_cu_new && cu_new.shape[0] != varlen.batch + 1)) return false;
  if ((has_leftpad && leftpad.shape[0] != varlen.batch) || (has_index && index.shape[0] != varlen.batch))
    return false;
  varlen.cu_seqlens_k_new = has_cu_new ? address_of(cu_new) : nullptr;
  varlen.leftpad_k = has_leftpad ? address_of(leftpad) : nullptr;
  varlen.batch_index = has_index ? address_of(index) : nullptr;
  varlen.rotary = read_rotary(given, &call->rotary) ? &call->rotary : nullptr;
  return given.ok;
}

/// Whether the lengths of the sequences of q and of its keys are as they have to be.
bool read_lengths(Arguments& given, const tandem_tensor& q, tandem_varlen* lengths) {
  View cu_q{}, cu_k{}, used{};
  const bool has_cu_q = given.numbers(1, &cu_q), has_cu_k = given.numbers(1, &cu_k);
  const bool has_used = given.numbers(1, &used);
  if (!given.ok) return false;
  tandem_varlen& varlen = *lengths;
  varlen.struct_size = sizeof(varlen);
  varlen.batch = has_cu_q   ? cu_q.shape[0] - 1
                 : has_cu_k ? cu_k.shape[0] - 1
                 : has_used ? used.shape[0]
                            : q.shape[0];
  if (varlen.batch < 0 || (has_cu_k && cu_k.shape[0] != varlen.batch + 1)) return false;
  if (has_used && used.shape[0] != varlen.batch) return false;
  varlen.cu_seqlens_q = has_cu_q ? address_of(cu_q) : nullptr;
  varlen.cu_seqlens_k = has_cu_k ? address_of(cu_k) : nullptr;
  varlen.seqused_k = has_used ? address_of(used) : nullptr;
  return true;
}

/// The same of pages, where there are any.
bool read_pages(Arguments& given, tandem_varlen* varlen) {
  View pages{};
  const bool paged = given.numbers(2, &pages);
  if (!given.ok || (paged && pages.shape[0] != varlen->batch)) return false;
  if (!paged) return true;
  varlen->page_table = address_of(pages);
  varlen->page_table_stride = pages.strides[0], varlen->pages_per_sequence = pages.shape[1];
  return true;
}

void read_bounds(Arguments& given, tandem_varlen* varlen) {
  varlen->max_seqlen_q = given.integer(), varlen->max_seqlen_k = given.integer();
}

/// What a forward call of several lengths begins with.
bool read_sequences(Arguments& given, Forward* call) {
  if (!read_lengths(given, call->args.q, &call->varlen) || !read_pages(given, &call->varlen)) return false;
  read_bounds(given, &call->varlen);
  call->packed = call->varlen.cu_seqlens_q != nullptr;
  call->args.varlen = &call->varlen;
  return given.ok;
}

/// The mask, and how scores are made.
void read_scores(Arguments& given, Forward* call) {
  call->left = given.integer(), call->right = given.integer();
  call->args.scale = given.real(), call->args.softcap = given.real();
}

/// What few calls have; false where something is not as it has to be.
bool read_extras(Arguments& given, Forward* call) {
  tandem_forward_args& args = call->args;
  if (!read_cache(given, call)) return false;
  call->chunk = given.integer();
  args.sinks = given.floats(args.q.shape[2]);
  args.alibi_slopes = given.slopes(call->varlen.batch, args.q.shape[2], &args.alibi_stride);
  args.tree = given.words(args.q, call->packed);
  call->varlen.split_size = given.integer();
  return given.ok;
}

/// What the output's shape says of values: the framework makes it like q, which fits where they have as many
/// columns; else it is asked for another.
bool fits(const tandem_tensor& o, const tandem_tensor& v) { return o.shape[3] == v.shape[3]; }

long forward(Object* const* objects, std::ptrdiff_t count, bool ragged) {
  Arguments given(objects, count);
  Forward call;
  tandem_forward_args& args = call.args;
  args.struct_size = sizeof(args);
  args.q = given.tensor(ragged), args.k = given.tensor(ragged), args.v = given.tensor(ragged);
  args.o = given.tensor(ragged), args.lse = given.rows(ragged);
  if (ragged && !read_sequences(given, &call)) return not_here;
  read_scores(given, &call);
  if (!ragged) args.sinks = given.floats(args.q.shape[2]);
  if (ragged && !given.at_end() && !read_extras(given, &call)) return not_here;
  void* stream = nullptr;
  if (!given.ok || !fits(args.o, args.v) || !stream_of(given.device, &stream)) return not_here;
  const auto [mask, hides] = mask_of(call.left, call.right, call.chunk);
  args.backend = backend_of(given.device), args.mask = hides ? &mask : nullptr;

  using Words = Key<7 * tensor_words + 16>;
  static thread_local KnownSizes<tandem_forward_args, Words> known;
  Words key;
  const tandem_varlen& varlen = call.varlen;
  const int which = (varlen.cu_seqlens_q != nullptr) + 2 * (varlen.cu_seqlens_k != nullptr) +
                    4 * (varlen.seqused_k != nullptr) + 8 * (varlen.page_table != nullptr) + 16 * ragged +
                    32 * (args.sinks != nullptr) + 64 * (varlen.cu_seqlens_k_new != nullptr) +
                    128 * (varlen.leftpad_k != nullptr) + 256 * (varlen.batch_index != nullptr) +
                    512 * (args.alibi_slopes != nullptr) + 1024 * (args.tree != nullptr);
  key.add(args.q)
      .add(args.k)
      .add(args.v)
      .add(args.o)
      .add(args.lse)
      .add(varlen.k_new)
      .add(varlen.v_new)
      .add(call.left)
      .add(call.right)
      .add(call.chunk)
      .add(args.scale)
      .add(args.softcap)
      .add(std::int64_t{call.rotary.dtype})
      .add(call.rotary.positions)
      .add(call.rotary.dim)
      .add(std::int64_t{given.device.type} << 32 | given.device.id)
      .add(std::int64_t{which})
      .add(varlen.batch)
      .add(varlen.page_table_stride)
      .add(varlen.pages_per_sequence)
      .add(varlen.max_seqlen_q)
      .add(varlen.max_seqlen_k)
      .add(varlen.split_size);
  std::size_t bytes = 0;
  if (tandem_status status = known.find(key, args, table.forward_workspace, &bytes); status != TANDEM_OK)
    return status;
  const Workspace workspace(given.device, bytes);
  if (bytes != 0 && workspace.data() == nullptr) return not_here;
  return run(given.device, [&] { return table.forward(&args, workspace.data(), bytes, stream); });
}

long backward(Object* const* objects, std::ptrdiff_t count, bool ragged) {
  Arguments given(objects, count);
  tandem_backward_args args{};
  tandem_varlen varlen{};
  args.struct_size = sizeof(args);
  for (tandem_tensor* tensor : {&args.q, &args.k, &args.v, &args.o, &args.dout, &args.dq, &args.dk, &args.dv})
    *tensor = given.tensor(ragged);
  args.lse = given.rows(ragged), args.dlse = given.rows(ragged);
  if (ragged) {
    if (!read_lengths(given, args.q, &varlen)) return not_here;
    read_bounds(given, &varlen);
    args.varlen = &varlen;
  }
  const std::int64_t left = given.integer(), right = given.integer();
  args.scale = given.real(), args.softcap = given.real(), args.deterministic = given.integer() != 0;
  args.sinks = given.floats(args.q.shape[2]), args.dsinks = given.floats(args.q.shape[2]);
  void* stream = nullptr;
  if (!given.ok || !stream_of(given.device, &stream)) return not_here;
  const auto [mask, hides] = mask_of(left, right);
  args.backend = backend_of(given.device), args.mask = hides ? &mask : nullptr;

  using Words = Key<10 * tensor_words + 9>;
  static thread_local KnownSizes<tandem_backward_args, Words> known;
  Words key;
  for (const tandem_tensor* tensor :
       {&args.q, &args.k, &args.v, &args.o, &args.dout, &args.dq, &args.dk, &args.dv, &args.lse, &args.dlse})
    key.add(*tensor);
  key.add(left)
      .add(right)
      .add(args.scale)
      .add(args.softcap)
      .add(std::int64_t{args.deterministic} + 2 * (args.dsinks != nullptr) + 4 * ragged +
           8 * (varlen.cu_seqlens_q != nullptr) + 16 * (varlen.cu_seqlens_k != nullptr) +
           32 * (varlen.seqused_k != nullptr))
      .add(varlen.batch)
      .add(varlen.max_seqlen_q)
      .add(varlen.max_seqlen_k)
      .add(std::int64_t{given.device.type} << 32 | given.device.id);
  std::size_t bytes = 0;
  if (tandem_status status = known.find(key, args, table.backward_workspace, &bytes); status != TANDEM_OK)
    return status;
  const Workspace workspace(given.device, bytes);
  if (bytes != 0 && workspace.data() == nullptr) return not_here;
  return run(given.device, [&] { return table.backward(&args, workspace.data(), bytes, stream); });
}

/// Scratch memory of decoding steps that Python lends for each device and stream, zeroed before its first
/// use.
struct Lent {
  std::int64_t device;
  void* stream;
  void* data;
  std::size_t bytes;
};

std::mutex lent_mutex;
std::vector<Lent> lent;

void* lent_of(Device device, void* stream, std::size_t bytes) {
  const std::lock_guard lock(lent_mutex);
  for (const Lent& memory : lent) {
    if (memory.device == device.id && memory.stream == stream && memory.bytes >= bytes) return memory.data;
  }
  return nullptr;
}

/// A step as it comes from Python.
struct Step {
  tandem_decode_args args{};
  tandem_cache cache{};
  tandem_rotary rotary{};
  tandem_cache_scales scales{};
  std::int64_t chunk = 0, table_rows = 0;
};

void read_numbers(Arguments& given, Step* step) {
  View lengths{}, pages{};
  given.ok = given.numbers(1, &lengths) && lengths.shape[0] == step->args.q.shape[0] && given.ok;
  const bool paged = given.numbers(2, &pages);
  if (!given.ok) return;
  tandem_cache& cache = step->cache;
  cache.lengths = address_of(lengths);
  if (!paged) return;
  given.ok = pages.shape[1] >= 1;
  cache.page_table = address_of(pages), step->table_rows = pages.shape[0];
  cache.page_table_stride = pages.strides[0], cache.pages_per_sequence = pages.shape[1];
}

/// Of a cache of 8 bits; false where there are none.
bool read_scales(Arguments& given, tandem_cache_scales* scales) {
  bool of_tokens[2] = {};
  scales->struct_size = sizeof(*scales);
  scales->k = given.scales(&of_tokens[0]), scales->v = given.scales(&of_tokens[1]);
  const bool has_k = scales->k.data != nullptr, has_v = scales->v.data != nullptr;
  if (has_k && has_v) given.ok = given.ok && of_tokens[0] == of_tokens[1];
  scales->per_token = of_tokens[0] || of_tokens[1];
  return has_k || has_v;
}

/// What few steps have.
void read_extras(Arguments& given, Step* step) {
  tandem_decode_args& args = step->args;
  const std::int64_t batch = args.q.shape[0], heads = args.q.shape[2];
  args.k_new = given.tensor(), args.v_new = given.tensor();
  View index{};
  if (given.numbers(1, &index) && given.ok)
    given.ok = index.shape[0] == batch, step->cache.batch_index = address_of(index);
  args.rotary = read_rotary(given, &step->rotary) ? &step->rotary : nullptr;
  args.split_size = given.integer();
  args.sinks = given.floats(heads);
  const bool has_scales = read_scales(given, &step->scales);
  step->chunk = given.integer();
  args.alibi_slopes = given.slopes(batch, heads, &args.alibi_stride);
  args.tree = given.words(args.q, false);
  step->scales.hadamard = given.integer() != 0;
  step->scales.seed = static_cast<std::uint64_t>(given.integer());
  args.qv = given.tensor();
  args.scales = has_scales || step->scales.hadamard != 0 ? &step->scales : nullptr;
}

/// Whether the page table has a row for each sequence. In host memory rows that do not exist would be read
/// where a batch index names them: the other way checks them.
bool has_rows(const Step& step, Device device) {
  if (step.cache.page_table == nullptr) return true;
  return step.cache.batch_index == nullptr ? step.table_rows >= step.args.q.shape[0]
                                           : device.type != device_cpu;
}

long decode(Object* const* objects, std::ptrdiff_t count) {
  Arguments given(objects, count);
  Step step;
  tandem_decode_args& args = step.args;
  tandem_cache& cache = step.cache;
  args.struct_size = sizeof(args), cache.struct_size = sizeof(cache);
  args.q = given.tensor(), cache.k = given.tensor(), cache.v = given.tensor();
  args.o = given.tensor(), args.lse = given.rows();
  read_numbers(given, &step);
  const std::int64_t left = given.integer(), right = given.integer();
  args.scale = given.real(), args.softcap = given.real();
  if (given.ok && !given.at_end()) read_extras(given, &step);
  void* stream = nullptr;
  if (!given.ok || !fits(args.o, cache.v) || !has_rows(step, given.device) ||
      (args.k_new.data == nullptr) != (args.v_new.data == nullptr) || !stream_of(given.device, &stream))
    return not_here;
  const auto [mask, hides] = mask_of(left, right, step.chunk);
  args.backend = backend_of(given.device), args.mask = hides ? &mask : nullptr, args.cache = &cache;

  using Words = Key<10 * tensor_words + 15>;
  static thread_local KnownSizes<tandem_decode_args, Words> known;
  Words key;
  key.add(args.q)
      .add(args.qv)
      .add(cache.k)
      .add(cache.v)
      .add(args.k_new)
      .add(args.v_new)
      .add(args.o)
      .add(args.lse)
      .add(step.scales.k)
      .add(step.scales.v)
      .add(std::int64_t{step.scales.per_token} + 2 * step.scales.hadamard)
      .add(left)
      .add(right)
      .add(args.scale)
      .add(args.softcap)
      .add(args.split_size)
      .add(step.chunk)
      .add(std::int64_t{args.alibi_slopes != nullptr} + 2 * (args.tree != nullptr) +
           4 * (cache.v.data == cache.k.data) + 8 * (args.v_new.data == args.k_new.data))
      .add(cache.page_table_stride)
      .add(cache.pages_per_sequence)
      .add(std::int64_t{cache.batch_index != nullptr})
      .add(std::int64_t{step.rotary.dtype})
      .add(step.rotary.dim)
      .add(step.rotary.positions)
      .add(std::int64_t{given.device.type} << 32 | given.device.id);
  std::size_t bytes = 0;
  if (tandem_status status = known.find(key, args, table.decode_workspace, &bytes); status != TANDEM_OK)
    return status;
  const bool on_device = given.device.type == device_cuda;
  // The host's steps read nothing of it that they have not written: it need not be zero.
  const Workspace of_host(given.device, on_device ? 0 : bytes);
  void* scratch = on_device && bytes != 0 ? lent_of(given.device, stream, bytes) : of_host.data();
  if (bytes != 0 && scratch == nullptr) return not_here;
  return run(given.device, [&] { return table.decode(&args, scratch, bytes, stream); });
}

}  // namespace
}  // namespace tandem::native

// ---- What Python is given: functions of the calling convention METH_FASTCALL, and two for ctypes

#define TANDEM_SHOWN extern "C" __attribute__((visibility("default")))

/// Returns 1, or 0 for a table of a package of another version.
TANDEM_SHOWN int tandem_python_use(const tandem::native::Table* given, std::size_t bytes) {
  using namespace tandem::native;
  if (bytes != sizeof(Table) || given->version != version_of_arguments) return 0;
  table = *given;
  return 1;
}

/// From now on steps on that stream use this memory, whose address is a multiple of 256.
TANDEM_SHOWN void tandem_python_lend(std::int64_t device, void* stream, void* data, std::size_t bytes) {
  using namespace tandem::native;
  const std::lock_guard lock(lent_mutex);
  std::erase_if(lent, [&](const Lent& memory) { return memory.device == device && memory.stream == stream; });
  lent.push_back({device, stream, data, bytes});
}

/// q, k, v, out, lse or None; keys to the left and to the right, scale, softcap, sinks or None. Returns a
/// status, or -1.
TANDEM_SHOWN void* tandem_python_forward(void*, void* const* objects, std::ptrdiff_t count) {
  return tandem::native::table.from_long(tandem::native::forward(objects, count, false));
}

/// q, k, v, out, lse or None; cu_seqlens_q, cu_seqlens_k, seqused_k, page_table, each or None; max_seqlen_q,
/// max_seqlen_k; keys to the left and to the right, scale, softcap. Then nothing, or k_new, v_new,
/// cu_seqlens_k_new, leftpad_k, batch_index, cos, sin, each or None, interleaved, chunk; sinks, alibi_slopes
/// and tree, each or None; split_size.
TANDEM_SHOWN void* tandem_python_forward_varlen(void*, void* const* objects, std::ptrdiff_t count) {
  return tandem::native::table.from_long(tandem::native::forward(objects, count, true));
}

/// q, k, v, out, dout, dq, dk, dv, lse, dlse or None; keys to the left and to the right, scale, softcap,
/// deterministic, sinks and dsinks or None both.
TANDEM_SHOWN void* tandem_python_backward(void*, void* const* objects, std::ptrdiff_t count) {
  return tandem::native::table.from_long(tandem::native::backward(objects, count, false));
}

/// The same with cu_seqlens_q, cu_seqlens_k and seqused_k, each or None, max_seqlen_q and max_seqlen_k behind
/// dlse.
TANDEM_SHOWN void* tandem_python_backward_varlen(void*, void* const* objects, std::ptrdiff_t count) {
  return tandem::native::table.from_long(tandem::native::backward(objects, count, true));
}

/// q, k_cache, v_cache, out, lse or None; lengths, page_table or None; keys to the left and to the right,
/// scale, softcap. Then nothing, or k_new, v_new, batch_index, cos, sin, each or None, interleaved;
/// split_size; sinks, k_descale, v_descale, each or None; chunk, alibi_slopes or None, tree or None; whether
/// there is a Hadamard matrix, and its seed; qv or None.
TANDEM_SHOWN void* tandem_python_decode(void*, void* const* objects, std::ptrdiff_t count) {
  return tandem::native::table.from_long(tandem::native::decode(objects, count));
}
