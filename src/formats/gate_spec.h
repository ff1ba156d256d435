// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace nibble {

// How gate opens up in an FFN: gate * sigmoid(gate * (linear + cubic * gate^2)) * (up + up_offset),
// where `limit` is above 0 with gate at most that and up within it on either side. That is SiLU
// (Shazeer 2020) with {1, 0}, and GELU in its tanh form (Hendrycks and Gimpel 2016) with kGelu,
// since (1 + tanh(z)) / 2 = sigmoid(2 z).
struct GateSpec {
  float linear = 1, cubic = 0, limit = 0, up_offset = 0;

  // Whether factors of up may be moved behind the gate.
  bool linear_in_up() const { return limit == 0 && up_offset == 0; }
};
inline constexpr GateSpec kSilu = {}, kGelu = {1.5957691216f, 0.0713548162726f};

}  // namespace nibble
