// SPDX-License-Identifier: Apache-2.0
// A packed checkpoint that any bytes have changed: the first line is a merge patch of config.json
// with its plan, the second one of the planes that the plan asks for ({name: {"dtype", "shape"}}),
// the rest are edits of their bytes. Whatever opens must unpack, transform and reorder without
// leaving a plane.
#include "formats/tile_order.h"
#include "fuzz_input.h"
#include "models/families/family.h"
#include "models/import/open_network.h"
#include "packed_model.h"

namespace nibble {
namespace {

// Gives each plane a copy of its own, so that reading past its end is seen.
class Guarded {
 public:
  explicit Guarded(PackedWeights weights) : weights_(std::move(weights)) {
    for (const Plane& plane : PlanesOf(weights_.format, weights_.rows, weights_.cols)) {
      Tensor& tensor = weights_.*plane.tensor;
      Tensor copy = Tensor::Of(DType::kU8, {static_cast<int64_t>(tensor.bytes())},
                               std::vector<std::byte>(tensor.data, tensor.data + tensor.bytes()));
      copy.dtype = tensor.dtype, copy.shape = tensor.shape;
      tensor = std::move(copy);
    }
  }
  const PackedWeights& weights() const { return weights_; }

 private:
  PackedWeights weights_;
};

void UseWeights(const PackedWeights& planes, const FormatSpec& activations) {
  const Guarded guarded(planes);
  const PackedWeights& w = guarded.weights();
  const Matrix<float> values = Decode(w);
  NIBBLE_CHECK(values.rows == w.rows && values.cols == w.cols);
  if (!w.format.quantized()) return;
  for (const float scale : DecodeScales(w).data) NIBBLE_CHECK(scale > 0 && scale < INFINITY);
  const int limit = 1 << (w.format.bits - 1);
  std::vector<int16_t> codes(static_cast<size_t>(w.cols));
  for (int64_t n = 0; n < w.rows && !w.format.sparse; ++n) {
    UnpackRow(w, n, codes);
    for (const int code : codes) NIBBLE_CHECK(code >= -limit && code < limit, "{}", code);
  }
  if (!activations.quantized()) return;
  std::vector<uint8_t> tiles(static_cast<size_t>(TileOrder(w).bytes()));
  PackTiles(w, tiles.data());
}

void UseLinear(const PackedLinear& linear, int64_t rows, int64_t cols) {
  const InputSpec& input = linear.input;
  NIBBLE_CHECK(linear.weights.rows == rows && linear.weights.cols + linear.tail.cols == cols);
  UseWeights(linear.weights, input.activations);
  if (input.tail_width > 0) UseWeights(linear.tail, input.tail_activations);
  if (linear.bias.data != nullptr) NIBBLE_CHECK(linear.bias.elements() == rows);
  std::vector<float> row(static_cast<size_t>(input.width), 1.0f), gathered;
  if (!input.transform.identity()) ApplyTransform(input.transform, row);
  for (const int32_t from : input.gather) gathered.push_back(row.at(static_cast<size_t>(from)));
}

void Use(std::string_view input) {
  static const ScratchDirectory directory;
  Json json = SmallModel();
  json.merge_patch(ParseJson(TakeLine(&input), "config"));
  const ModelConfig config = ParseConfig(json, "config");
  if (config.parameters() > 1 << 15) return;
  const Plan plan =
      PlanFromJson(JsonGet<Json>(json, "quantization_config", "config"), config, "plan");
  Json planes = PlaneList(plan, config).json();
  planes["__metadata__"] = {{kPlanDigestKey, PlanDigest(plan)}};
  planes.merge_patch(ParseJson(TakeLine(&input), "planes"));
  if (!planes.is_object()) return;
  directory.Write("config.json", json.dump());
  directory.Write("model.safetensors", ShardOf(planes, input));
  const Network net = OpenNetwork(directory.path());
  NIBBLE_CHECK(net.packed && net.layers.size() == static_cast<size_t>(config.layers));
  UseLinear(net.head, config.vocab_size, config.hidden_size);
  UseWeights(net.embedding, {});
  for (int64_t i = 0; i < config.layers; ++i) {
    for (const auto& [role, linear] : net.layers[static_cast<size_t>(i)].linears) {
      UseLinear(linear, config.outputs(i, role), config.inputs(i, role));
    }
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
