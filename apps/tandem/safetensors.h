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

/// An output that is the input, or for whose writing the input would be removed, is a usage Failure.
void check_output(const std::string& input, const std::string& output);

/// A file that appears only when all of it is written, in place of an older one. Until then it is
/// PATH.partial, which is made at once: where nothing can be written that is known before the work.
class SafetensorsWriter {
 public:
  /// Throws Failure(Exit::other).
  explicit SafetensorsWriter(const std::string& path);
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  /// Once. Throws Failure(Exit::other).
  void write(const std::vector<NamedTensor>& tensors, const Metadata& metadata);

 private:
  std::string path_;
  std::string partial_;  ///< "" where the file is a device or a pipe, and written itself
  int file_;
};

/// Both at once.
void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const Metadata& metadata);

/// Whether a tensor may have this name in a file: UTF-8, and not that of the metadata.
bool is_tensor_name(const std::string& name);

}  // namespace tandem::cli
