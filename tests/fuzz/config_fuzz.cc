// SPDX-License-Identifier: Apache-2.0
// Any bytes as a config.json of any family, with the plan in it if there is one. A config that
// comes out keeps the limits of SECURITY.md, so that sizes made from it fit 64 bits, and its rotary
// table holds cosines; a plan that comes out has a line for every linear.
#include <cmath>

#include "fuzz_input.h"
#include "models/families/family.h"
#include "models/plan.h"

namespace nibble {
namespace {

void CheckConfig(const ModelConfig& c) {
  for (const int64_t width : {c.hidden_size, c.ffn_size(), c.heads, c.kv_heads}) {
    NIBBLE_CHECK(width >= 1 && width <= 1 << 20, "{}", width);
  }
  for (const int64_t count : {c.vocab_size, c.context}) {
    NIBBLE_CHECK(count >= 1 && count <= 1 << 24, "{}", count);
  }
  NIBBLE_CHECK(c.layers >= 1 && c.layers <= 1 << 12 && c.head_dim >= 8 &&
               c.head_dim <= kMaxHeadDim);
  NIBBLE_CHECK(c.heads % c.kv_heads == 0);
  NIBBLE_CHECK(c.router.experts >= 0 && c.router.experts <= 512 &&
               c.router.experts_per_token <= c.router.experts);
  NIBBLE_CHECK(c.parameters() > 0, "{}", c.parameters());
  for (const LayerSpec& spec : c.specs) {
    NIBBLE_CHECK(spec.sliding_window >= 0 && spec.rope < static_cast<int>(c.ropes.size()));
  }
  for (const RopeSpec& spec : c.ropes) {
    const RopeTable rope = BuildRope(spec, std::min<int64_t>(c.context, 4));
    for (const Matrix<float>* table : {&rope.cos, &rope.sin}) {
      const double max = spec.attention_factor * (1 + 1e-6);
      for (const float x : table->data) NIBBLE_CHECK(std::abs(x) <= max, "{}: rope table", x);
    }
  }
}

void Use(std::string_view input) {
  const Json json = ParseJson(input, "fuzz");
  const ModelConfig config = ParseConfig(json, "fuzz");
  CheckConfig(config);
  const auto quantization = JsonFind<Json>(json, "quantization_config", "fuzz");
  if (!quantization) return;
  const Plan plan = PlanFromJson(*quantization, config, "fuzz");
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (const Role role : config.layer_roles(layer)) plan.at(layer, role);
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
