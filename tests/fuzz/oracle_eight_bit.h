// What tandem.h says of elements of 8 bits: how they are rounded, and their scales.
#pragma once

#include <initializer_list>

#include "tests/fuzz/oracle_memory.h"

namespace tandem::fuzz {

constexpr double largest_e4m3 = 448, largest_int8 = 127;

/// The largest element of a dtype of 8 bits.
double largest_element(tandem_dtype dtype);

/// Whether `element`, of a tensor of 8 bits, is `quotient` rounded to the nearest, beyond the largest to
/// that. `error`: how far the quotient itself may be off.
bool is_rounded(tandem_dtype dtype, double element, double quotient, double error);

/// The same of a quotient that is exact: of two as near the even one.
double round_to_even(tandem_dtype dtype, double quotient);

/// Of e4m3: the least power of two that brings a magnitude > 0 to 448 or less.
double scale_for(double magnitude);

/// Whether this is the scale of elements whose largest magnitude, give or take `error`, is `largest`. Of
/// integers it maps that to 127.
bool is_scale_for(tandem_dtype dtype, double scale, double largest, double error);

/// H diag(signs) x / sqrt(d), as tandem_quantize has it.
Numbers times_hadamard(const Numbers& x, std::uint64_t seed);

/// The largest magnitude of a row.
double largest_of(const Numbers& row);

/// The scale of a tensor of them at [b, s, h], of which dimensions of size 1 are shared; 1 without data.
double scale_at(const tandem_tensor& scales, std::int64_t b, std::int64_t s, std::int64_t h);

/// Where a row of values by column has a key.
std::int64_t place_of_key(std::int64_t key);

/// The vector that a shift has for a row of entry b and head h of `heads`, each of which may be shared.
Numbers shift_at(const tandem_tensor& shift, std::int64_t b, std::int64_t h, std::int64_t heads);

/// Whether a shift of a tensor's rows is what tandem.h allows; `any_divisor`: of its heads, or else all or 1.
bool shift_holds(const tandem_tensor& shift, const tandem_tensor& of, bool any_divisor);

/// Whether there is a number of fp32 for each row of q.
bool dots_hold(const tandem_tensor& dots, const tandem_tensor& q);

/// Whether scales of blocks of a tensor's tokens are what tandem.h allows. `heads`: how many there may be,
/// beside 1.
bool scales_hold(const tandem_tensor& scales, std::int64_t block, const tandem_tensor& tokens,
                 std::initializer_list<std::int64_t> heads);

}  // namespace tandem::fuzz
