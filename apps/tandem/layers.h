// The attention layers in a safetensors file: which tensors belong together, and reading them.
#pragma once

#include <string>
#include <vector>

#include "safetensors.h"
#include "tensor.h"

namespace tandem::cli {

/// Names of tensors, with {} for the number of the layer in all of them or in none.
struct LayerNames {
  std::string q, k, v;
  std::string expect;  ///< "" if nothing is expected
};

/// The name of `pattern` in one layer; `number` is ignored by a pattern without {}.
std::string name_in_layer(const std::string& pattern, const std::string& number);

/// Numbers of the layers in the file, ascending, or one "" where the names have no {}. Throws a usage Failure
/// if only some names have {}, and Failure(Exit::bad_input) if a layer lacks one of the tensors.
std::vector<std::string> find_layers(const SafetensorsFile& file, const LayerNames& names);

/// Names of tensors that an output would have twice, which no reader takes, are a usage Failure.
void check_distinct(std::vector<std::string> names);

/// Element type of a tensor in the file. Throws Failure(Exit::bad_input) if it is not there, or not one of
/// F32, F16 and BF16.
tandem_dtype stored_dtype(const SafetensorsFile& file, const std::string& name);

/// Reads a four-dimensional tensor, whose dimensions lie in the file as `layout` orders them. Throws
/// Failure(Exit::bad_input).
HostTensor read_tensor(const SafetensorsFile& file, const std::string& name, const Layout& layout);

/// A tensor on its way into a file.
struct StoredTensor {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;
};

/// `tensor` lies in memory as `layout` orders it. `columns` false drops head dim (for lse).
StoredTensor stored(const std::string& name, const HostTensor& tensor, const Layout& layout, bool columns);

}  // namespace tandem::cli
