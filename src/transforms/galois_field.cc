// SPDX-License-Identifier: Apache-2.0
#include "transforms/galois_field.h"

#include "base/error.h"

namespace nibble {
namespace {

int64_t Power(int64_t base, int exponent) {
  int64_t result = 1;
  for (int i = 0; i < exponent; ++i) result *= base;
  return result;
}

// a + factor * b, digit by digit modulo p.
int64_t AddMultiple(int64_t a, int64_t factor, int64_t b, PrimePower field) {
  int64_t result = 0;
  for (int64_t place = 1, i = 0; i < field.exponent; ++i, place *= field.prime) {
    const int64_t digit = a / place % field.prime + factor * (b / place % field.prime);
    result += digit % field.prime * place;
  }
  return result;
}

// +1 for squares, -1 for the other nonzero elements, 0 for 0. The powers of x modulo a primitive
// polynomial visit every nonzero element, the even powers being the squares. A polynomial under
// which they do so is primitive, because then every nonzero element has an inverse.
std::vector<int8_t> QuadraticCharacter(PrimePower field) {
  const int64_t q = Power(field.prime, field.exponent);
  const int64_t top_place = q / field.prime;
  for (int64_t polynomial = 1; polynomial < q; ++polynomial) {
    std::vector<int8_t> character(static_cast<size_t>(q), 0);
    int64_t power = 0;
    for (int64_t element = 1; element != 0 && character[element] == 0; ++power) {
      character[element] = power % 2 == 0 ? 1 : -1;
      const int64_t top = element / top_place;  // x^k = -polynomial
      element =
          AddMultiple(element % top_place * field.prime, field.prime - top, polynomial, field);
    }
    if (power == q - 1) return character;
  }
  NIBBLE_CHECK(false, "GF({}^{}) has no primitive polynomial", field.prime, field.exponent);
  return {};
}

}  // namespace

std::optional<PrimePower> AsPrimePower(int64_t q) {
  if (q < 2) return std::nullopt;
  int64_t prime = 2;
  while (q % prime != 0 && prime * prime <= q) ++prime;
  if (q % prime != 0) prime = q;
  int exponent = 0;
  for (; q % prime == 0; q /= prime) ++exponent;
  if (q != 1) return std::nullopt;
  return PrimePower{prime, exponent};
}

std::vector<int8_t> JacobsthalMatrix(PrimePower field) {
  const int64_t q = Power(field.prime, field.exponent);
  NIBBLE_CHECK(q % 2 == 1, "q = {}", q);
  const std::vector<int8_t> character = QuadraticCharacter(field);
  std::vector<int8_t> matrix;
  matrix.reserve(static_cast<size_t>(q * q));
  for (int64_t a = 0; a < q; ++a) {
    for (int64_t b = 0; b < q; ++b) {
      matrix.push_back(character[AddMultiple(a, field.prime - 1, b, field)]);
    }
  }
  return matrix;
}

std::vector<int8_t> BorderedJacobsthal(PrimePower field, int8_t border) {
  const std::vector<int8_t> inside = JacobsthalMatrix(field);
  const int64_t q = Power(field.prime, field.exponent);
  std::vector<int8_t> matrix(static_cast<size_t>(q + 1), 1);
  matrix[0] = 0;
  for (int64_t i = 0; i < q; ++i) {
    matrix.push_back(border);
    matrix.insert(matrix.end(), inside.begin() + i * q, inside.begin() + (i + 1) * q);
  }
  return matrix;
}

}  // namespace nibble
