// tandem bench --decode: times decoding steps over lists of shapes.
#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <ostream>
#include <random>

#include "bench.h"
#include "decode_call.h"
#include "element.h"
#include "report.h"

namespace tandem::cli {
namespace {

/// Together, the copies of a cache that steps take in turns: several times the 50 MB of an H200's L2, so that
/// a step finds nothing of its own there.
constexpr double rotated_bytes = 512e6;
constexpr int max_copies = 64;

struct StepShape {
  std::int64_t batch, q_heads, kv_heads, tokens, cache, head_dim, page_size, split_size;
  tandem_dtype dtype;
  tandem_decode_kernel kernel;

  /// Keys and values, each read once.
  double bytes() const {
    return 2.0 * static_cast<double>(batch * cache * kv_heads * head_dim) *
           static_cast<double>(size_of(dtype));
  }
};

struct StepRow {
  StepShape shape;
  tandem_backend backend;
  Timing timing;
  double gigabytes_per_second() const { return shape.bytes() / timing.median_ms * 1e-6; }
};

void add_steps(const BenchOptions& o, const StepShape& model, std::vector<StepShape>& steps) {
  for (const std::int64_t d : o.head_dim)
    for (const std::int64_t b : o.batch)
      for (const std::int64_t heads : o.heads)
        for (const std::int64_t kv_heads : o.kv_heads)
          for (const std::int64_t cache : o.cache)
            for (const std::int64_t tokens : o.tokens)
              for (const std::int64_t page_size : o.page_size)
                for (const std::int64_t split_size : o.split_size)
                  steps.push_back({b, heads, kv_heads, tokens, cache, d, page_size, split_size, model.dtype,
                                   model.kernel});
}

std::vector<StepShape> steps_of(const BenchOptions& options) {
  std::vector<StepShape> steps;
  for (const std::string& dtype : options.dtype)
    for (const std::string& kernel : options.kernel) {
      StepShape model{};
      model.dtype = parse_dtype(dtype);
      model.kernel = parse_decode_kernel(kernel);
      add_steps(options, model, steps);
    }
  return steps;
}

/// Pages in random order.
void add_page_table(const StepShape& shape, DecodeCall& call) {
  call.pages_per_sequence = (shape.cache + shape.page_size - 1) / shape.page_size;
  call.page_table.resize(static_cast<std::size_t>(shape.batch * call.pages_per_sequence));
  std::iota(call.page_table.begin(), call.page_table.end(), 0);
  std::shuffle(call.page_table.begin(), call.page_table.end(), std::mt19937_64(1));
}

DecodeCall call_of(const StepShape& shape, tandem_backend backend, bool planned) {
  DecodeCall call;
  call.backend = backend;
  if (shape.page_size > 0) add_page_table(shape, call);
  const std::int64_t entries = shape.batch * call.pages_per_sequence;
  const Shape cache{entries, shape.page_size > 0 ? shape.page_size : shape.cache, shape.kv_heads,
                    shape.head_dim};
  call.q = normal_tensor(shape.dtype, {shape.batch, shape.tokens, shape.q_heads, shape.head_dim});
  call.k_cache = normal_tensor(shape.dtype, cache);
  call.v_cache = normal_tensor(shape.dtype, cache);
  call.lengths.assign(static_cast<std::size_t>(shape.batch), static_cast<std::int32_t>(shape.cache));
  call.mask.kind = TANDEM_MASK_CAUSAL;
  call.want_lse = false;
  call.split_size = shape.split_size;
  call.planned = planned;
  call.kernel = shape.kernel;
  return call;
}

Timing time_steps(Place& place, PreparedDecode& step, int copies, const TimingOptions& options) {
  const double one_ms = place.time(1, [&] { step.enqueue(); }).front();  // also loads what is loaded lazily
  const int rounds = static_cast<int>(std::clamp(1.0 / (one_ms * copies), 1.0, 10.0));  // about 1 ms a replay
  const int calls = copies * rounds;
  Timing timing = measure(
      [&](int runs) {
        std::vector<double> times = place.replay(runs, calls, [&](int call) { step.enqueue(call % copies); });
        for (double& milliseconds : times) milliseconds *= calls;  // what a run costs of the budget
        return times;
      },
      options);
  timing.median_ms /= calls;
  timing.min_ms /= calls;
  return timing;
}

StepRow run_step(Place& place, tandem_backend backend, const StepShape& shape, const BenchOptions& options) {
  const DecodeCall call = call_of(shape, backend, options.plan);
  const int copies =
      backend == TANDEM_BACKEND_HOPPER
          ? std::clamp(static_cast<int>(std::ceil(rotated_bytes / shape.bytes())), 1, max_copies)
          : 1;
  PreparedDecode prepared(place, call, copies);
  return {shape, backend, time_steps(place, prepared, copies, options.timing)};
}

std::string described(const StepShape& s) {
  return "b" + std::to_string(s.batch) + " h" + std::to_string(s.q_heads) + " cache " +
         std::to_string(s.cache) + " " + name_of(s.kernel);
}

constexpr const char* csv_header =
    "kind,dtype,d,b,hq,hk,sq,sk,page,split,kernel,peer,us,us_min,rate,note,commit,clock\n";

void write_csv(std::ostream& out, const StepRow& row, const BenchOptions& options) {
  const StepShape& s = row.shape;
  out << "decode," << name_of(s.dtype) << "," << s.head_dim << "," << s.batch << "," << s.q_heads << ","
      << s.kv_heads << "," << s.tokens << "," << s.cache << "," << s.page_size << "," << s.split_size << ","
      << name_of(s.kernel) << ",tandem," << fixed(row.timing.median_ms * 1e3, 2) << ","
      << fixed(row.timing.min_ms * 1e3, 2) << "," << fixed(row.gigabytes_per_second(), 1) << ","
      << name_of(row.backend) << (options.plan ? " planned" : "") << "," << options.commit << ","
      << options.clock << std::endl;  // row by row, so that an interrupted run keeps what it measured
}

void print_table(std::ostream& out, const std::vector<StepRow>& rows) {
  Table table({"backend", "dtype", "d", "b", "hq", "hk", "tokens", "cache", "page", "split", "kernel", "us",
               "us min", "runs", "GB/s"});
  for (const StepRow& row : rows) {
    const StepShape& s = row.shape;
    table.add({name_of(row.backend), name_of(s.dtype), std::to_string(s.head_dim), std::to_string(s.batch),
               std::to_string(s.q_heads), std::to_string(s.kv_heads), std::to_string(s.tokens),
               std::to_string(s.cache), std::to_string(s.page_size), std::to_string(s.split_size),
               name_of(s.kernel), fixed(row.timing.median_ms * 1e3, 2), fixed(row.timing.min_ms * 1e3, 2),
               std::to_string(row.timing.runs), fixed(row.gigabytes_per_second(), 1)});
  }
  table.print(out);
}

}  // namespace

Exit run_decode_bench(const BenchOptions& options) {
  const std::vector<StepShape> steps = steps_of(options);
  const tandem_backend requested = parse_backend(options.backend);
  CsvFile csv(options.csv, csv_header);
  std::vector<StepRow> rows;
  Progress progress(steps.size());
  for (const StepShape& shape : steps) {
    progress.show(rows.size(), described(shape));
    const tandem_backend backend = resolve_backend(requested, shape.dtype);
    const std::unique_ptr<Place> place = make_place(backend);
    rows.push_back(run_step(*place, backend, shape, options));
    if (csv.wanted()) write_csv(csv.stream(), rows.back(), options);
  }
  progress.clear();
  print_table(csv.table_stream(), rows);
  csv.finish();
  return Exit::ok;
}

}  // namespace tandem::cli
