// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/round_network.h"

#include "base/progress.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/stored_layer.h"
#include "quantize/run/rest_tensors.h"
#include "quantize/run/rounded_cache.h"

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

using StoreShard = std::function<void(const std::string& shard, std::vector<NamedTensor> tensors)>;

void RoundShards(const Network& source, const Recipe& recipe, const Plan& plan,
                 const StoreShard& store) {
  const int64_t layers = source.config.layers;
  Progress progress("rounding", "layers", static_cast<double>(layers));
  const Rotator rotator(source, recipe, plan, 0);
  const auto add = [&](const std::string& shard, std::vector<NamedTensor> tensors) {
    for (NamedTensor& t : tensors) {
      if (!t.view.owner) t.view = Copy(t.view);
    }
    store(shard, std::move(tensors));
    source.store->DropPages();
  };
  for (int64_t i = 0; i < layers; ++i) {
    std::map<Role, double> errors;
    add(LayerShardName(i), LayerTensors(i, RoundLayerNearest(rotator.Layer(i), plan, i, errors)));
    progress.Update(static_cast<double>(i + 1));
  }
  add(kRestShardName, RestTensors(rotator, source, plan));
}

Network Assemble(const Network& source, const Plan& plan, std::unique_ptr<TensorStore> store) {
  Network net;
  net.config = source.config;
  net.directory = source.directory;
  net.config_json = source.config_json;
  net.store = std::move(store);
  LoadPacked(net, ToJson(plan), source.directory);
  return net;
}

Network RoundInMemory(const Network& source, const Recipe& recipe, const Plan& plan,
                      const StoreShard& also) {
  NIBBLE_CHECK(!recipe.calibrates(), "recipe {}", recipe.name);
  std::map<std::string, Tensor> tensors;
  RoundShards(source, recipe, plan, [&](const std::string& shard, std::vector<NamedTensor> some) {
    for (const NamedTensor& t : some) tensors.emplace(t.name, t.view);
    if (also) also(shard, std::move(some));
  });
  Network net = Assemble(
      source, plan,
      std::make_unique<TensorStore>(
          source.directory, std::vector<std::shared_ptr<const MappedFile>>(), std::move(tensors)));
  net.store = nullptr;  // what a backend has taken over need not stay
  return net;
}

}  // namespace

Network RoundNetwork(const Network& source, const Recipe& recipe) {
  return RoundInMemory(source, recipe, MakePlan(source, recipe), {});
}

namespace {

PackedLinear PlannedLinear(const PackedLinear& source, const LinearPlan& plan) {
  const int64_t rows = source.weights.rows, width = source.input.width;
  const TailPlan& tail = plan.tail;
  return {
      .weights = {.format = plan.weights.as_stored(), .rows = rows, .cols = width - tail.columns},
      .input = plan.Input(width),
      .tail = {.format = tail.weights, .rows = rows, .cols = tail.columns},
      .output_transform = plan.output_transform};
}

}  // namespace

Network PlannedNetwork(const Network& source, const Plan& plan) {
  const auto table = [&](const PackedWeights& weights, Role role) {
    return PackedWeights{
        .format = plan.at(0, role).weights.as_stored(), .rows = weights.rows, .cols = weights.cols};
  };
  Network net;
  net.config = source.config;
  net.directory = source.directory;
  net.config_json = source.config_json;
  net.stored_codes = source.stored_codes;
  net.caches = LayerCaches(net.config, plan);
  net.embedding = table(source.embedding, Role::kEmbedding);
  net.head = PlannedLinear(source.head, plan.at(0, Role::kHead));
  if (net.config.layer_input_size > 0) {
    net.layer_table = table(source.layer_table, Role::kLayerTable);
    net.layer_projection =
        PlannedLinear(source.layer_projection, plan.at(0, Role::kLayerProjection));
  }
  for (int64_t i = 0; i < net.config.layers; ++i) {
    LayerWeights& layer = net.layers.emplace_back();
    for (const Role role : net.config.layer_roles(i)) {
      layer[role] = PlannedLinear(source.layers[static_cast<size_t>(i)][role], plan.at(i, role));
    }
  }
  return net;
}

KeptNetwork RoundOrFind(const Network& source, const Recipe& recipe) {
  const Plan plan = MakePlan(source, recipe);
  RoundedCache cache(source, plan);
  KeptNetwork result = {.path = cache.path()};
  try {
    if (std::unique_ptr<TensorStore> store = cache.Find()) {
      result.network = Assemble(source, plan, std::move(store));
      result.found = true;
      return result;
    }
  } catch (const std::exception&) {  // damaged, or not ours to read: rounded anew
  }
  cache.Begin();
  result.network = RoundInMemory(source, recipe, plan,
                                 [&](const std::string& shard, std::vector<NamedTensor> tensors) {
                                   cache.Save(shard, std::move(tensors));
                                 });
  result.not_kept = cache.Publish();
  return result;
}

}  // namespace nibble
