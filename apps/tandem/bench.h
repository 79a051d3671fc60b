// What the benchmarks of tandem bench share.
#pragma once

#include <fstream>
#include <iosfwd>
#include <string>
#include <vector>

#include "call.h"
#include "options.h"

namespace tandem::cli {

struct BenchOptions {
  std::vector<std::int64_t> batch{1}, heads{16}, kv_heads, seqlen{2048}, seqlen_k, head_dim{128};
  std::vector<std::string> mask{"full"}, dtype{"bf16"};
  std::string backend = "auto", grid, csv, commit = built_commit(), clock;
  StudyOptions study;
  TimingOptions timing;
  bool wgmma = false, decode = false, backward = false, deterministic = false, plan = false, host = false;
  std::vector<std::int64_t> cache{8192}, page_size{0}, tokens{1}, split_size{0};
  std::vector<std::string> kernel{"auto"};
};

/// Where --csv points. Throws Failure(Exit::other) where it can't be written.
class CsvFile {
 public:
  /// "": none; "-": stdout.
  CsvFile(const std::string& path, const char* header);
  bool wanted() const { return !path_.empty(); }
  std::ostream& stream();
  /// Where the table goes beside it.
  std::ostream& table_stream() const;
  void finish();

 private:
  std::string path_;
  std::ofstream file_;
};

/// Normally distributed values. A block of prime length repeats, because drawing hundreds of millions of them
/// would take longer than the benchmark.
HostTensor normal_tensor(tandem_dtype dtype, const Shape& shape);

/// tandem bench --decode.
Exit run_decode_bench(const BenchOptions& options);
/// tandem bench --wgmma: how fast the matrix units are, instruction by instruction. Throws
/// Failure(Exit::unavailable) where there is no Hopper GPU.
Exit run_matrix_rates(const BenchOptions& options);

}  // namespace tandem::cli
