// SPDX-License-Identifier: Apache-2.0
#include "models/families/rope_config.h"

#include <cmath>
#include <string_view>

namespace nibble {
namespace {

// Models have bases of 1e4 to 1e11 and factors of 1 to 100. Within these bounds fp32 can work with
// them.
constexpr double kMaxTheta = 1e15, kMaxFactor = 1e6;
constexpr int64_t kMaxContext = 1 << 24;

// Reads the numbers of a scaling, one of which may stand beside it.
class RopeNumbers {
 public:
  RopeNumbers(const Json& config, const Json& scaling, const std::string& where)
      : config_(config), scaling_(scaling), where_(where), in_(where + ": rope parameters") {}

  std::optional<double> Find(const char* key, double min, double max) const {
    return JsonFindIn<double>(scaling_, key, min, max, in_);
  }
  double Get(const char* key, double min, double max) const {
    return JsonGetIn<double>(scaling_, key, min, max, in_);
  }
  // Phi-3 has this number at top level, where it overrides the inner one.
  std::optional<int64_t> OriginalContext() const {
    constexpr const char* kKey = "original_max_position_embeddings";
    const auto outer = JsonFindIn<int64_t>(config_, kKey, 1, kMaxContext, where_);
    return outer ? outer : JsonFindIn<int64_t>(scaling_, kKey, 1, kMaxContext, in_);
  }
  std::vector<double> Divisors(const char* key, int64_t count) const {
    const auto values = JsonGet<std::vector<double>>(scaling_, key, in_);
    if (static_cast<int64_t>(values.size()) != count) {
      Fail("{}: {} has {} entries, expected {}", in_, key, values.size(), count);
    }
    for (const double value : values) {
      if (!(value >= 1 / kMaxFactor && value <= kMaxFactor)) {
        Fail("{}: {} has an entry of {}", in_, key, value);
      }
    }
    return values;
  }
  const std::string& in() const { return in_; }

 private:
  const Json &config_, &scaling_;
  const std::string &where_, in_;
};

void ParseLlama3(const RopeNumbers& numbers, int64_t context, RopeSpec& rope) {
  rope.low_freq_factor = numbers.Get("low_freq_factor", 1 / kMaxFactor, kMaxFactor);
  rope.high_freq_factor = numbers.Get("high_freq_factor", 1 / kMaxFactor, kMaxFactor);
  rope.original_context = numbers.OriginalContext().value_or(context);
  // Between the two factors frequencies are blended by a quotient of their difference.
  if (rope.high_freq_factor < 1.001 * rope.low_freq_factor) {
    Fail("{}: high_freq_factor = {} is not above low_freq_factor = {}", numbers.in(),
         rope.high_freq_factor, rope.low_freq_factor);
  }
}

// Section 3.4 of YaRN (Peng et al., 2023): what longer contexts do to the scores' size.
double AttentionFactor(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

void ParseYarn(const RopeNumbers& numbers, const Json& scaling, int64_t context, RopeSpec& rope) {
  rope.original_context = numbers.OriginalContext().value_or(context);
  rope.beta_fast = numbers.Find("beta_fast", 1 / kMaxFactor, kMaxFactor).value_or(32);
  rope.beta_slow = numbers.Find("beta_slow", 1 / kMaxFactor, kMaxFactor).value_or(1);
  rope.truncate = JsonFind<bool>(scaling, "truncate", numbers.in()).value_or(true);
  if (rope.beta_fast < rope.beta_slow || rope.theta <= 1) {
    Fail("{}: yarn needs beta_fast ({}) not below beta_slow ({}) and rope_theta ({}) above 1",
         numbers.in(), rope.beta_fast, rope.beta_slow, rope.theta);
  }
  const auto scale = numbers.Find("mscale", 0, kMaxFactor);
  const auto all = numbers.Find("mscale_all_dim", 0, kMaxFactor);
  const double size =
      scale.value_or(0) > 0 && all.value_or(0) > 0
          ? AttentionFactor(rope.factor, *scale) / AttentionFactor(rope.factor, *all)
          : AttentionFactor(rope.factor, 1);
  rope.attention_factor =
      numbers.Find("attention_factor", 1 / kMaxFactor, kMaxFactor).value_or(size);
}

void ParseLongrope(const RopeNumbers& numbers, int64_t context, RopeSpec& rope) {
  const auto original = numbers.OriginalContext();
  if (!original || *original < 2) {
    Fail("{}: longrope needs original_max_position_embeddings above 1", numbers.in());
  }
  rope.original_context = *original;
  rope.divisors =
      numbers.Divisors(context > *original ? "long_factor" : "short_factor", rope.head_dim / 2);
  const double stretch =
      numbers.Find("factor", 1 / kMaxFactor, kMaxFactor)
          .value_or(static_cast<double>(context) / static_cast<double>(*original));
  const double size =
      stretch <= 1 ? 1
                   : std::sqrt(1 + std::log(stretch) / std::log(static_cast<double>(*original)));
  rope.attention_factor =
      numbers.Find("attention_factor", 1 / kMaxFactor, kMaxFactor).value_or(size);
}

}  // namespace

RopeSpec ParseRope(const Json& config, int64_t head_dim, int64_t context, const std::string& where,
                   const char* layer_type) {
  RopeSpec rope;
  auto parameters = JsonFind<Json>(config, "rope_parameters", where);
  if (parameters && parameters->contains(layer_type)) {
    parameters = JsonGet<Json>(*parameters, layer_type, where + ": rope_parameters");
  }
  const auto scaling = parameters ? parameters : JsonFind<Json>(config, "rope_scaling", where);
  const std::string in = where + ": rope parameters";
  const auto find = [&](const char* key, double min, double max) {
    const auto inner =
        parameters ? JsonFindIn<double>(*parameters, key, min, max, in) : std::nullopt;
    return inner ? inner : JsonFindIn<double>(config, key, min, max, where);
  };
  rope.theta = find("rope_theta", 1, kMaxTheta).value_or(10000.0);
  const double share = find("partial_rotary_factor", 1e-3, 1).value_or(1.0);
  rope.head_dim = static_cast<int64_t>(static_cast<double>(head_dim) * share);
  if (rope.head_dim < 2 || rope.head_dim % 2 != 0) {
    Fail("{}: partial_rotary_factor {} of {} dimensions are not pairs", where, share, head_dim);
  }
  if (!scaling) return rope;
  auto type = JsonFind<std::string>(*scaling, "rope_type", in);
  if (!type) type = JsonFind<std::string>(*scaling, "type", in);
  rope.type = type.value_or("default");
  // Dynamic scaling begins behind max_position_embeddings, where Nibble's context ends.
  if (rope.type == "dynamic") rope.type = "default";
  // Phi-3's older files name longrope "su" or "yarn".
  if (scaling->contains("long_factor") && (rope.type == "su" || rope.type == "yarn")) {
    rope.type = "longrope";
  }
  const RopeNumbers numbers(config, *scaling, where);
  if (rope.type == "default") return rope;
  if (rope.type == "longrope") {
    ParseLongrope(numbers, context, rope);
    return rope;
  }
  if (rope.type == "proportional") {
    rope.turned = rope.head_dim, rope.head_dim = head_dim;
    rope.factor = numbers.Find("factor", 1, kMaxFactor).value_or(1);
    return rope;
  }
  if (rope.type != "linear" && rope.type != "llama3" && rope.type != "yarn") {
    Fail(
        "{}: rope_type \"{}\" is not supported; this build knows default, dynamic, linear, llama3, "
        "longrope, proportional, yarn",
        where, rope.type);
  }
  rope.factor = numbers.Get("factor", 1, kMaxFactor);
  if (rope.type == "llama3") ParseLlama3(numbers, context, rope);
  if (rope.type == "yarn") ParseYarn(numbers, *scaling, context, rope);
  return rope;
}

}  // namespace nibble
