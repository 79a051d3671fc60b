// Runs the tool as a user would, and keeps scratch files in a folder of their own.
#pragma once

#include <filesystem>
#include <ostream>
#include <string>
#include <vector>

namespace tandem::test {

struct Outcome {
  int exit_code;  ///< -1 if the tool ended by a signal
  std::string out, err;
};

std::ostream& operator<<(std::ostream& out, const Outcome& outcome);

/// Runs `tandem` with these arguments.
Outcome run_tool(const std::vector<std::string>& arguments);

/// The same with a CPU backend whose results are wrong.
Outcome run_tool_with_wrong_backend(const std::vector<std::string>& arguments);

/// The same with a stdout that takes nothing, as on a full disk.
Outcome run_tool_with_full_stdout(const std::vector<std::string>& arguments);

/// A new folder, removed with all that is in it at the end.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace tandem::test
