// tandem attend: attention over the tensors of a safetensors file, compared with what is expected.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>

#include "call.h"
#include "element.h"
#include "layers.h"
#include "options.h"
#include "report.h"
#include "verify.h"

namespace tandem::cli {
namespace {

struct AttendOptions {
  std::string file, output;
  LayerNames names{"q", "k", "v", ""};
  std::string o_name, lse_name;
  std::string layout = "bshd", mask = "full", backend = "auto", dtype;
  float scale = 0, softcap = 0;
  double tolerance = -1;  ///< negative: by dtype
  std::int64_t chunk = 0;
  bool alibi = false, lse = false, check = false;
  std::string fp8;     ///< a mode; empty: no 8 bits
  bool means = false;  ///< of 8-bit keys and values are taken off
  StudyOptions study;
  TimingOptions timing{2, 20, 2};
};

struct Comparison {
  Error error;
  double limit;
};

struct LayerResult {
  std::string layer;
  Call call;
  Output output;
  Timing timing;
  std::optional<Comparison> expected;
  std::optional<Verdict> oracle;

  bool ok() const {
    return (!expected || expected->error.max_abs <= expected->limit) &&
           (!oracle || oracle->complaint.empty());
  }

  const char* state() const {
    if (!ok()) return "FAILED";
    return !expected && call.eight_bit ? "not judged" : "ok";
  }
};

std::string shape_text(const HostTensor& tensor) {
  std::string text;
  for (const std::int64_t extent : tensor.shape) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

Layout layout_of(const AttendOptions& options) {
  return options.layout == "bhsd" ? Layout::bhsd() : Layout::bshd();
}

/// The pattern of q with its last component replaced: layers.{}.q becomes layers.{}.o.
std::string sibling_of(const std::string& q, const std::string& name) {
  const std::size_t dot = q.rfind('.');
  if (dot == std::string::npos) return q.find("{}") == std::string::npos ? name : name + ".{}";
  const std::string parent = q.substr(0, dot + 1);
  return q.find("{}", dot) == std::string::npos ? parent + name : parent + name + ".{}";
}

HostTensor read_as(const SafetensorsFile& file, const std::string& name, const AttendOptions& options) {
  HostTensor tensor = read_tensor(file, name, layout_of(options));
  if (options.dtype.empty() || parse_dtype(options.dtype) == tensor.dtype) return tensor;
  return HostTensor::from_dense(parse_dtype(options.dtype), tensor.shape, layout_of(options),
                                tensor.to_dense());
}

tandem_mask mask_of(const AttendOptions& options) {
  tandem_mask mask = parse_mask(options.mask);
  mask.chunk = options.chunk;
  return mask;
}

std::vector<float> alibi_slopes(std::int64_t heads) {
  std::vector<float> slopes;
  for (std::int64_t head = 1; head <= heads; ++head)
    slopes.push_back(std::exp2(-8 * static_cast<float>(head) / static_cast<float>(heads)));
  return slopes;
}

/// 8 bits have no values of another head dim than the queries'.
void check_values(const Call& call, const AttendOptions& options) {
  if (options.fp8.empty() || call.v.shape[3] == call.q.shape[3]) return;
  throw Failure(Exit::unavailable, "the head dim of --v is " + std::to_string(call.v.shape[3]) +
                                       " and that of --q " + std::to_string(call.q.shape[3]) +
                                       "; --fp8 serves values of q's head dim only: leave it out");
}

Call read_call(const SafetensorsFile& file, const std::string& layer, const AttendOptions& options) {
  Call call;
  call.q = read_as(file, name_in_layer(options.names.q, layer), options);
  call.k = read_as(file, name_in_layer(options.names.k, layer), options);
  call.v = read_as(file, name_in_layer(options.names.v, layer), options);
  call.backend = resolve_backend(parse_backend(options.backend), call.q.dtype);
  call.mask = mask_of(options);
  call.scale = options.scale;
  call.softcap = options.softcap;
  if (options.alibi) call.slopes = alibi_slopes(call.q.shape[2]);
  if (options.study.asks()) call.study = options.study.c_study();
  call.want_lse = options.lse || options.check;
  call.o_layout = call.lse_layout = layout_of(options);
  check_values(call, options);
  if (!options.fp8.empty()) call.eight_bit.emplace().mode = parse_eight_bit_mode(options.fp8);
  if (options.means && call.softcap == 0) call.eight_bit->k_mean = means(call.k);
  if (options.means) call.eight_bit->v_mean = means(call.v);
  call.if_invalid = Exit::bad_input;
  return call;
}

/// Outputs are weighted means of rows of v, so rounding q, k, v, probabilities or the output, here or when
/// the file was made, moves them by a few roundings of the largest |v|. fp32 sums of another order get 2^-23
/// for a rounding.
double default_tolerance(const SafetensorsFile& file, const LayerResult& result, const LayerNames& names) {
  constexpr double of_eight_bits = 0x1p-4;
  double roundoff =
      result.call.eight_bit ? of_eight_bits : std::max(unit_roundoff(result.call.q.dtype), 0x1p-23);
  for (const std::string& pattern : {names.q, names.k, names.v, names.expect}) {
    roundoff = std::max(roundoff, unit_roundoff(stored_dtype(file, name_in_layer(pattern, result.layer))));
  }
  float largest = 0;
  for (const float value : result.call.v.to_dense())
    if (std::isfinite(value)) largest = std::max(largest, std::fabs(value));
  return 4 * roundoff * static_cast<double>(largest);
}

Comparison compare_expected(const SafetensorsFile& file, const LayerResult& result,
                            const AttendOptions& options) {
  const std::string name = name_in_layer(options.names.expect, result.layer);
  const HostTensor expected = read_tensor(file, name, layout_of(options));
  if (expected.shape != result.output.o.shape) {
    throw Failure(Exit::bad_input, file.path() + ": tensor '" + name + "' is " + shape_text(expected) +
                                       " (b x s x h x d), but the output " + shape_text(result.output.o));
  }
  return {compare(result.output.o.to_dense(), expected.to_dense()),
          options.tolerance >= 0 ? options.tolerance : default_tolerance(file, result, options.names)};
}

LayerResult run_layer(const SafetensorsFile& file, const std::string& layer, const AttendOptions& options) {
  LayerResult result{layer, read_call(file, layer, options), {}, {}, {}, {}};
  {
    const std::unique_ptr<Place> place = make_place(result.call.backend);
    PreparedCall prepared(*place, result.call);
    result.timing = measure([&](int runs) { return prepared.time(runs); }, options.timing);
    result.output = prepared.fetch();
  }
  if (!options.names.expect.empty()) result.expected = compare_expected(file, result, options);
  if (options.check) result.oracle = verify(result.call, result.output);
  if (options.check && !options.fp8.empty())
    result.oracle->complaint.clear();  // 8 bits are shown, not judged
  return result;
}

class Report {
 public:
  explicit Report(const AttendOptions& options) : options_(options), table_(header(options)) {}

  void add(const LayerResult& result) {
    std::vector<std::string> row;
    row.push_back(result.layer.empty() ? "-" : result.layer);
    row.insert(row.end(), {shape_text(result.call.q), std::to_string(result.call.k.shape[1]),
                           name_of(result.call.q.dtype), name_of(result.call.backend)});
    if (result.expected) {
      row.push_back(scientific(result.expected->error.max_abs));
      row.push_back(scientific(result.expected->error.rmse));
      row.push_back(scientific(result.expected->limit));
    }
    if (result.oracle) {
      row.push_back(scientific(result.oracle->error.max_abs));
      row.push_back(scientific(result.oracle->error.rmse));
    }
    const double rate =
        result.timing.median_ms > 0 ? flops_of(result.call) / result.timing.median_ms * 1e-6 : 0;
    row.push_back(fixed(result.timing.median_ms, 3));
    row.push_back(fixed(rate, 1));
    if (result.expected || result.oracle) row.push_back(result.state());
    table_.add(row);
    if (!result.ok()) complain(result);
  }

  /// Prints all and tells whether every layer was within tolerance.
  bool finish(std::ostream& out) const {
    table_.print(out);
    for (const std::string& complaint : complaints_) out << printable(complaint) << "\n";
    return complaints_.empty();
  }

 private:
  static std::vector<std::string> header(const AttendOptions& options) {
    std::vector<std::string> names{"layer", "q (b x s x h x d)", "keys", "dtype", "backend"};
    if (!options.names.expect.empty()) names.insert(names.end(), {"max err", "RMSE", "allowed"});
    if (options.check) names.insert(names.end(), {"max err oracle", "RMSE oracle"});
    names.insert(names.end(), {"ms", "GFLOP/s"});
    if (!options.names.expect.empty() || options.check) names.push_back("");
    return names;
  }

  void complain(const LayerResult& result) {
    const std::string where = result.layer.empty() ? "the output" : "layer " + result.layer;
    if (result.expected && !(result.expected->error.max_abs <= result.expected->limit)) {
      complaints_.push_back(where + " is " + scientific(result.expected->error.max_abs) + " away from " +
                            name_in_layer(options_.names.expect, result.layer) + "; allowed are " +
                            scientific(result.expected->limit) +
                            " (--tolerance). Do --mask and --scale fit the model?");
    }
    if (result.oracle && !result.oracle->complaint.empty()) {
      complaints_.push_back(where + " against the oracle: " + result.oracle->complaint);
    }
  }

  const AttendOptions& options_;
  Table table_;
  std::vector<std::string> complaints_;
};

void write_output(SafetensorsWriter& writer, const AttendOptions& options,
                  const std::vector<StoredTensor>& tensors, tandem_backend backend) {
  std::vector<NamedTensor> named;
  for (const StoredTensor& tensor : tensors)
    named.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  writer.write(named, {{"tandem", tandem_version()}, {"backend", name_of(backend)}, {"mask", options.mask}});
}

/// fp32 goes to the CPU even where Hopper could serve; tells how to change that.
void hint_at_hopper(const AttendOptions& options, const Call& call) {
  if (options.backend != "auto" || call.q.dtype != TANDEM_FP32 || query_info().hopper_usable == 0) return;
  std::cerr << "tandem: fp32 is served by the CPU; --dtype bf16 would use the Hopper kernels\n";
}

void print_metadata(const SafetensorsFile& file) {
  for (const auto& [key, value] : file.header().metadata) {
    if (value.size() <= 120) std::cout << printable(key) << ": " << printable(value) << "\n";
  }
}

void check_names(const AttendOptions& options) {
  for (const std::string& name : {options.o_name, options.lse_name}) {
    if ((name.find("{}") == std::string::npos) != (options.names.q.find("{}") == std::string::npos)) {
      throw Failure(Exit::usage,
                    "'" + options.names.q + "' and '" + name +
                        "' do not go together: put {} for the layer's number in all names, or in none");
    }
    if (!is_tensor_name(name)) {
      throw Failure(Exit::usage,
                    "'" + name + "' can't be a tensor's name: names are UTF-8, not __metadata__");
    }
  }
  if (options.o_name == options.lse_name) {
    throw Failure(Exit::usage, "--o-name and --lse-name are both '" + options.o_name + "'; choose two names");
  }
}

std::vector<std::string> output_names(const AttendOptions& options, const std::vector<std::string>& layers) {
  std::vector<std::string> names;
  for (const std::string& layer : layers) {
    names.push_back(name_in_layer(options.o_name, layer));
    if (options.lse) names.push_back(name_in_layer(options.lse_name, layer));
  }
  return names;
}

/// What the command line asks for is right on the smallest problem; what is wrong later is the file's fault.
void check_attention_options(const AttendOptions& options) {
  const HostTensor one = HostTensor::poisoned(TANDEM_BF16, {1, 1, 1, 8}, Layout::bshd());
  Call call;
  call.q = call.k = call.v = one;
  call.mask = mask_of(options);
  call.scale = options.scale;
  call.softcap = options.softcap;
  const std::unique_ptr<Place> place = make_place(call.backend);
  PreparedCall(*place, call);
}

Exit run_attend(AttendOptions options) {
  if (options.o_name.empty()) options.o_name = sibling_of(options.names.q, "o");
  if (options.lse_name.empty()) options.lse_name = sibling_of(options.names.q, "lse");
  check_names(options);
  check_attention_options(options);
  if (!options.output.empty()) check_output(options.file, options.output);
  const SafetensorsFile file(options.file);
  const std::vector<std::string> layers = find_layers(file, options.names);
  if (!options.output.empty()) check_distinct(output_names(options, layers));
  std::optional<SafetensorsWriter> writer;
  if (!options.output.empty()) writer.emplace(options.output);
  print_metadata(file);
  Report report(options);
  std::vector<StoredTensor> tensors;
  tandem_backend backend = TANDEM_BACKEND_CPU;
  Progress progress(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    progress.show(i, name_in_layer(options.names.q, layers[i]));
    const LayerResult result = run_layer(file, layers[i], options);
    report.add(result);
    backend = result.call.backend;
    if (i == 0) hint_at_hopper(options, result.call);
    if (!writer) continue;
    const Layout layout = layout_of(options);
    tensors.push_back(stored(name_in_layer(options.o_name, layers[i]), result.output.o, layout, true));
    if (options.lse)
      tensors.push_back(stored(name_in_layer(options.lse_name, layers[i]), result.output.lse, layout, false));
  }
  progress.clear();
  const bool ok = report.finish(std::cout);
  if (writer) write_output(*writer, options, tensors, backend);
  return ok ? Exit::ok : Exit::check_failed;
}

void add_tensor_options(CLI::App& command, AttendOptions& options) {
  command.add_option("FILE", options.file, "Input, a safetensors file")->required();
  CLI::Option* const output =
      command.add_option("-o,--output", options.output, "Write the outputs to this safetensors file")
          ->type_name("FILE");
  const auto name = [&command](const char* flag, std::string& value, const char* text) {
    return command.add_option(flag, value, text)->type_name("NAME");
  };
  name("--q", options.names.q, "Queries; {} stands for the layer's number and runs all layers")
      ->capture_default_str();
  name("--k", options.names.k, "Keys")->capture_default_str();
  name("--v", options.names.v, "Values")->capture_default_str();
  name("--expect", options.names.expect,
       "What the output should be, for example the model's own; compared, and judged");
  name("--o-name", options.o_name,
       "Output tensor in the output file (default: q's name with o for its last part)")
      ->needs(output);
  CLI::Option* const lse =
      command.add_flag("--lse", options.lse, "Also write the log-sum-exp, fp32, without head dim")
          ->needs(output);
  name("--lse-name", options.lse_name,
       "Log-sum-exp in the output file (default: q's name with lse for its last part)")
      ->needs(lse);
  command.add_option("--layout", options.layout, "Order of the dimensions: batch, sequence, heads, head dim")
      ->check(CLI::IsMember({"bshd", "bhsd"}))
      ->type_name("LAYOUT")
      ->capture_default_str();
}

void add_attention_options(CLI::App& command, AttendOptions& options) {
  command.add_option("--mask", options.mask, "Keys that a query sees; window sides are keys, -1: no limit")
      ->check(mask_validator())
      ->type_name("MASK")
      ->capture_default_str();
  command.add_option("--scale", options.scale, "Factor on the scores (default: 1 / sqrt(head dim))")
      ->check(positive_number())
      ->type_name("NUMBER");
  command
      .add_option("--softcap", options.softcap,
                  "Scores become softcap * tanh(score / softcap) (default: off)")
      ->check(positive_number())
      ->type_name("NUMBER");
  command
      .add_option("--chunk", options.chunk,
                  "Of these, a query sees the keys in its own chunk of so many positions (default: all)")
      ->check(whole_number_from(1))
      ->type_name("KEYS");
  command.add_flag("--alibi", options.alibi,
                   "Scores fall with distance: by 2^(-8 i / n) a key for head i of n, counted from 1");
  command
      .add_option("--dtype", options.dtype,
                  "Convert q, k, v first, and compute in this (default: as in the file)")
      ->check(dtype_validator())
      ->type_name("DTYPE");
  CLI::Option* const fp8 =
      command
          .add_flag("--fp8{fast}", options.fp8,
                    "Quantise q, k, v to 8 bits first; times are of the attention alone. --fp8=balanced: q "
                    "and k as "
                    "int8, =accurate: and values as two terms; alone, or =fast: all as e4m3")
          ->check(CLI::IsMember({"fast", "balanced", "accurate"}));
  for (const char* option : {"--chunk", "--alibi"}) fp8->excludes(command.get_option(option));
  command
      .add_flag(
          "--means", options.means,
          "With --fp8: take the means of k, where no --softcap is, and v off first; the attention makes "
          "up for them")
      ->needs(fp8);
  command.add_option("--backend", options.backend, "auto: hopper where it can run (not for fp32), else cpu")
      ->check(backend_validator())
      ->type_name("BACKEND")
      ->capture_default_str();
}

}  // namespace

void add_attend(CLI::App& app, Exit& result) {
  CLI::App* command = app.add_subcommand("attend", "Attention over the tensors of a safetensors file");
  const auto options = std::make_shared<AttendOptions>();
  add_tensor_options(*command, *options);
  add_attention_options(*command, *options);
  add_study_options(*command, options->study);
  command->add_flag("--check", options->check,
                    "Compare with the float64 oracle (slow), and judge, but not with --fp8");
  command
      ->add_option("--tolerance", options->tolerance,
                   "Largest error allowed against --expect (default: 4 roundings, in the coarsest dtype in\n"
                   "use or in the file, of the largest |v|)")
      ->needs(command->get_option("--expect"))
      ->check(number_from_zero())
      ->type_name("NUMBER");
  command
      ->add_option("--repeats", options->timing.repeats,
                   "Timed runs of each layer, of which the median counts")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command->footer(
      "Example, every layer of a model against the model's own output:\n"
      "  tandem attend minilm.safetensors --q 'layers.{}.q' --k 'layers.{}.k' --v 'layers.{}.v' \\\n"
      "    --expect 'layers.{}.o' --check -o out.safetensors\n"
      "Exit code 1 if a result is outside its tolerance; the outputs are written all the same.");
  command->callback([options, &result] { result = run_attend(*options); });
}

}  // namespace tandem::cli
