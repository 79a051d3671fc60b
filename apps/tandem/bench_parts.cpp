#include <algorithm>
#include <cstring>
#include <iostream>
#include <random>

#include "bench.h"
#include "element.h"

namespace tandem::cli {

CsvFile::CsvFile(const std::string& path, const char* header) : path_(path) {
  if (!wanted()) return;
  if (path_ != "-") file_.open(path_);
  if (!stream()) throw Failure(Exit::other, "can't write " + path_);
  stream() << header;
}

std::ostream& CsvFile::stream() { return path_ == "-" ? std::cout : file_; }

std::ostream& CsvFile::table_stream() const { return path_ == "-" ? std::cerr : std::cout; }

void CsvFile::finish() {
  if (wanted() && !stream().flush()) throw Failure(Exit::other, "can't write all of " + path_);
}

HostTensor normal_tensor(tandem_dtype dtype, const Shape& shape) {
  constexpr std::size_t period = 1'000'003;
  std::mt19937_64 random(1);
  std::normal_distribution<float> normal;
  HostTensor tensor = HostTensor::poisoned(dtype, shape, Layout::bshd());
  std::vector<float> block(std::min(period, tensor.storage.size() / size_of(dtype)));
  for (float& value : block) value = normal(random);
  if (block.empty()) return tensor;
  encode(dtype, block, tensor.storage.data());
  for (std::size_t filled = block.size() * size_of(dtype); filled < tensor.storage.size();) {
    const std::size_t more = std::min(filled, tensor.storage.size() - filled);
    std::memcpy(tensor.storage.data() + filled, tensor.storage.data(), more);
    filled += more;
  }
  return tensor;
}

}  // namespace tandem::cli
