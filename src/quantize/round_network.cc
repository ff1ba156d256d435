// SPDX-License-Identifier: Apache-2.0
#include "quantize/round_network.h"

#include "quantize/stored_layer.h"

namespace nibble {

// On SmolLM2 (`nibble eval ppl --load-bits`, 12 windows of WikiText-2's test text; fp32 20.19):
// 8 bits 20.35, without rotation 20.98, in groups of 64 instead 20.41, but then it rambles; 4 bits
// 25.7, rotated 34 (a rotation spreads what few groups had), in rows 46.
Recipe LoadingRecipe(int bits, bool has_codes) {
  Recipe recipe = {.name = "loading", .weights = {.bits = bits}, .activations = {.bits = 8}};
  recipe.k = recipe.v = {.bits = 16};
  if (bits == 8 && !has_codes) recipe.rotation = Rotation::kHadamard;
  if (bits == 4) {
    recipe.weights = {.bits = 4, .symmetric = false, .group = 32, .second_level = true};
    recipe.k = recipe.v = {.bits = 8, .symmetric = false};
  }
  if (bits == 16) recipe.activations.bits = 16;
  if (has_codes) recipe.rounding = Rounding::kStored;
  return recipe;
}

namespace {

Tensor Copy(const Tensor& borrowed) {
  const auto bytes = std::make_shared<const std::vector<std::byte>>(
      borrowed.data, borrowed.data + borrowed.bytes());
  return {borrowed.dtype, borrowed.shape, bytes->data(), bytes};
}

}  // namespace

Network RoundNetwork(const Network& source, const Recipe& recipe) {
  NIBBLE_CHECK(!recipe.calibrates(), "recipe {}", recipe.name);
  const Plan plan = MakePlan(source, recipe);
  const Rotator rotator(source, recipe, plan, 0);
  std::map<std::string, Tensor> tensors;
  const auto add = [&](std::vector<NamedTensor> some) {
    for (const NamedTensor& t : some) tensors.emplace(t.name, t.view.owner ? t.view : Copy(t.view));
    source.store->DropPages();
  };
  for (int64_t i = 0; i < source.config.layers; ++i) {
    std::map<Role, double> errors;
    add(LayerTensors(i, RoundLayerNearest(rotator.Layer(i), plan, i, errors)));
  }
  add(RestTensors(rotator, source, plan));
  Network net;
  net.config = source.config;
  net.directory = source.directory;
  net.config_json = source.config_json;
  net.store = std::make_unique<TensorStore>(
      source.directory, std::vector<std::shared_ptr<const MappedFile>>(), std::move(tensors));
  LoadPacked(net, ToJson(plan), source.directory);
  net.store = nullptr;  // what a backend has taken over need not stay
  return net;
}

}  // namespace nibble
