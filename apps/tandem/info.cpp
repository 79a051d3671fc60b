// tandem info: what is built, which device is here, which backend would serve.
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "call.h"
#include "element.h"
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

}  // namespace

void add_info(CLI::App& app, Exit& result) {
  CLI::App* command =
      app.add_subcommand("info", "What is built, which device is here, which backend would serve");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "Print JSON");
  command->callback([json, &result] {
    const tandem_info info = query_info();
    *json ? print_json(info) : print_text(info);
    result = Exit::ok;
  });
}

}  // namespace tandem::cli
