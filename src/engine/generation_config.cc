// SPDX-License-Identifier: Apache-2.0
#include "engine/generation_config.h"

#include "source/model_source.h"

namespace nibble {
namespace {

// eos_token_id is a number or a list of numbers.
std::vector<int32_t> StopIds(const Json& json, const std::string& where) {
  const auto eos = JsonFind<Json>(json, "eos_token_id", where);
  if (!eos) return {};
  const std::string what = where + ": eos_token_id";
  if (eos->is_array()) return JsonAs<std::vector<int32_t>>(*eos, what);
  return {JsonAs<int32_t>(*eos, what)};
}

}  // namespace

Sampling GenerationConfig::ForAnswers() const {
  Sampling answers = sampling;
  if (!samples) answers.temperature = 0.7, answers.top_p = 0.95, answers.min_p = 0.05;
  return answers;
}

GenerationConfig LoadGenerationConfig(const std::string& model_directory, const Json& config_json) {
  GenerationConfig config;
  constexpr const char* kName = "generation_config.json";
  if (const auto text = FindDocument(model_directory, kName, 1 << 20)) {
    const std::string file = DocumentPath(model_directory, kName);
    const Json json = ParseJson(*text, file);
    config.stop_ids = StopIds(json, file);
    const Sampling sampling = {
        .temperature =
            JsonFindIn(json, "temperature", 0.0, Sampling::kMaxTemperature, file).value_or(1.0),
        .top_p = JsonFindIn(json, "top_p", Sampling::kMinTopP, 1.0, file).value_or(1.0),
        .top_k = JsonFindIn(json, "top_k", int64_t{0}, Sampling::kMaxTopK, file).value_or(0),
        .min_p = JsonFindIn(json, "min_p", 0.0, 1.0, file).value_or(0.0),
        .typical = JsonFindIn(json, "typical_p", Sampling::kMinTopP, 1.0, file).value_or(1.0)};
    config.samples = JsonFind<bool>(json, "do_sample", file).value_or(false);
    if (config.samples) config.sampling = sampling;
    config.sampling.repetition =
        JsonFindIn(json, "repetition_penalty", 1 / Sampling::kMaxRepetition,
                   Sampling::kMaxRepetition, file)
            .value_or(1.0);
    const auto penalty = [&](const char* key) {
      constexpr double kMax = Sampling::kMaxPenalty;
      return JsonFindIn(json, key, -kMax, kMax, file).value_or(0.0);
    };
    config.sampling.presence = penalty("presence_penalty");
    config.sampling.frequency = penalty("frequency_penalty");
  }
  if (config.stop_ids.empty()) {
    config.stop_ids = StopIds(config_json, DocumentPath(model_directory, "config.json"));
  }
  return config;
}

}  // namespace nibble
