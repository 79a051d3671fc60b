#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "cpu/quantize.h"
#include "tests/support/quantize_case.h"

namespace tandem::test {
namespace {

/// What lies how many of the format's numbers away from 0.
int place_of(tandem_dtype dtype, std::uint8_t element) {
  if (dtype == TANDEM_INT8) return static_cast<std::int8_t>(element);
  return element < 0x80 ? element : -(element & 0x7f);
}

/// Of `after`, guards included, all but a thousandth are the same, and those are neighbours.
bool are_close(const HostTensor& after, const HostTensor& expected, tandem_dtype dtype) {
  const auto own = after.storage(), known = expected.storage();
  std::size_t differing = 0;
  for (std::size_t i = 0; i < own.size(); ++i) {
    const int distance = place_of(dtype, std::to_integer<std::uint8_t>(own[i])) -
                         place_of(dtype, std::to_integer<std::uint8_t>(known[i]));
    if (std::abs(distance) > 1) return false;
    differing += own[i] != known[i] ? 1 : 0;
  }
  return 1000 * differing <= own.size();
}

bool scales_are_close(const HostTensor& after, const HostTensor& expected) {
  const std::vector<double> own = after.values(), known = expected.values();
  for (std::size_t i = 0; i < own.size(); ++i)
    if (!(std::abs(own[i] - known[i]) <= 1e-6 * std::abs(known[i]))) return false;
  return after.guards_intact();
}

/// The squared error of row [b, s, h].
double squared_error(const QuantizeTensors& t, std::int64_t b, std::int64_t s, std::int64_t h,
                     const std::vector<double>& exact) {
  double sum = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    const double error = t.quantised(b, s, h, static_cast<std::int64_t>(i)) - exact[i];
    sum += error * error;
  }
  return sum;
}

bool is_choice(double scale, float least) {
  for (int i = 0; i < core::scale_choices; ++i)
    if (scale == least * core::scale_choice(i)) return true;
  return false;
}

/// Whether each scale is one of those that may be chosen, and almost all are as good as the expected ones:
/// kernels add up squares in fp16, where the smallest are lost.
bool choices_are_good(const QuantizeTensors& after, const QuantizeTensors& expected) {
  const QuantizeCase& c = after.setup;
  std::int64_t worse = 0;
  for (std::int64_t b = 0; b < c.batch; ++b)
    for (std::int64_t s = 0; s < c.length; ++s)
      for (std::int64_t h = 0; h < c.heads; ++h) {
        const double own = after.scale.at(b, s, h, 0), known = expected.scale.at(b, s, h, 0);
        if (own == known) continue;
        if (!is_choice(own, static_cast<float>(std::exp2(std::ilogb(known))))) return false;
        const std::vector<double> exact = rotated_row(after, b, s, h);
        const double best = squared_error(expected, b, s, h, exact);
        worse += squared_error(after, b, s, h, exact) <= 1.02 * best ? 0 : 1;
      }
  return after.scale.guards_intact() && worse <= 2 + c.batch * c.length * c.heads / 50;
}

/// Where outputs differ, but for the choice of scales.
std::string difference(const QuantizeTensors& after, const QuantizeTensors& expected) {
  const auto same = [](const HostTensor& a, const HostTensor& b) {
    return std::ranges::equal(a.storage(), b.storage());  // guards too
  };
  std::string failure;
  const bool by_products = is_by_products(after.setup);
  if (by_products ? !are_close(after.out, expected.out, after.setup.to) : !same(after.out, expected.out))
    failure += "out differs; ";
  if (by_products && after.setup.to == TANDEM_INT8 ? !scales_are_close(after.scale, expected.scale)
                                                   : !same(after.scale, expected.scale))
    failure += "scale differs; ";
  if (!after.q_dot_k_shift.guards_intact()) failure += "q_dot_k_shift is written outside; ";
  if (after.setup.k_shift_heads == 0) return failure;
  const std::vector<double> dots = after.q_dot_k_shift.values(), known = expected.q_dot_k_shift.values();
  for (std::size_t i = 0; i < dots.size(); ++i)  // sums in another order
    if (!(std::abs(dots[i] - known[i]) <= 2e-4 + 1e-5 * std::abs(known[i]))) {
      failure += "q_dot_k_shift differs; ";
      break;
    }
  return failure;
}

/// What the CPU writes by the scales that `after` has.
QuantizeTensors by_scales_of(const QuantizeTensors& after) {
  QuantizeTensors t(after.setup);
  std::ranges::copy(after.scale.storage(), t.scale.storage().begin());
  core::QuantizeProblem problem = t.problem();
  problem.best_scale = false, problem.scale_given = true;
  cpu::quantize(problem);
  return t;
}

}  // namespace

std::string quantize_failure(const QuantizeTensors& after, const QuantizeTensors& expected) {
  if (!after.setup.best_scale) return difference(after, expected);
  return difference(after, by_scales_of(after)) +
         (choices_are_good(after, expected) ? "" : "scales are not the best; ");
}

}  // namespace tandem::test
