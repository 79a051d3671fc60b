// tandem quantize: tensors of a safetensors file in 8 bits, with their scales.
#include <algorithm>
#include <bit>
#include <cmath>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "call.h"
#include "element.h"
#include "layers.h"
#include "options.h"
#include "place.h"
#include "report.h"

namespace tandem::cli {
namespace {

constexpr std::int64_t key_group = 16;

struct QuantizeOptions {
  std::string file, output;
  LayerNames names{"q", "k", "v", ""};
  std::string layout = "bshd", backend = "auto", dtype;
  std::int64_t block = 128;
  std::uint64_t seed = 1;
  bool hadamard = false, by_column = false, int8 = false, means = false, best_q_scales = false;
  int terms = 1;
};

/// What is taken off the rows of a tensor first, and, of queries, what is off the keys; without elements:
/// nothing.
struct Shifts {
  HostTensor own, of_keys;
};

enum class Part { q, k, v };

/// What one tensor has become, back on the host.
struct Quantised {
  std::vector<StoredTensor> tensors;
  std::int64_t blocks;
};

std::vector<std::byte> fetched(Place& place, const Buffer& buffer, std::int64_t bytes) {
  std::vector<std::byte> host(static_cast<std::size_t>(bytes));
  if (bytes > 0) place.download(host.data(), buffer.data(), host.size());
  return host;
}

tandem_tensor dense(tandem_dtype dtype, const Shape& shape, const Buffer& memory) {
  return {memory.data(),
          dtype,
          {shape[0], shape[1], shape[2], shape[3]},
          {shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}};
}

Quantised quantised(const std::string& name, const HostTensor& x, Part part, const Shifts& shifts,
                    const QuantizeOptions& options) {
  const auto [b, s, h, d] = x.shape;
  const bool is_value = part == Part::v, by_column = is_value && options.by_column;
  const bool best_scale = options.best_q_scales && part == Part::q;
  const std::int64_t block = best_scale ? 1 : options.block;
  const std::int64_t blocks = block == 0 ? 1 : (s + block - 1) / block;
  const int terms = by_column ? options.terms : 1;
  const Shape shape =
      by_column ? Shape{b, terms * d, h, (s + key_group - 1) / key_group * key_group} : x.shape;
  const bool int8 = options.int8 && !is_value;
  const tandem_backend backend = resolve_backend(parse_backend(options.backend), x.dtype);
  const std::unique_ptr<Place> place = make_place(backend);
  const std::unique_ptr<Buffer> input = uploaded(*place, x.storage);
  const Buffer bits(*place, static_cast<std::size_t>(count_of(shape)) + 1);
  const std::int64_t scale_bytes = b * blocks * h * static_cast<std::int64_t>(sizeof(float));
  const Buffer scale(*place, static_cast<std::size_t>(scale_bytes) + 1);
  tandem_quantize_args args{};
  args.struct_size = sizeof args;
  args.backend = backend == TANDEM_BACKEND_REFERENCE ? TANDEM_BACKEND_CPU : backend;
  args.x = x.view(input->data());
  args.out = dense(int8 ? TANDEM_INT8 : TANDEM_E4M3, shape, bits);
  args.layout = by_column ? TANDEM_VALUES_BY_COLUMN : TANDEM_VALUES_BY_KEY;
  args.scale = dense(TANDEM_FP32, {b, blocks, h, 1}, scale);
  args.block = block;
  args.best_scale = best_scale ? 1 : 0;
  args.hadamard = options.hadamard && !is_value ? 1 : 0;
  args.seed = options.seed;
  args.terms = terms;
  const bool has_shift = !shifts.own.storage.empty(), has_dots = !shifts.of_keys.storage.empty();
  const std::unique_ptr<Buffer> shift = uploaded(*place, shifts.own.storage),
                                of_keys = uploaded(*place, shifts.of_keys.storage);
  const std::int64_t dot_bytes = b * s * h * static_cast<std::int64_t>(sizeof(float));
  const Buffer dots(*place, static_cast<std::size_t>(dot_bytes) + 1);
  if (has_shift) args.shift = shifts.own.view(shift->data());
  if (has_dots) {
    args.k_shift = shifts.of_keys.view(of_keys->data());
    args.q_dot_k_shift = dense(TANDEM_FP32, {b, s, h, 1}, dots);
  }
  require(tandem_quantize(&args, place->stream()), Exit::bad_input);
  Quantised result{{{name,
                     int8 ? "I8" : "F8_E4M3",
                     {shape[0], shape[1], shape[2], shape[3]},
                     fetched(*place, bits, count_of(shape))},
                    {name + "_scale", "F32", {b, blocks, h}, fetched(*place, scale, scale_bytes)}},
                   blocks};
  if (has_shift) result.tensors.push_back({name + "_shift", "F32", {b, h, d}, shifts.own.storage});
  if (has_dots)
    result.tensors.push_back({name + "_dot_k_shift", "F32", {b, s, h}, fetched(*place, dots, dot_bytes)});
  return result;
}

HostTensor read_as(const SafetensorsFile& file, const std::string& name, const QuantizeOptions& options) {
  const Layout layout = options.layout == "bhsd" ? Layout::bhsd() : Layout::bshd();
  HostTensor tensor = read_tensor(file, name, layout);
  if (options.dtype.empty() || parse_dtype(options.dtype) == tensor.dtype) return tensor;
  return HostTensor::from_dense(parse_dtype(options.dtype), tensor.shape, layout, tensor.to_dense());
}

/// What is written of each layer, as quantised() names it.
std::vector<std::string> output_names(const QuantizeOptions& options,
                                      const std::vector<std::string>& layers) {
  std::vector<std::string> names;
  for (const std::string& layer : layers) {
    for (const std::string* pattern : {&options.names.q, &options.names.k, &options.names.v}) {
      const std::string name = name_in_layer(*pattern, layer);
      names.insert(names.end(), {name, name + "_scale"});
      if (options.means) names.push_back(name + (pattern == &options.names.q ? "_dot_k_shift" : "_shift"));
    }
  }
  return names;
}

Exit run_quantize(const QuantizeOptions& options) {
  check_output(options.file, options.output);
  if (options.terms == 2 && !options.by_column)
    throw Failure(Exit::usage, "--terms 2 is for values by column; add --by-column");
  if (options.best_q_scales && options.int8)
    throw Failure(Exit::usage, "--best-q-scales is for e4m3; leave --int8 out");
  const SafetensorsFile file(options.file);
  const std::vector<std::string> layers = find_layers(file, options.names);
  check_distinct(output_names(options, layers));
  SafetensorsWriter writer(options.output);
  std::vector<StoredTensor> tensors;
  Table table({"tensor", "b x s x h x d", "scales"});
  Progress progress(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    // Keys are read first, since queries need their mean.
    HostTensor k = read_as(file, name_in_layer(options.names.k, layers[i]), options);
    const HostTensor k_mean = options.means ? means(k) : HostTensor();
    for (const auto& [part, pattern] :
         {std::pair{Part::q, &options.names.q}, {Part::k, &options.names.k}, {Part::v, &options.names.v}}) {
      const std::string name = name_in_layer(*pattern, layers[i]);
      progress.show(i, name);
      const HostTensor x = part == Part::k ? std::move(k) : read_as(file, name, options);
      Shifts shifts;
      if (part == Part::q) shifts.of_keys = k_mean;
      if (options.means && part != Part::q) shifts.own = part == Part::v ? means(x) : k_mean;
      Quantised result = quantised(name, x, part, shifts, options);
      const auto [b, s, h, d] = x.shape;
      const auto number = [](std::int64_t n) { return std::to_string(n); };
      table.add({name, number(b) + "x" + number(s) + "x" + number(h) + "x" + number(d),
                 number(b) + "x" + number(result.blocks) + "x" + number(h)});
      std::ranges::move(result.tensors, std::back_inserter(tensors));
    }
  }
  progress.clear();
  table.print(std::cout);
  std::vector<NamedTensor> named;
  for (const StoredTensor& tensor : tensors)
    named.push_back({tensor.name, tensor.dtype, tensor.shape, tensor.bytes});
  writer.write(named, {{"tandem", tandem_version()},
                       {"block", std::to_string(options.block)},
                       {"q_block", std::to_string(options.best_q_scales ? 1 : options.block)},
                       {"hadamard", options.hadamard ? std::to_string(options.seed) : "none"},
                       {"values", options.by_column ? "by column" : "by key"},
                       {"terms", std::to_string(options.terms)},
                       {"means", options.means ? "taken off k and v" : "none"}});
  return Exit::ok;
}

void add_quantize_options(CLI::App& command, QuantizeOptions& options) {
  command.add_option("FILE", options.file, "Input, a safetensors file")->required();
  command.add_option("-o,--output", options.output, "Output, a safetensors file")
      ->type_name("FILE")
      ->required();
  const auto name = [&command](const char* flag, std::string& value, const char* text) {
    command.add_option(flag, value, text)->type_name("NAME")->capture_default_str();
  };
  name("--q", options.names.q, "Queries; {} stands for the layer's number and takes all layers");
  name("--k", options.names.k, "Keys");
  name("--v", options.names.v, "Values");
  command.add_option("--layout", options.layout, "Order of the dimensions in the input")
      ->check(CLI::IsMember({"bshd", "bhsd"}))
      ->type_name("LAYOUT")
      ->capture_default_str();
  command.add_option("--block", options.block, "Tokens that share a scale; 0: all. On Hopper 128")
      ->check(whole_number_from(0))
      ->type_name("TOKENS")
      ->capture_default_str();
  command.add_flag("--best-q-scales", options.best_q_scales,
                   "A scale for each token of q: the one of four in an octave that loses least");
  command.add_flag("--hadamard", options.hadamard,
                   "Multiply rows of q and k by a Hadamard matrix with random signs");
  command.add_option("--seed", options.seed, "Of these signs")
      ->check(seed_validator())
      ->capture_default_str();
  command.add_flag("--by-column", options.by_column, "Write v by column, as the faster kernels take it");
  command.add_flag("--int8", options.int8, "Write q and k as int8, whose scores are finer");
  command
      .add_option("--terms", options.terms, "Of v by column: 2 keep what rounding to one e4m3 number leaves")
      ->check(CLI::Range(1, 2))
      ->capture_default_str();
  command.add_flag("--means", options.means, "Take the mean over tokens off every row of k and v first");
  command.add_option("--dtype", options.dtype, "Convert q, k, v first (default: as in the file)")
      ->check(dtype_validator())
      ->type_name("DTYPE");
  command.add_option("--backend", options.backend, "auto: hopper where it can run (not for fp32), else cpu")
      ->check(backend_validator())
      ->type_name("BACKEND")
      ->capture_default_str();
}

}  // namespace

void add_quantize(CLI::App& app, Exit& result) {
  CLI::App* command =
      app.add_subcommand("quantize", "q, k and v of a safetensors file in 8 bits, with scales");
  const auto options = std::make_shared<QuantizeOptions>();
  add_quantize_options(*command, *options);
  command->footer(
      "Writes each tensor in 8 bits (F8_E4M3, or I8) by its name, in the order b, s, h, d, and beside it "
      "NAME_scale,\n"
      "fp32, b, blocks, h: what its elements are multiplied by. With --means besides, in fp32, K_shift and "
      "V_shift,\n"
      "b, h, d, which were taken off, and Q_dot_k_shift, b, s, h: scale times it is to be added to lse.");
  command->callback([options, &result] { result = run_quantize(*options); });
}

}  // namespace tandem::cli
