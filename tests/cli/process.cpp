#include "tests/cli/process.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <sys/wait.h>
#include <unistd.h>

namespace tandem::test {
namespace {

std::string quoted(const std::string& argument) {
  std::string result = "'";
  for (const char c : argument) result += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return result + "'";
}

std::string content_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Runs words, which the shell sees as they are, followed by quoted arguments.
Outcome run(std::vector<std::string> words, const std::vector<std::string>& arguments,
            const std::string& out = "") {
  const ScratchFolder scratch;
  for (const std::string& argument : arguments) words.push_back(quoted(argument));
  words.insert(words.end(), {">", quoted(out.empty() ? scratch.file("out") : out), "2>",
                             quoted(scratch.file("err")), "</dev/null"});
  std::string command;
  for (const std::string& word : words) command.append(word).append(" ");
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) && WEXITSTATUS(status) < 128 ? WEXITSTATUS(status) : -1,
          out.empty() ? content_of(scratch.file("out")) : "", content_of(scratch.file("err"))};
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << "exit code " << outcome.exit_code << "\nstdout:\n"
             << outcome.out << "stderr:\n"
             << outcome.err;
}

Outcome run_tool(const std::vector<std::string>& arguments) { return run({quoted(TANDEM_TOOL)}, arguments); }

Outcome run_tool_with_wrong_backend(const std::vector<std::string>& arguments) {
  // AddressSanitizer, where the build has it, insists on being first otherwise.
  return run({"env", "ASAN_OPTIONS=verify_asan_link_order=0", "LD_PRELOAD=" + quoted(TANDEM_WRONG_BACKEND),
              quoted(TANDEM_TOOL)},
             arguments);
}

Outcome run_tool_with_full_stdout(const std::vector<std::string>& arguments) {
  return run({quoted(TANDEM_TOOL)}, arguments, "/dev/full");
}

ScratchFolder::ScratchFolder() {
  std::string name = (std::filesystem::temp_directory_path() / "tandem-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed for " + name);
  path_ = name;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace tandem::test
