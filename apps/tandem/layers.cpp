#include "layers.h"

#include <algorithm>

#include "element.h"
#include "failure.h"

namespace tandem::cli {
namespace {

constexpr std::string_view placeholder = "{}";

bool has_placeholder(const std::string& pattern) { return pattern.find(placeholder) != std::string::npos; }

/// "some, of, the, names" for messages.
std::string names_in(const SafetensorsFile& file) {
  std::string text;
  int count = 0;
  for (const auto& named : file.header().tensors) {
    if (++count > 12) return text + ", ...";
    text += (count == 1 ? "" : ", ") + named.first;
  }
  return text.empty() ? "no tensors" : text;
}

const TensorEntry& entry_of(const SafetensorsFile& file, const std::string& name) {
  const auto found = file.header().tensors.find(name);
  if (found == file.header().tensors.end()) {
    throw Failure(Exit::bad_input, file.path() + " has no tensor '" + name + "'; it holds " + names_in(file) +
                                       ". Name yours with --q, --k, --v and --expect");
  }
  return found->second;
}

/// What stands for {} in `name`, or "" if the pattern does not fit.
std::string layer_number(const std::string& name, const std::string& pattern) {
  const std::size_t at = pattern.find(placeholder);
  const std::string_view before = std::string_view(pattern).substr(0, at);
  const std::string_view after = std::string_view(pattern).substr(at + placeholder.size());
  if (name.size() <= before.size() + after.size() || !name.starts_with(before) || !name.ends_with(after))
    return "";
  const std::string number = name.substr(at, name.size() - before.size() - after.size());
  return number.find_first_not_of("0123456789") == std::string::npos ? number : "";
}

}  // namespace

std::string name_in_layer(const std::string& pattern, const std::string& number) {
  const std::size_t at = pattern.find(placeholder);
  return at == std::string::npos ? pattern : std::string(pattern).replace(at, placeholder.size(), number);
}

std::vector<std::string> find_layers(const SafetensorsFile& file, const LayerNames& names) {
  std::vector<std::string> patterns{names.q, names.k, names.v};
  if (!names.expect.empty()) patterns.push_back(names.expect);
  std::vector<std::string> layers;
  if (has_placeholder(names.q)) {
    for (const auto& named : file.header().tensors) {
      const std::string number = layer_number(named.first, names.q);
      if (!number.empty()) layers.push_back(number);
    }
    // As numbers of any length, without converting them.
    std::sort(layers.begin(), layers.end(), [](const std::string& a, const std::string& b) {
      return std::pair(a.size(), a) < std::pair(b.size(), b);
    });
  } else {
    layers.push_back("");
  }
  for (const std::string& pattern : patterns) {
    if (has_placeholder(pattern) != has_placeholder(names.q)) {
      throw Failure(Exit::usage,
                    "'" + names.q + "' and '" + pattern +
                        "' do not go together: put {} for the layer's number in all names, or in none");
    }
    for (const std::string& layer : layers) entry_of(file, name_in_layer(pattern, layer));
  }
  if (layers.empty()) {
    throw Failure(Exit::bad_input,
                  file.path() + " has no tensor that fits '" + names.q + "'; it holds " + names_in(file));
  }
  return layers;
}

void check_distinct(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return;
  throw Failure(Exit::usage,
                "the output would have two tensors '" + *twice + "'; choose names that differ in all layers");
}

tandem_dtype stored_dtype(const SafetensorsFile& file, const std::string& name) {
  const std::string& dtype = entry_of(file, name).dtype;
  if (dtype == "BF16") return TANDEM_BF16;
  if (dtype == "F16") return TANDEM_FP16;
  if (dtype == "F32") return TANDEM_FP32;
  throw Failure(Exit::bad_input,
                file.path() + ": tensor '" + name + "' is " + dtype + "; attention takes BF16, F16 and F32");
}

HostTensor read_tensor(const SafetensorsFile& file, const std::string& name, const Layout& layout) {
  const TensorEntry& entry = entry_of(file, name);
  const tandem_dtype dtype = stored_dtype(file, name);
  if (entry.shape.size() != 4) {
    throw Failure(Exit::bad_input, file.path() + ": tensor '" + name + "' has " +
                                       std::to_string(entry.shape.size()) +
                                       " dimensions; attention takes 4, in the order that --layout names");
  }
  Shape shape{};
  for (std::size_t i = 0; i < 4; ++i) shape[static_cast<std::size_t>(layout.order[i])] = entry.shape[i];
  try {
    HostTensor tensor = HostTensor::poisoned(dtype, shape, layout);
    tensor.storage = file.read(entry);
    return tensor;
  } catch (const Failure& failure) {  // a shape with a 0 may be too large beside it
    throw Failure(Exit::bad_input, file.path() + ": tensor '" + name + "': " + failure.what());
  }
}

StoredTensor stored(const std::string& name, const HostTensor& tensor, const Layout& layout, bool columns) {
  const char* dtype = tensor.dtype == TANDEM_BF16 ? "BF16" : tensor.dtype == TANDEM_FP16 ? "F16" : "F32";
  StoredTensor result{name, dtype, {}, {}};
  const std::size_t dimensions = columns ? 4 : 3;
  for (std::size_t i = 0; i < dimensions; ++i) {
    result.shape.push_back(tensor.shape[static_cast<std::size_t>(layout.order[i])]);
  }
  result.bytes = tensor.storage;
  return result;
}

}  // namespace tandem::cli
