// SPDX-License-Identifier: Apache-2.0
// Hadamard matrices of the orders 4n <= 188 that neither Sylvester's nor Paley's construction
// reaches: 92, 116, 156, 172 and 188. The array of Goethals and Seidel (A skew Hadamard matrix of
// order 36, 1970) assembles each from stored circulants with A A^T + B B^T + C C^T + D D^T = 4n I.
#pragma once

#include <cstdint>
#include <vector>

namespace nibble {

bool IsStoredHadamard(int64_t order);

// [order, order], entries +1 and -1; IsStoredHadamard(order) must hold.
std::vector<int8_t> StoredHadamard(int64_t order);

}  // namespace nibble
