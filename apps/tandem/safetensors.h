// Reading and writing safetensors files (https://huggingface.co/docs/safetensors): eight bytes with the
// length of a JSON header, the header, then the tensors' bytes without gaps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace tandem::cli {

/// A tensor as the header describes it, checked: end - begin is the product of shape times the dtype's size,
/// and both lie inside the file.
struct TensorEntry {
  std::string dtype;                ///< as the format spells it: "F32", "BF16", ...
  std::vector<std::int64_t> shape;  ///< outermost first
  std::uint64_t begin, end;         ///< bytes, counted from the end of the header
};

using Metadata = std::map<std::string, std::string>;

struct Header {
  std::map<std::string, TensorEntry> tensors;
  Metadata metadata;
};

/// Checks and reads a header; `data_bytes` is what follows it in the file. Throws Failure(Exit::bad_input)
/// that names the tensor and what is wrong with it.
Header parse_header(std::string_view json, std::uint64_t data_bytes);

/// A file opened for reading: the header is checked at once, tensors are read when asked for.
class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path);
  const Header& header() const { return header_; }
  const std::string& path() const { return path_; }
  /// The bytes of a tensor of header().
  std::vector<std::byte> read(const TensorEntry& entry) const;

 private:
  std::string path_;
  Header header_;
  std::uint64_t data_offset_ = 0;
};

/// A tensor to be written; `bytes` is row-major and borrowed.
struct NamedTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::span<const std::byte> bytes;
};

/// Writes a file, replacing an older one only when all is written. Throws Failure(Exit::other).
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const Metadata& metadata);

}  // namespace tandem::cli
