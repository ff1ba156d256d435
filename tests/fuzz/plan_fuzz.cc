// SPDX-License-Identifier: Apache-2.0
// Any bytes as a change (RFC 7396 merge patch) of the plan of a small model. A plan that comes out
// is written and read back as the same plan, and its online transforms keep the length of a row.
#include <cmath>

#include "fuzz_input.h"
#include "models/families/family.h"
#include "packed_model.h"

namespace nibble {
namespace {

void CheckTransform(const TransformSpec& transform, int64_t width) {
  if (transform.identity()) return;
  NIBBLE_CHECK(transform.width() == width, "{} of {}", transform.width(), width);
  std::vector<double> row(static_cast<size_t>(width));
  for (size_t i = 0; i < row.size(); ++i) row[i] = static_cast<double>(i % 7) - 2.5;
  const auto squares = [&] { return std::inner_product(row.begin(), row.end(), row.begin(), 0.0); };
  const double before = squares();
  ApplyTransform(transform, row);
  // An orthogonal map in doubles: n additions lose at most n roundings of 2^-53 each, n <= 96.
  NIBBLE_CHECK(std::abs(squares() - before) <= 1e-12 * before, "{} is not {}", squares(), before);
}

void Use(std::string_view input) {
  static const Json model = SmallModel();
  static const ModelConfig config = ParseConfig(model, "model");
  Json json = model["quantization_config"];
  json.merge_patch(ParseJson(input, "fuzz"));
  const Plan plan = PlanFromJson(json, config, "fuzz");
  const Plan again = PlanFromJson(ToJson(plan), config, "again");
  NIBBLE_CHECK(ToJson(again) == ToJson(plan) && PlanDigest(again) == PlanDigest(plan));
  CheckTransform(plan.kv_rotation, config.head_dim);
  for (const Role role : config.layer_roles(0)) {
    CheckTransform(plan.at(0, role).input_transform, config.inputs(0, role));
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
