// tandem info: what is built, which device is here, which backend would serve.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>

#include "call.h"
#include "element.h"
#include "failure.h"
#include "options.h"
#include "report.h"

namespace tandem::cli {
namespace {

const char* yes_no(int value) { return value != 0 ? "yes" : "no"; }

void print_text(const tandem_info& info) {
  const std::string commit = built_commit();
  Table table({"version", std::string(tandem_version()) + (commit.empty() ? "" : ", commit " + commit)});
  table.add({"Hopper kernels built", yes_no(info.hopper_built)});
  table.add(
      {"Hopper usable here", info.hopper_usable != 0 ? "yes" : "no: " + std::string(info.hopper_reason)});
  table.add({"CUDA device",
             info.device_name[0] == '\0'
                 ? "none"
                 : info.device_name + (", " + std::to_string(info.device_sm_count)) + " multiprocessors"});
  table.add({"CPU backend", std::string(info.cpu_simd) + ", threads: " + std::to_string(info.cpu_threads)});
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}) {
    table.add({"--backend auto, " + name_of(dtype), name_of(resolve_backend(TANDEM_BACKEND_AUTO, dtype))});
  }
  table.print(std::cout);
}

void print_json(const tandem_info& info) {
  nlohmann::ordered_json json;
  json["version"] = tandem_version();
  json["commit"] = built_commit();
  json["hopper_built"] = info.hopper_built != 0;
  json["hopper_usable"] = info.hopper_usable != 0;
  json["hopper_reason"] = info.hopper_reason;
  json["device_name"] = info.device_name;
  json["device_sm_count"] = info.device_sm_count;
  json["cpu_simd"] = info.cpu_simd;
  json["cpu_threads"] = info.cpu_threads;
  for (const tandem_dtype dtype : {TANDEM_BF16, TANDEM_FP16, TANDEM_FP32}) {
    json["auto_backend"][name_of(dtype)] = name_of(resolve_backend(TANDEM_BACKEND_AUTO, dtype));
  }
  std::cout << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

std::vector<std::string> parts_of(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

std::int64_t number(const std::string& text) {
  std::size_t used = 0;
  std::int64_t value = 0;
  try {
    value = std::stoll(text, &used);
  } catch (const std::exception&) {
    used = 0;
  }
  if (used == 0 || used != text.size() || value < 1)
    throw CLI::ValidationError("--explain", "'" + text + "' is no number above 0");
  return value;
}

/// Two numbers with the separator between them, or one for both.
std::pair<std::int64_t, std::int64_t> pair_of(const std::string& text, char separator) {
  const std::vector<std::string> parts = parts_of(text, separator);
  if (parts.empty() || parts.size() > 2) throw CLI::ValidationError("--explain", "'" + text + "' is no size");
  return {number(parts.front()), number(parts.back())};
}

/// What the library says about the shape.
std::string explained(const std::string& shape) {
  const std::vector<std::string> parts = parts_of(shape, ',');
  if (parts.size() < 4 || parts.size() > 6)
    throw CLI::ValidationError("--explain",
                               "'" + shape + "' is no batch,heads,queries,head dim[,mask[,dtype]]");
  const std::int64_t b = number(parts[0]), d = number(parts[3]);
  const auto [heads, kv_heads] = pair_of(parts[1], '/');
  const auto [queries, keys] = pair_of(parts[2], 'x');
  const tandem_mask mask = parse_mask(parts.size() > 4 ? parts[4] : "full");
  const tandem_dtype dtype = parse_dtype(parts.size() > 5 ? parts[5] : "bf16");
  const auto tensor = [&](std::int64_t s, std::int64_t h) {
    return tandem_tensor{nullptr, dtype, {b, s, h, d}, {s * h * d, h * d, d, 1}};
  };
  tandem_forward_args args{};
  args.struct_size = sizeof args;
  args.backend = TANDEM_BACKEND_HOPPER;
  args.q = args.o = tensor(queries, heads);
  args.k = args.v = tensor(keys, kv_heads);
  args.mask = &mask;
  char text[4096];
  if (tandem_explain_forward(&args, text, sizeof text) != TANDEM_OK)
    throw Failure(Exit::unavailable, tandem_last_error());
  return text;
}

}  // namespace

void add_info(CLI::App& app, Exit& result) {
  CLI::App* command =
      app.add_subcommand("info", "What is built, which device is here, which backend would serve");
  const auto json = std::make_shared<bool>(false);
  const auto shape = std::make_shared<std::string>();
  command->add_flag("--json", *json, "Print JSON");
  command->add_option(
      "--explain", *shape,
      "How Hopper would serve a forward pass, and what that costs by dispatch's model: "
      "batch,heads[/kv heads],queries[xkeys],head dim[,mask[,dtype]], as 2,64/8,1x19980,64,causal");
  command->callback([json, shape, &result] {
    if (!shape->empty()) {
      std::cout << explained(*shape);
      result = Exit::ok;
      return;
    }
    const tandem_info info = query_info();
    *json ? print_json(info) : print_text(info);
    result = Exit::ok;
  });
}

}  // namespace tandem::cli
