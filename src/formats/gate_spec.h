// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace nibble {

// The gated activation of an FFN: gate * opening(gate) * (up + up_offset). A `limit` above 0 bounds
// gate from above and up on both sides. With `alone` there is no up, and 1 takes the place of the
// last factor.
struct GateSpec {
  // kSigmoid  sigmoid(gate * (linear + cubic * gate^2)): SiLU (Shazeer 2020) with {1, 0}, and GELU
  //           in its tanh form (Hendrycks and Gimpel 2016) with kGelu, since (1 + tanh(z)) / 2 =
  //           sigmoid(2 z)
  // kNormal   the share of normal numbers below gate: GELU itself
  // kStep     1 above 0, else 0: ReLU
  enum class Opening : uint8_t { kSigmoid, kNormal, kStep };

  float linear = 1, cubic = 0, limit = 0, up_offset = 0;
  Opening opening = Opening::kSigmoid;
  bool alone = false;

  // Returns whether the gate is differentiated (DenseMath::GateGradients).
  bool has_gradients() const { return opening == Opening::kSigmoid && linear_in_up(); }
  // Returns whether factors of up may be moved behind the gate.
  bool linear_in_up() const { return limit == 0 && up_offset == 0 && !alone; }
};
inline constexpr GateSpec kSilu = {}, kGelu = {1.5957691216f, 0.0713548162726f};
inline constexpr GateSpec kNormalGelu = {.opening = GateSpec::Opening::kNormal};
inline constexpr GateSpec kRelu = {.opening = GateSpec::Opening::kStep};

}  // namespace nibble
