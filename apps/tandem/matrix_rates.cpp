// tandem bench --wgmma.
#include "bench/hopper/matrix_rates.h"

#include <ostream>

#include "bench.h"
#include "report.h"

namespace tandem::cli {
namespace {

using bench::MatrixRate;

constexpr const char* csv_header = "kind,dtype,shape,form,sum,warpgroups,ms,rate,commit,clock\n";

std::string csv_row(const MatrixRate& rate, const BenchOptions& options) {
  return rate.kind + "," + rate.dtype + "," + rate.shape + "," + rate.form + "," + rate.sum + "," +
         std::to_string(rate.warpgroups) + "," + fixed(rate.ms, 4) + "," + general(rate.tflops, 4) + "," +
         options.commit + "," + options.clock;
}

}  // namespace

Exit run_matrix_rates(const BenchOptions& options) {
  if (const std::string why = bench::why_no_matrix_rates(); !why.empty()) {
    throw Failure(Exit::unavailable, "--wgmma: " + why);
  }
  CsvFile csv(options.csv, csv_header);
  Progress progress(bench::matrix_rates());
  const std::vector<MatrixRate> rates = bench::measure_matrix_rates(
      [&](std::size_t index, const std::string& what) { progress.show(index, what); });
  progress.clear();
  Table table({"instruction", "dtype", "shape", "form", "sum", "warpgroups", "ms", "TFLOP/s"});
  for (const MatrixRate& rate : rates) {
    table.add({rate.kind, rate.dtype, rate.shape, rate.form, rate.sum, std::to_string(rate.warpgroups),
               fixed(rate.ms, 4), general(rate.tflops, 4)});
    if (csv.wanted()) csv.stream() << csv_row(rate, options) << "\n";
  }
  table.print(csv.table_stream());
  csv.finish();
  return Exit::ok;
}

}  // namespace tandem::cli
