#include "safetensors.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <unistd.h>
#include <utility>

#include "failure.h"

namespace tandem::cli {
namespace {

using nlohmann::json;

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t max_header_bytes = 100'000'000;  // the limit of the format's own library

Failure bad(const std::string& what) { return {Exit::bad_input, what}; }

/// Bytes of one element, 0 for a dtype that the format does not have.
std::uint64_t element_bytes(const std::string& dtype) {
  static const std::map<std::string, std::uint64_t> sizes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  const auto found = sizes.find(dtype);
  return found == sizes.end() ? 0 : found->second;
}

/// Refuses what the JSON parser alone lets through: a key twice in one object, and deep nesting. (Its
/// callback could do that too, in time that grows with the square of the number of tensors.)
class Watch : public nlohmann::json_sax<json> {
 public:
  bool start_object(std::size_t) override {
    keys_.emplace_back();
    return deepen();
  }
  bool end_object() override {
    keys_.pop_back();
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) throw bad("the header has the name '" + name + "' twice");
    return true;
  }
  bool start_array(std::size_t) override { return deepen(); }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception& error) override {
    throw bad(std::string("the header is not JSON: ") + error.what());
  }

 private:
  bool deepen() {
    if (++depth_ > 4) throw bad("the header nests deeper than the format allows");
    return true;
  }

  std::vector<std::set<std::string>> keys_;
  int depth_ = 0;
};

json parse_strictly(std::string_view text) {
  Watch watch;
  json::sax_parse(text, &watch);
  try {
    return json::parse(text);
  } catch (const json::exception& error) {  // a number beyond all limits
    throw bad(std::string("the header is not JSON: ") + error.what());
  }
}

/// An array of integers >= 0.
std::vector<std::uint64_t> integers_of(const json& tensor, const char* key, const std::string& name) {
  const auto found = tensor.find(key);
  if (found == tensor.end() || !found->is_array())
    throw bad("tensor '" + name + "' has no array '" + key + "'");
  std::vector<std::uint64_t> values;
  for (const json& value : *found) {
    if (!value.is_number_unsigned()) {
      throw bad("tensor '" + name + "' has " + value.dump(-1, ' ', true, json::error_handler_t::replace) +
                " in '" + key + "', where integers >= 0 are allowed");
    }
    values.push_back(value.get<std::uint64_t>());
  }
  return values;
}

TensorEntry entry_of(const std::string& name, const json& tensor, std::uint64_t data_bytes) {
  if (!tensor.is_object()) throw bad("tensor '" + name + "' is not described by a JSON object");
  const auto dtype = tensor.find("dtype");
  if (dtype == tensor.end() || !dtype->is_string()) throw bad("tensor '" + name + "' has no 'dtype'");
  TensorEntry entry{dtype->get<std::string>(), {}, 0, 0};
  std::uint64_t bytes = element_bytes(entry.dtype);
  if (bytes == 0) throw bad("tensor '" + name + "' has the unknown dtype '" + entry.dtype + "'");
  bool overflow = false;
  for (const std::uint64_t extent : integers_of(tensor, "shape", name)) {
    overflow |= extent > INT64_MAX || __builtin_mul_overflow(bytes, extent, &bytes);
    entry.shape.push_back(static_cast<std::int64_t>(extent));
  }
  if (overflow) throw bad("tensor '" + name + "' has a shape too large for 64 bits");
  const std::vector<std::uint64_t> offsets = integers_of(tensor, "data_offsets", name);
  if (offsets.size() != 2) throw bad("tensor '" + name + "' has not two data_offsets");
  entry.begin = offsets[0];
  entry.end = offsets[1];
  const std::string range =
      "data_offsets [" + std::to_string(entry.begin) + ", " + std::to_string(entry.end) + "]";
  if (entry.begin > entry.end) throw bad("tensor '" + name + "' has " + range + " in the wrong order");
  if (entry.end > data_bytes) {
    throw bad("tensor '" + name + "' has " + range + ", past the " + std::to_string(data_bytes) +
              " bytes of data in the file; is the file truncated?");
  }
  if (entry.end - entry.begin != bytes) {
    throw bad("tensor '" + name + "' has " + range + ", but its shape and dtype take " +
              std::to_string(bytes) + " bytes");
  }
  return entry;
}

/// Tensors have to follow each other without gap or overlap, up to the end of the file.
void check_coverage(const Header& header, std::uint64_t data_bytes) {
  std::vector<const std::pair<const std::string, TensorEntry>*> in_order;
  for (const auto& named : header.tensors) in_order.push_back(&named);
  std::sort(in_order.begin(), in_order.end(), [](const auto* a, const auto* b) {
    return std::pair(a->second.begin, a->second.end) < std::pair(b->second.begin, b->second.end);
  });
  std::uint64_t position = 0;
  for (const auto* named : in_order) {
    if (named->second.begin != position) {
      throw bad(
          "tensor '" + named->first + "' begins at byte " + std::to_string(named->second.begin) +
          (named->second.begin < position ? ", overlapping the one before it" : ", leaving a gap before it") +
          ", which ends at " + std::to_string(position));
    }
    position = named->second.end;
  }
  if (position != data_bytes) {
    throw bad("the tensors end at byte " + std::to_string(position) + " of the data, but the file holds " +
              std::to_string(data_bytes));
  }
}

Metadata metadata_of(const json& object) {
  Metadata metadata;
  if (!object.is_object()) throw bad("'__metadata__' is not a JSON object");
  for (const auto& [key, value] : object.items()) {
    if (!value.is_string()) throw bad("'__metadata__' holds '" + key + "', which is not a string");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

Failure cannot_open(const std::string& path, const std::string& why) {
  return bad("can't read " + path + ": " + why);
}

std::string encoded_header(const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  auto& entries = header.get_ref<nlohmann::ordered_json::object_t&>();
  std::uint64_t position = 0;
  for (const NamedTensor& tensor : tensors) {
    const std::uint64_t end = position + tensor.bytes.size();
    entries.emplace_back(tensor.name, nlohmann::ordered_json{{"dtype", tensor.dtype},
                                                             {"shape", tensor.shape},
                                                             {"data_offsets", {position, end}}});
    position = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');  // data starts aligned to 8
  return text;
}

/// What a file is until all of it is written.
std::string partial_of(const std::string& path) { return path + ".partial"; }

Failure cannot_write(const std::string& path) {
  return {Exit::other, "can't write " + path + ": " + std::strerror(errno)};
}

void write_bytes(int file, const void* bytes, std::size_t count, const std::string& path) {
  const char* at = static_cast<const char*>(bytes);
  while (count > 0) {
    const ssize_t written = ::write(file, at, count);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) throw cannot_write(path);
    at += written;
    count -= static_cast<std::size_t>(written);
  }
}

}  // namespace

Header parse_header(std::string_view text, std::uint64_t data_bytes) {
  const json object = parse_strictly(text);
  if (!object.is_object()) throw bad("the header is not a JSON object");
  Header header;
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") {
      header.metadata = metadata_of(value);
    } else {
      header.tensors.emplace(name, entry_of(name, value, data_bytes));
    }
  }
  check_coverage(header, data_bytes);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    throw cannot_open(path, error ? error.message() : "not a regular file");
  }
  const std::uint64_t file_bytes = std::filesystem::file_size(path, error);
  std::ifstream in(path, std::ios::binary);
  if (error || !in) throw cannot_open(path, std::strerror(errno));
  try {
    if (file_bytes < length_bytes)
      throw bad(std::to_string(file_bytes) + " bytes are too few for a safetensors file");
    std::array<unsigned char, length_bytes> length{};
    in.read(reinterpret_cast<char*>(length.data()), length.size());
    std::uint64_t header_bytes = 0;
    for (std::size_t i = 0; i < length.size(); ++i) header_bytes |= std::uint64_t{length[i]} << (8 * i);
    if (header_bytes > max_header_bytes || header_bytes > file_bytes - length_bytes) {
      throw bad("the header claims " + std::to_string(header_bytes) + " bytes in a file of " +
                std::to_string(file_bytes) + "; not a safetensors file, or truncated");
    }
    std::string text(header_bytes, '\0');
    in.read(text.data(), static_cast<std::streamsize>(text.size()));
    if (!in) throw bad("the header can't be read to its end");
    data_offset_ = length_bytes + header_bytes;
    header_ = parse_header(text, file_bytes - data_offset_);
  } catch (const Failure& failure) {
    throw Failure(failure.code, path + ": " + failure.what());
  }
}

std::vector<std::byte> SafetensorsFile::read(const TensorEntry& entry) const {
  std::vector<std::byte> bytes(entry.end - entry.begin);
  std::ifstream in(path_, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(data_offset_ + entry.begin));
  in.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  if (!in) throw cannot_open(path_, "it became shorter while it was read");
  return bytes;
}

void check_output(const std::string& input, const std::string& output) {
  std::error_code error;
  if (std::filesystem::equivalent(input, output, error))
    throw Failure(Exit::usage, "-o " + output + " is the input file; choose another");
  if (std::filesystem::equivalent(input, partial_of(output), error)) {
    throw Failure(Exit::usage, "-o " + output + " is written as " + partial_of(output) +
                                   " first, which is the input file; choose another");
  }
}

SafetensorsWriter::SafetensorsWriter(const std::string& path) : path_(path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  const bool replaceable = !std::filesystem::exists(status) || std::filesystem::is_regular_file(status);
  if (replaceable) partial_ = partial_of(path);
  // What stands there is of a run that was interrupted, or a link that must not be followed.
  if (replaceable) ::unlink(partial_.c_str());
  const int how = O_WRONLY | O_CLOEXEC | (replaceable ? O_CREAT | O_EXCL | O_NOFOLLOW : 0);
  file_ = ::open((replaceable ? partial_ : path_).c_str(), how, 0666);
  if (file_ < 0) throw cannot_write(path_);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (file_ >= 0) ::close(file_);
  if (!partial_.empty()) ::unlink(partial_.c_str());
}

void SafetensorsWriter::write(const std::vector<NamedTensor>& tensors, const Metadata& metadata) {
  const std::string header = encoded_header(tensors, metadata);
  std::array<char, length_bytes> length{};
  for (std::size_t i = 0; i < length.size(); ++i) length[i] = static_cast<char>(header.size() >> (8 * i));
  write_bytes(file_, length.data(), length.size(), path_);
  write_bytes(file_, header.data(), header.size(), path_);
  for (const NamedTensor& tensor : tensors)
    write_bytes(file_, tensor.bytes.data(), tensor.bytes.size(), path_);
  if (::close(std::exchange(file_, -1)) != 0) throw cannot_write(path_);
  if (partial_.empty()) return;
  if (std::rename(partial_.c_str(), path_.c_str()) != 0) throw cannot_write(path_);
  partial_.clear();
}

void write_safetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                       const Metadata& metadata) {
  SafetensorsWriter(path).write(tensors, metadata);
}

bool is_tensor_name(const std::string& name) {
  try {
    static_cast<void>(json(name).dump());
    return name != "__metadata__";
  } catch (const json::exception&) {
    return false;
  }
}

}  // namespace tandem::cli
