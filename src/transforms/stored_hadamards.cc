// SPDX-License-Identifier: Apache-2.0
#include "transforms/stored_hadamards.h"

#include <algorithm>
#include <array>

#include "base/error.h"

namespace nibble {
namespace {

// Bit j of a word is set where entry j of that circulant's first row is -1.
struct Circulants {
  int64_t n;
  std::array<uint64_t, 4> rows;
};

// n = 23, 29, 39: symmetric (Williamson) quadruples, by exhaustive search with the power spectrum
// bound. n = 43: a Williamson quadruple whose rows are constant on the orbits of {1, 6, 36} in
// Z_43, by exhaustive search.
//
// n = 47, where no Williamson quadruple exists: (P, R), (P, -R), (Q, S), (Q, -S) of base sequences
// of lengths 31, 31, 16, 16, which come from Turyn-type sequences of length 16 in Best, Djokovic,
// Kharaghani and Ramp, "Turyn-type sequences: classification, conjectures, and computations"
// (2013).
constexpr std::array<Circulants, 5> kStored = {{
    {23, {0x6a0056, 0x6c7e36, 0x1cc338, 0x6542a6}},
    {29, {0x91c0e24, 0x1683305a, 0xa7b3794, 0xa1bf614}},
    {39, {0x3f6b24d6fc, 0x3b3d42bcdc, 0x24efa5f724, 0x5f463c62fa}},
    {43, {0x4f4c932f20, 0x1cd53fcab38, 0x285b198da14, 0x4f85108a1f2}},
    {47, {0x6603530cab0, 0x799fb530cab0, 0x3ed84acfcab0, 0x4127cacfcab0}},
}};

const Circulants* Find(int64_t order) {
  const auto* it = std::ranges::find(kStored, order, [](const Circulants& c) { return 4 * c.n; });
  return it == kStored.end() ? nullptr : it;
}

// One block of the array: a circulant or its transpose, possibly with its columns reversed (R).
struct Block {
  int circulant;
  int sign;
  bool transposed;
  bool reversed;
};

// clang-format off
constexpr Block kGoethalsSeidel[4][4] = {
    {{0, +1, false, false}, {1, +1, false, true}, {2, +1, false, true}, {3, +1, false, true}},
    {{1, -1, false, true}, {0, +1, false, false}, {3, +1, true, true}, {2, -1, true, true}},
    {{2, -1, false, true}, {3, -1, true, true}, {0, +1, false, false}, {1, +1, true, true}},
    {{3, -1, false, true}, {2, +1, true, true}, {1, -1, true, true}, {0, +1, false, false}},
};
// clang-format on

}  // namespace

bool IsStoredHadamard(int64_t order) {
  return Find(order) != nullptr;
}

std::vector<int8_t> StoredHadamard(int64_t order) {
  const Circulants* stored = Find(order);
  NIBBLE_CHECK(stored != nullptr, "order {}", order);
  const int64_t n = stored->n;
  std::vector<int8_t> matrix;
  matrix.reserve(static_cast<size_t>(order * order));
  for (int64_t row = 0; row < order; ++row) {
    for (int64_t col = 0; col < order; ++col) {
      const Block& block = kGoethalsSeidel[row / n][col / n];
      const int64_t i = row % n;
      const int64_t j = block.reversed ? n - 1 - col % n : col % n;
      const int64_t shift = block.transposed ? (i - j + n) % n : (j - i + n) % n;
      const bool minus = (stored->rows[block.circulant] >> shift & 1) != 0;
      matrix.push_back(static_cast<int8_t>(minus ? -block.sign : block.sign));
    }
  }
  return matrix;
}

}  // namespace nibble
