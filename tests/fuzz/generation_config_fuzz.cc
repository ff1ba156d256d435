// SPDX-License-Identifier: Apache-2.0
// The first line as a generation_config.json, the rest as the config.json that completes it. A
// config that comes out can be sampled with.
#include <cmath>

#include "engine/generation_config.h"
#include "fuzz_input.h"

namespace nibble {
namespace {

void Use(std::string_view input) {
  static const ScratchDirectory directory;
  directory.Write("generation_config.json", TakeLine(&input));
  directory.Write("config.json", input);
  const Json config = ReadJsonFile(directory.path() + "/config.json");
  const Sampling sampling = LoadGenerationConfig(directory.path(), config).sampling;
  NIBBLE_CHECK(sampling.temperature >= 0 && std::isfinite(sampling.temperature));
  NIBBLE_CHECK(sampling.top_p >= 0 && sampling.top_p <= 1, "{}", sampling.top_p);
  NIBBLE_CHECK(sampling.top_k >= 0, "{}", sampling.top_k);
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
