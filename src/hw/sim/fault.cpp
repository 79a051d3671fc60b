// Putting faults into words.
#include "hw/sim/fault.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <dlfcn.h>
#include <filesystem>
#include <link.h>
#include <map>
#include <memory>
#include <unistd.h>

#include "hw/sim/machine_state.h"

namespace tandem::hw::sim {

const char* name_of(Rule rule) {
  static constexpr std::array names = {"use-before-wait",
                                       "operand-overwritten",
                                       "wrong-phase",
                                       "transaction-mismatch",
                                       "missing-proxy-fence",
                                       "missing-barrier-fence",
                                       "missing-wgmma-fence",
                                       "divergence",
                                       "inactive-lane",
                                       "register-pool",
                                       "shared-race",
                                       "global-race",
                                       "early-access",
                                       "uninitialised-shared",
                                       "uninitialised-global",
                                       "shared-bounds",
                                       "global-bounds",
                                       "array-bounds",
                                       "deadlock",
                                       "bad-barrier",
                                       "bad-descriptor",
                                       "bad-argument",
                                       "unfinished"};
  static_assert(names.size() == static_cast<std::size_t>(Rule::unfinished) + 1);
  return names[static_cast<std::size_t>(rule)];
}

namespace {
/// The file as the repository names it. A compiler cache may name it from another build folder.
std::string in_repository(const std::string& path) {
  const std::string file = std::filesystem::path(path).lexically_normal().string();
  std::size_t begin = 0;
  for (const char* folder : {"/apps/", "/src/", "/tests/"}) {
    if (const std::size_t found = file.rfind(folder); found != std::string::npos)
      begin = std::max(begin, found + 1);
  }
  return file.substr(begin);
}
}  // namespace

std::vector<std::string> source_lines(const void* code) {
  Dl_info info{};
  link_map* map = nullptr;
  if (code == nullptr || dladdr1(code, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) == 0)
    return {};
  // The return address may lie on the next line; one byte earlier is inside the call.
  const auto address = reinterpret_cast<std::uintptr_t>(code) - map->l_addr - 1;
  const std::string file = map->l_name[0] != 0 ? map->l_name : "/proc/" + std::to_string(getpid()) + "/exe";
  char command[512];
  std::snprintf(command, sizeof command, "addr2line -ie '%s' 0x%zx 2>/dev/null", file.c_str(), address);
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command, "r"), pclose);
  std::vector<std::string> lines;
  char line[1024];
  while (pipe && std::fgets(line, sizeof line, pipe.get())) {
    const std::string place = std::string(line).substr(0, std::strcspn(line, " \n"));
    if (place.find("/hw/sim/") == std::string::npos && place[0] != '?') lines.push_back(in_repository(place));
  }
  return lines;
}

bool same_place(const void* code, const void* other) {
  if (code == other) return true;
  // The compiler may have made several copies of a line.
  static std::map<const void*, std::vector<std::string>> lines;
  const auto lines_of = [](const void* at) -> const std::vector<std::string>& {
    const auto found = lines.find(at);
    return found != lines.end() ? found->second : lines.emplace(at, source_lines(at)).first->second;
  };
  return lines_of(code) == lines_of(other);
}

std::string describe(const Thread& thread) {
  return "thread " + std::to_string(thread.index) + " (" + thread.role + ", warp " +
         std::to_string(thread.warp()) + ", lane " + std::to_string(thread.lane()) + ", block " +
         std::to_string(machine.block.index) + ")";
}

std::string describe(const BarrierRecord& barrier) {
  const auto lines = source_lines(barrier.code);
  return "barrier " + std::to_string(barrier.ordinal) + " (at shared offset " +
         std::to_string(barrier.offset) + (lines.empty() ? "" : ", initialised at " + lines[0]) +
         ", in phase " + std::to_string(barrier.phases) + ")";
}

void record(Rule rule, const Thread* subject, const std::string& what, const std::vector<Related>& related,
            std::source_location check) {
  if (machine.report.fault) return;
  const std::string noticed = in_repository(check.file_name()) + ":" + std::to_string(check.line());
  Fault fault{rule, std::string(name_of(rule)) + ": ", {}, noticed};
  fault.text += subject != nullptr ? describe(*subject) + " " + what + "\n" : what + "\n";
  if (subject != nullptr) fault.lines = source_lines(subject->code);
  const auto add_lines = [&](const std::vector<std::string>& lines) {
    for (const std::string& line : lines)
      fault.text += (&line == lines.data() ? "    at " : "  from ") + line + "\n";
  };
  add_lines(fault.lines);
  for (const Related& other : related) {
    fault.text += "  " + other.text + "\n";
    add_lines(source_lines(other.code));
  }
  fault.text += std::string("  policy ") + name_of(machine.config->policy) + ", seed " +
                std::to_string(machine.config->seed) + "\n";
  if (!machine.config->replay.empty()) fault.text += "  replay: " + machine.config->replay + "\n";
  machine.report.fault = std::move(fault);
}

void fail(Rule rule, const std::string& what, const std::vector<Related>& related,
          std::source_location check) {
  record(rule, machine.running, what, related, check);
  abandon();
}

}  // namespace tandem::hw::sim
