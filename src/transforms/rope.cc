// SPDX-License-Identifier: Apache-2.0
#include "transforms/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"

namespace nibble {
namespace {

constexpr std::string_view kRopeTypes[] = {"default", "linear",   "llama3",
                                           "yarn",    "longrope", "proportional"};

void Validate(const RopeSpec& spec) {
  const bool llama3 = spec.type == "llama3";
  if (std::ranges::find(kRopeTypes, spec.type) == std::end(kRopeTypes)) {
    Fail("rope type \"{}\" is not supported; known are {}", spec.type, fmt::join(kRopeTypes, ", "));
  }
  if (!(spec.attention_factor > 0) || !std::isfinite(spec.attention_factor)) {
    Fail("rope: attention_factor = {} must be positive", spec.attention_factor);
  }
  if (spec.type == "yarn" && (!(spec.beta_slow > 0) || !(spec.beta_fast >= spec.beta_slow) ||
                              !(spec.theta > 1) || spec.original_context <= 0)) {
    Fail(
        "rope: yarn needs 0 < beta_slow ({}) <= beta_fast ({}), a theta above 1 and a positive "
        "original context ({})",
        spec.beta_slow, spec.beta_fast, spec.original_context);
  }
  if (spec.type == "longrope" &&
      (2 * static_cast<int64_t>(spec.divisors.size()) != spec.head_dim ||
       !std::ranges::all_of(spec.divisors, [](double d) { return d > 0 && std::isfinite(d); }))) {
    Fail("rope: longrope needs a positive divisor for each of {} frequencies", spec.head_dim / 2);
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

// Share of the stretched frequency of pair i.
class YarnRamp {
 public:
  explicit YarnRamp(const RopeSpec& spec) {
    // The index, not rounded, of the pair that turns so many times within the original context.
    const auto place = [&](double turns) {
      return static_cast<double>(spec.head_dim) *
             std::log(static_cast<double>(spec.original_context) / (turns * 2 * std::numbers::pi)) /
             (2 * std::log(spec.theta));
    };
    low_ = place(spec.beta_fast), high_ = place(spec.beta_slow);
    if (spec.truncate) low_ = std::floor(low_), high_ = std::ceil(high_);
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, static_cast<double>(spec.head_dim - 1));
    if (low_ == high_) high_ += 0.001;  // as transformers has it
  }
  float operator()(int64_t i) const {
    const float place =
        (static_cast<float>(i) - static_cast<float>(low_)) / static_cast<float>(high_ - low_);
    return std::clamp(place, 0.0f, 1.0f);
  }

 private:
  double low_, high_;
};

std::vector<float> Frequencies(const RopeSpec& spec) {
  const bool yarn = spec.type == "yarn";
  const YarnRamp ramp(yarn ? spec : RopeSpec{.head_dim = 2});

  std::vector<float> frequencies;
  for (int64_t i = 0; i < spec.head_dim; i += 2) {
    const float exponent = static_cast<float>(i) / static_cast<float>(spec.head_dim);
    // fp64 inside, so that the fp32 power is correctly rounded on every machine.
    float frequency = 1 / static_cast<float>(std::pow(
                              static_cast<double>(static_cast<float>(spec.theta)), exponent));
    const bool proportional = spec.type == "proportional";
    if (proportional && i >= spec.turned) frequency = 0;
    if (spec.type == "linear" || proportional) frequency /= static_cast<float>(spec.factor);
    if (spec.type == "llama3") frequency = ScaleLlama3(spec, frequency);
    if (spec.type == "longrope") {
      const auto divisor = static_cast<float>(spec.divisors[static_cast<size_t>(i / 2)]);
      frequency = 1 / (divisor * (1 / frequency));
    }
    if (yarn) {
      const float share = ramp(i / 2), slow = frequency / static_cast<float>(spec.factor);
      frequency = slow * share + frequency * (1 - share);
    }
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
  const auto size = static_cast<float>(spec.attention_factor);
  RopeTable table = {Matrix<float>(positions, half), Matrix<float>(positions, half)};
  ParallelFor(static_cast<size_t>(positions), [&](size_t task) {
    const auto position = static_cast<int64_t>(task);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      table.cos.row(position)[i] = size * static_cast<float>(std::cos(static_cast<double>(angle)));
      table.sin.row(position)[i] = size * static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  });
  return table;
}

}  // namespace nibble
