// Any file as a safetensors file: it is refused as bad input, or all that its header promises is there.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <sys/mman.h>
#include <unistd.h>

#include "failure.h"
#include "layers.h"
#include "report.h"
#include "safetensors.h"

namespace {

using namespace tandem::cli;

void require(bool holds, const char* what) {
  if (holds) return;
  std::cerr << "fuzz: " << what << "\n";
  std::abort();
}

/// The bytes as a file in memory.
class MemoryFile {
 public:
  MemoryFile(const std::uint8_t* data, std::size_t size) : file_(memfd_create("fuzz", MFD_CLOEXEC)) {
    require(file_ >= 0 && write(file_, data, size) == static_cast<ssize_t>(size), "no memory for the file");
  }
  ~MemoryFile() { close(file_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(file_); }

 private:
  int file_;
};

/// Opens the file and reads all of it, as tandem attend would.
void read_all(const std::string& path) {
  const SafetensorsFile file(path);
  for (const auto& [name, entry] : file.header().tensors) {
    require(file.read(entry).size() == entry.end - entry.begin, "a tensor is not as long as its entry");
    const std::string shown = printable(name);
    require(shown.find('\x1b') == std::string::npos, "a name could steer the terminal");
    try {
      read_tensor(file, name, Layout::bhsd()).to_dense();
    } catch (const Failure& failure) {
      require(failure.code == Exit::bad_input, "a tensor of the file is somebody else's fault");
    }
  }
  find_layers(file, {"layers.{}.q", "layers.{}.k", "layers.{}.v", ""});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const MemoryFile file(data, size);
  try {
    read_all(file.path());
  } catch (const Failure& failure) {
    require(failure.code == Exit::bad_input, "a bad file is somebody else's fault");
  }
  return 0;
}
