// tandem bench: times the forward call, or decoding steps, over lists of shapes.
#include "bench.h"

#include <algorithm>
#include <memory>
#include <ostream>

#include "backward_call.h"
#include "element.h"
#include "options.h"
#include "report.h"

namespace tandem::cli {
namespace {

struct BenchCase {
  std::int64_t batch, q_heads, kv_heads, q_len, k_len, head_dim;
  tandem_mask mask;
  tandem_dtype dtype;
};

struct BenchRow {
  BenchCase shape;
  tandem_backend backend;
  Timing timing;
  double tflops;   ///< TFLOP/s of the median
  double host_us;  ///< of the caller's thread; 0: not asked for, or the call is the work
};

/// The grid of FlashAttention-3's figures: hidden dim 2048 and 16k tokens in all.
std::vector<BenchCase> paper_grid(tandem_dtype dtype) {
  constexpr std::int64_t hidden = 2048, tokens = 16384;
  std::vector<BenchCase> cases;
  for (const std::int64_t d : {64, 128, 256}) {
    for (const Mask& mask : {Mask::full(), Mask::causal()}) {
      for (std::int64_t s = 512; s <= tokens; s *= 2) {
        cases.push_back({tokens / s, hidden / d, hidden / d, s, s, d, mask.c_mask(), dtype});
      }
    }
  }
  return cases;
}

/// All shapes of one dtype and mask.
void add_shapes(const BenchOptions& options, tandem_dtype dtype, const tandem_mask& mask,
                std::vector<BenchCase>& cases) {
  const auto or_same = [](const std::vector<std::int64_t>& list, std::int64_t same) {
    return list.empty() ? std::vector{same} : list;
  };
  for (const std::int64_t d : options.head_dim)
    for (const std::int64_t b : options.batch)
      for (const std::int64_t heads : options.heads)
        for (const std::int64_t kv_heads : or_same(options.kv_heads, heads))
          for (const std::int64_t sq : options.seqlen)
            for (const std::int64_t sk : or_same(options.seqlen_k, sq))
              cases.push_back({b, heads, kv_heads, sq, sk, d, mask, dtype});
}

std::vector<BenchCase> cases_of(const BenchOptions& options) {
  std::vector<BenchCase> cases;
  for (const std::string& dtype : options.dtype) {
    if (options.grid == "paper") {
      const std::vector<BenchCase> grid = paper_grid(parse_dtype(dtype));
      cases.insert(cases.end(), grid.begin(), grid.end());
      continue;
    }
    for (const std::string& mask : options.mask)
      add_shapes(options, parse_dtype(dtype), parse_mask(mask), cases);
  }
  return cases;
}

double teraflops(double flops, const Timing& timing) {
  return timing.median_ms > 0 ? flops / timing.median_ms * 1e-9 : 0;
}

BenchRow time_backward(Place& place, const BenchCase& shape, const Call& forward,
                       const BenchOptions& options) {
  BackwardCall call;
  call.forward = forward;
  call.dout = normal_tensor(shape.dtype, forward.q.shape);
  call.deterministic = options.deterministic;
  PreparedBackward prepared(place, call);
  const Timing timing = measure([&](int runs) { return prepared.time(runs); }, options.timing);
  return {shape, forward.backend, timing, teraflops(flops_of(call), timing), 0};
}

BenchRow run_case(Place& place, tandem_backend backend, const BenchCase& shape, const BenchOptions& options) {
  Call call;
  call.backend = backend;
  call.q = normal_tensor(shape.dtype, {shape.batch, shape.q_len, shape.q_heads, shape.head_dim});
  call.k = normal_tensor(shape.dtype, {shape.batch, shape.k_len, shape.kv_heads, shape.head_dim});
  call.v = normal_tensor(shape.dtype, {shape.batch, shape.k_len, shape.kv_heads, shape.head_dim});
  call.mask = shape.mask;
  if (options.backward) return time_backward(place, shape, call, options);
  if (options.study.asks()) call.study = options.study.c_study();
  PreparedCall prepared(place, call);
  const Timing result = measure([&](int runs) { return prepared.time(runs); }, options.timing);
  const bool asynchronous = backend == TANDEM_BACKEND_HOPPER;
  return {shape, backend, result, teraflops(flops_of(call), result),
          options.host && asynchronous ? prepared.host_microseconds() : 0};
}

std::string described(const BenchCase& c) {
  return "b" + std::to_string(c.batch) + " h" + std::to_string(c.q_heads) + " s" + std::to_string(c.q_len) +
         " d" + std::to_string(c.head_dim) + " " + spelled(c.mask);
}

constexpr const char* csv_header =
    "kind,dtype,d,causal,b,hq,hk,sq,sk,peer,ms,ms_min,rate,note,commit,clock\n";

void write_csv(std::ostream& out, const BenchRow& row, const BenchOptions& options) {
  const BenchCase& c = row.shape;
  out << (options.backward ? "bwd," : "fwd,") << name_of(c.dtype) << "," << c.head_dim << ","
      << (c.mask.kind == TANDEM_MASK_CAUSAL ? 1 : 0) << "," << c.batch << "," << c.q_heads << ","
      << c.kv_heads << "," << c.q_len << "," << c.k_len << ",tandem," << fixed(row.timing.median_ms, 4) << ","
      << fixed(row.timing.min_ms, 4) << "," << general(row.tflops, 4) << ",\"" << name_of(row.backend) << " "
      << spelled(c.mask) << options.study.arguments() << (options.deterministic ? " deterministic" : "")
      << "\"," << options.commit << "," << options.clock
      << std::endl;  // row by row, so that an interrupted run keeps what it measured
}

void print_table(std::ostream& out, const std::vector<BenchRow>& rows) {
  Table table({"backend", "dtype", "d", "mask", "b", "hq", "hk", "sq", "sk", "ms", "ms min", "runs",
               "TFLOP/s", "host us"});
  for (const BenchRow& row : rows) {
    const BenchCase& c = row.shape;
    table.add({name_of(row.backend), name_of(c.dtype), std::to_string(c.head_dim), spelled(c.mask),
               std::to_string(c.batch), std::to_string(c.q_heads), std::to_string(c.kv_heads),
               std::to_string(c.q_len), std::to_string(c.k_len), fixed(row.timing.median_ms, 4),
               fixed(row.timing.min_ms, 4), std::to_string(row.timing.runs), general(row.tflops, 4),
               row.host_us > 0 ? fixed(row.host_us, 2) : "-"});
  }
  table.print(out);
}

Exit run_bench(const BenchOptions& options) {
  const std::vector<BenchCase> cases = cases_of(options);
  const tandem_backend requested = parse_backend(options.backend);
  CsvFile csv(options.csv, csv_header);
  std::vector<BenchRow> rows;
  Progress progress(cases.size());
  for (const BenchCase& shape : cases) {
    progress.show(rows.size(), described(shape));
    const tandem_backend backend = resolve_backend(requested, shape.dtype);
    const std::unique_ptr<Place> place = make_place(backend);
    rows.push_back(run_case(*place, backend, shape, options));
    if (csv.wanted()) write_csv(csv.stream(), rows.back(), options);
  }
  progress.clear();
  print_table(csv.table_stream(), rows);
  csv.finish();
  return Exit::ok;
}

CLI::Option* add_list(CLI::App& command, const char* name, std::vector<std::int64_t>& values,
                      const char* text, std::int64_t low) {
  return command.add_option(name, values, text)
      ->delimiter(',')
      ->check(CLI::Range(low, std::int64_t{1} << 31))
      ->type_name("LIST");
}

void add_shape_options(CLI::App& command, BenchOptions& options) {
  const auto list = [&command](const char* name, std::vector<std::int64_t>& values, const char* text,
                               std::int64_t low) { return add_list(command, name, values, text, low); };
  list("--batch", options.batch, "Batch sizes", 1)->capture_default_str();
  list("--heads", options.heads, "Query heads (with --decode: 32)", 1)->capture_default_str();
  list("--kv-heads", options.kv_heads,
       "Key/value heads, a divisor of the query heads (default: as --heads; with --decode: 8)", 1);
  list("--seqlen", options.seqlen, "Query lengths, in tokens", 0)->capture_default_str();
  list("--seqlen-k", options.seqlen_k, "Key lengths, in tokens (default: as --seqlen)", 0);
  list("--head-dim", options.head_dim,
       "Head dims, multiples of 8 up to 256, of the forward and of steps up to 512", 8)
      ->capture_default_str();
  command
      .add_option("--mask", options.mask, "Masks, separated by spaces; window sides are keys, -1: no limit")
      ->check(mask_validator())
      ->type_name("MASK")
      ->capture_default_str();
  command.add_option("--dtype", options.dtype, "Element types")
      ->delimiter(',')
      ->check(dtype_validator())
      ->type_name("DTYPE")
      ->capture_default_str();
}

/// After those that it excludes.
void add_backward_options(CLI::App& command, BenchOptions& options) {
  CLI::Option* backward =
      command.add_flag("--backward", options.backward, "Time the backward call instead, after one forward");
  for (const char* name : {"--decode", "--overlap", "--turn", "--host"})
    backward->excludes(command.get_option(name));
  command
      .add_flag("--deterministic", options.deterministic,
                "Passed on and noted; every backend's backward call gives the same bits in every run, with "
                "it or not")
      ->needs(backward);
}

/// The lists of --decode, and what does not go with it.
void add_decode_options(CLI::App& command, BenchOptions& options) {
  CLI::Option* decode = command.add_flag("--decode", options.decode,
                                         "Time decoding steps instead, whose shapes these lists give:");
  for (const char* name : {"--seqlen", "--seqlen-k", "--mask", "--grid", "--overlap", "--turn", "--host"})
    decode->excludes(command.get_option(name));
  const auto needs_decode = [decode](CLI::Option* option) {
    return option->needs(decode)->capture_default_str();
  };
  needs_decode(add_list(command, "--cache", options.cache, "Tokens of each sequence", 1));
  needs_decode(add_list(command, "--page-size", options.page_size, "Tokens of a page; 0: contiguous", 0));
  needs_decode(add_list(command, "--tokens", options.tokens, "Queries of a step, 1 to 8", 1));
  needs_decode(add_list(command, "--split-size", options.split_size,
                        "Keys of a fixed split, a multiple of 64; 0: the library splits them", 0));
  needs_decode(command.add_option("--kernel", options.kernel, "Kernels, for study"))
      ->delimiter(',')
      ->check(CLI::IsMember({"auto", "plain", "shared_p", "register_p"}))
      ->type_name("KERNEL");
  needs_decode(command.add_flag("--plan", options.plan, "Balance with a plan made beforehand"));
}

/// After all others, most of which it excludes.
void add_matrix_rates_option(CLI::App& command, BenchOptions& options) {
  CLI::Option* wgmma = command.add_flag(
      "--wgmma", options.wgmma,
      "Instead: the rates of the matrix units' instructions, on a Hopper GPU (docs/decode.md)");
  const std::vector<std::string> taken = {"--help", "--wgmma", "--csv", "--commit", "--clock"};
  for (CLI::Option* option : command.get_options()) {
    if (std::find(taken.begin(), taken.end(), option->get_name()) == taken.end()) wgmma->excludes(option);
  }
}

}  // namespace

void add_bench(CLI::App& app, Exit& result) {
  CLI::App* command =
      app.add_subcommand("bench", "Time the forward call over all combinations of lists of shapes");
  const auto options = std::make_shared<BenchOptions>();
  add_shape_options(*command, *options);
  CLI::Option* grid =
      command
          ->add_option(
              "--grid", options->grid,
              "paper: FlashAttention-3's grid, hidden dim 2048, 16384 tokens, lengths 512 to 16384, head\n"
              "dims 64, 128, 256, full and causal; replaces the lists of shapes")
          ->check(CLI::IsMember({"paper"}))
          ->type_name("GRID");
  for (const char* name :
       {"--batch", "--heads", "--kv-heads", "--seqlen", "--seqlen-k", "--head-dim", "--mask"}) {
    grid->excludes(command->get_option(name));
  }
  add_study_options(*command, options->study);
  command->add_flag("--host", options->host,
                    "Also show how long a call keeps the caller's thread, in microseconds (Hopper)");
  add_decode_options(*command, *options);
  add_backward_options(*command, *options);
  command->add_option("--backend", options->backend, "auto: hopper where it can run, else cpu")
      ->check(backend_validator())
      ->type_name("BACKEND")
      ->capture_default_str();
  command->add_option("--warmup", options->timing.warmup, "Untimed runs of each shape")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--repeats", options->timing.repeats,
                   "Timed runs of each shape, of which the median counts")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--budget", options->timing.budget_seconds,
                   "Seconds for one shape; slow ones get fewer runs")
      ->check(positive_number())
      ->type_name("NUMBER")
      ->capture_default_str();
  command
      ->add_option("--csv", options->csv,
                   "Also write CSV to this file; -: to stdout, and the table to stderr")
      ->type_name("FILE");
  command->add_option("--commit", options->commit, "What to write in the CSV's column commit")
      ->capture_default_str();
  command->add_option("--clock", options->clock,
                      "What to write in the CSV's column clock: the SM clock in MHz, if you fixed it");
  command->footer(
      "Times: milliseconds, CUDA events on Hopper, wall clock on the CPU. rate: TFLOP/s of the median run, "
      "counting\n"
      "4 x batch x heads x head dim x visible query-key pairs, 10 x with --backward. Inputs are normally "
      "distributed. Caches stay "
      "warm.");
  add_matrix_rates_option(*command, *options);
  command->callback([options, command, &result] {
    if (options->wgmma) {
      result = run_matrix_rates(*options);
      return;
    }
    if (options->decode) {
      if (command->count("--heads") == 0) options->heads = {32};
      if (command->count("--kv-heads") == 0) options->kv_heads = {8};
    }
    result = options->decode ? run_decode_bench(*options) : run_bench(*options);
  });
}

}  // namespace tandem::cli
