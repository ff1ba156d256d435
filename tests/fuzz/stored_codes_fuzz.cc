// SPDX-License-Identifier: Apache-2.0
// Changes of a linear [32, 64] that GPTQ, AWQ or compressed-tensors quantized: a line with
// quantization_config, a line of changes of its tensors' types and shapes, and bytes. Codes that
// come out are sound and mean finite weights.
#include <cmath>

#include "fuzz_input.h"
#include "models/import/stored_codes.h"
#include "packed_model.h"

namespace nibble {
namespace {

constexpr int64_t kRows = 32, kCols = 64;

// The tensors for 4 bits in groups of 32.
Json TensorsOf(const StoredCodes& codes) {
  const auto tensor = [](const char* dtype, std::vector<int64_t> shape) {
    return Json{{"dtype", dtype}, {"shape", std::move(shape)}};
  };
  if (codes.name() == "compressed-tensors") {
    return {{"l.weight_packed", tensor("I32", {kRows, kCols / 8})},
            {"l.weight", tensor("I8", {kRows, kCols})},
            {"l.weight_scale", tensor("F16", {kRows, 2})},
            {"l.weight_zero_point", tensor("I32", {kRows / 8, 2})}};
  }
  const bool gptq = codes.name() == "GPTQ";
  return {
      {"l.qweight", gptq ? tensor("I32", {kCols / 8, kRows}) : tensor("I32", {kCols, kRows / 8})},
      {"l.qzeros", tensor("I32", {2, kRows / 8})},
      {"l.scales", tensor("F16", {2, kRows})}};
}

void Use(std::string_view input) {
  const StoredCodes codes(ParseJson(TakeLine(&input), "config"), "config");
  Json tensors = TensorsOf(codes);
  tensors.merge_patch(ParseJson(TakeLine(&input), "tensors"));
  if (!tensors.is_object()) return;
  const std::string file = ShardOf(tensors, input);
  if (file.empty()) return;
  const TensorStore store("fuzz", {},
                          ParseSafetensors(std::as_bytes(std::span(file)), "fuzz").tensors);
  std::set<std::string> used;
  if (!codes.Has(store, "l")) return;
  const PackedLinear linear = codes.Read(store, "l", kRows, kCols, used);
  for (const float w : ToF32(InFloats(linear).weights.values).data)
    NIBBLE_CHECK(std::isfinite(w), "{}", w);
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
