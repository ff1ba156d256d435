// SPDX-License-Identifier: Apache-2.0
#include "transforms/rope.h"

#include <cmath>
#include <numbers>
#include <vector>

#include "base/thread_pool.h"

namespace nibble {
namespace {

void Validate(const RopeSpec& spec) {
  const bool llama3 = spec.type == "llama3";
  if (!llama3 && spec.type != "default" && spec.type != "linear") {
    Fail("rope type \"{}\" is not supported; known are default, linear and llama3", spec.type);
  }
  if (spec.head_dim < 2 || spec.head_dim % 2 != 0) {
    Fail("rope: head_dim = {} must be even and positive", spec.head_dim);
  }
  if (!(spec.theta > 0) || !std::isfinite(spec.theta)) {
    Fail("rope: theta = {} must be positive", spec.theta);
  }
  if (spec.type != "default" && (!(spec.factor > 0) || !std::isfinite(spec.factor))) {
    Fail("rope: factor = {} must be positive", spec.factor);
  }
  if (llama3 && (!(spec.low_freq_factor > 0) || !(spec.high_freq_factor > spec.low_freq_factor) ||
                 !std::isfinite(spec.high_freq_factor) || spec.original_context <= 0)) {
    Fail(
        "rope: llama3 needs 0 < low_freq_factor ({}) < high_freq_factor ({}) and a positive "
        "original context ({})",
        spec.low_freq_factor, spec.high_freq_factor, spec.original_context);
  }
}

// Llama 3.1's scaling of one frequency.
float ScaleLlama3(const RopeSpec& spec, float frequency) {
  const auto context = static_cast<double>(spec.original_context);
  const auto factor = static_cast<float>(spec.factor);
  const float wavelength = static_cast<float>(2 * std::numbers::pi) / frequency;  // tokens
  if (wavelength > static_cast<float>(context / spec.low_freq_factor)) return frequency / factor;
  if (wavelength < static_cast<float>(context / spec.high_freq_factor)) return frequency;
  const float blend =
      (static_cast<float>(context) / wavelength - static_cast<float>(spec.low_freq_factor)) /
      static_cast<float>(spec.high_freq_factor - spec.low_freq_factor);
  return (1 - blend) * frequency / factor + blend * frequency;
}

std::vector<float> Frequencies(const RopeSpec& spec) {
  std::vector<float> frequencies;
  for (int64_t i = 0; i < spec.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(spec.head_dim);
    // fp64 inside, so that the fp32 power is correctly rounded on every machine.
    float frequency = 1 / static_cast<float>(std::pow(
                              static_cast<double>(static_cast<float>(spec.theta)), exponent));
    if (spec.type == "linear") frequency /= static_cast<float>(spec.factor);
    if (spec.type == "llama3") frequency = ScaleLlama3(spec, frequency);
    frequencies.push_back(frequency);
  }
  return frequencies;
}

}  // namespace

RopeTable BuildRope(const RopeSpec& spec, int64_t positions) {
  Validate(spec);
  NIBBLE_CHECK(positions >= 0, "{} positions", positions);
  const std::vector<float> frequencies = Frequencies(spec);
  const int64_t half = spec.head_dim / 2;
  RopeTable table = {Matrix<float>(positions, half), Matrix<float>(positions, half)};
  ParallelFor(static_cast<size_t>(positions), [&](size_t task) {
    const auto position = static_cast<int64_t>(task);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      table.cos.row(position)[i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      table.sin.row(position)[i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  });
  return table;
}

}  // namespace nibble
