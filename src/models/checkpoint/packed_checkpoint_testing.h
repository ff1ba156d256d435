// SPDX-License-Identifier: Apache-2.0
// A plan that differs in every field, and a checkpoint of random planes for it.
#pragma once

#include <memory>

#include "base/file.h"
#include "base/half.h"
#include "base/rng.h"
#include "formats/packed_weights_testing.h"
#include "models/checkpoint/manifest.h"
#include "models/checkpoint/packed_checkpoint.h"
#include "models/families/family.h"
#include "models/import/open_network.h"
#include "models/models_testing.h"

namespace nibble {

inline Json SourceConfig() {
  Json config = ReadJsonFile((kArchitectures / "mistral_sliding/config.json").string());
  config["model_type"] = "llama";
  config["attention_bias"] = true;
  return config;
}

inline ModelConfig TestConfig() {
  return ParseConfig(SourceConfig(), "c");
}

// Different in every respect that a plan can have, so that a lost field shows.
inline Plan TestPlan(const ModelConfig& config) {
  Plan plan;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    for (Role role : kLayerRoles) {
      plan.linears[LinearName(layer, role)] = {
          .weights = {.bits = 4, .symmetric = false, .group = 32, .clip = 0},
          .activations = {.bits = 5, .symmetric = role != Role::kDown, .group = 32, .clip = 0.875}};
    }
    plan.linears[LinearName(layer, Role::kDown)].input_transform =
        FullHadamard(config.intermediate_size);
    plan.linears[LinearName(layer, Role::kQ)].output_transform =
        FullHadamard(config.outputs(layer, Role::kQ));
    plan.linears[LinearName(layer, Role::kO)].weights = {.bits = 3, .clip = 0.5, .sparse = true};
    for (Role role : {Role::kGate, Role::kUp}) {
      LinearPlan& linear = plan.linears[LinearName(layer, role)];
      linear.input_scales = linear.gather = true;
      linear.tail = {.columns = 32, .activations = {.bits = 8, .symmetric = false, .clip = 0.75}};
      if (role == Role::kUp) linear.tail.weights = {.bits = 8};
    }
  }
  LinearPlan& levels = plan.linears[LinearName(0, Role::kO)];
  levels.weights = {.bits = 3, .symmetric = false, .group = 32, .clip = 0, .second_level = true};
  levels.activations.group = 0;
  plan.linears["head"] = plan.linears["embedding"] = {.weights = {.bits = 32}};
  plan.k = {.bits = 4, .symmetric = false, .clip = 0.9375};
  plan.v = {.bits = 3, .symmetric = true, .group = 8, .clip = 1};
  plan.kv_rotation = FullHadamard(config.head_dim);
  plan.center_keys = true;
  plan.norms_folded = true;
  plan.provenance = {{"recipe", "test"}, {"seed", 7}};
  return plan;
}

// A checkpoint of random planes, written with the writer's own parts.
class PackedCheckpointTest : public TemporaryDirectoryTest {
 protected:
  using Tensors = std::vector<NamedTensor>;

  // `edit` changes the tensors of layer 1 before they are written.
  void Write(const std::function<void(Tensors&)>& edit = [](Tensors&) {}) {
    std::filesystem::remove_all(root_ / "m");
    std::filesystem::create_directories(root_ / "m");
    WriteShard(Path("m/" + std::string(kRestShardName)),
               {{"embedding.weight", Floats({512, 64})}, {"head.weight", Floats({512, 64})}},
               Digest());
    for (int64_t layer = 0; layer < 2; ++layer) {
      Tensors tensors;
      for (Role role : kLayerRoles) {
        const LinearPlan& plan = plan_.at(layer, role);
        const int64_t rows = config_.outputs(layer, role), cols = config_.inputs(layer, role);
        const int64_t tail = plan.tail.columns;
        PackedLinear& linear = *linears_.emplace_back(std::make_unique<PackedLinear>());
        linear = {.weights = RandomWeights(plan.weights, rows, cols - tail)};
        if (tail > 0) linear.tail = RandomWeights(plan.tail.weights, rows, tail);
        if (plan.input_scales) linear.input.scales = scales_;
        if (plan.gather) linear.input.gather = gather_;
        if (config_.has_bias(role)) linear.bias = Floats({rows});
        for (auto& t : LinearTensors(LinearName(layer, role), linear)) tensors.push_back(t);
      }
      tensors.push_back({fmt::format("layers.{}.key_center", layer),
                         Floats({config_.width(layer, LayerVector::kKeyCenter)})});
      if (layer == 1) edit(tensors);
      WriteShard(Path("m/" + LayerShardName(layer)), tensors, Digest());
    }
    Json json = SourceConfig();
    json["quantization_config"] = ToJson(plan_);
    WriteFileAtomic(Path("m/config.json"), json.dump());
    WriteIndex(Path("m"), 2);
    WriteManifest(Path("m"), DigestFiles(Path("m")));
  }

  std::map<std::string, std::string> Digest() const {
    return {{kPlanDigestKey, PlanDigest(plan_)}};
  }

  Tensor Floats(std::vector<int64_t> shape) {
    Tensor view = {DType::kF32, std::move(shape), nullptr};
    auto& values = floats_.emplace_back(std::make_unique<std::vector<float>>());
    for (int64_t i = 0; i < view.elements(); ++i) {
      values->push_back(static_cast<float>(rng_.Normal()));
    }
    view.data = reinterpret_cast<const std::byte*>(values->data());
    return view;
  }

  PackedWeights RandomWeights(const FormatSpec& format, int64_t rows, int64_t cols) {
    if (format.quantized()) {
      const auto planes = RandomPlanes(rng_, format, rows, cols);
      return View(*weights_.emplace_back(std::make_unique<PlaneVectors>(planes)));
    }
    auto& w = *weights_.emplace_back(std::make_unique<PlaneVectors>());
    w.format = format, w.rows = rows, w.cols = cols;
    for (int64_t i = 0; i < rows * cols; ++i) {
      w.values_f16.push_back(F16FromF32(static_cast<float>(rng_.Normal())));
    }
    return View(w);
  }

  static std::vector<int32_t> Permutation(int64_t count) {
    std::vector<int32_t> order;  // 3 is prime to count
    for (int64_t i = 0; i < count; ++i) order.push_back(static_cast<int32_t>(3 * i % count));
    return order;
  }

  std::vector<float> RandomScales(int64_t count) {
    std::vector<float> scales;
    for (int64_t i = 0; i < count; ++i) {
      scales.push_back(static_cast<float>((rng_.Below(2) == 0 ? 1 : -1) * (0.5 + rng_.Uniform())));
    }
    return scales;
  }

  // Overwrites an fp32 value in a shard, as the writer would not.
  void Patch(const std::string& shard, const std::string& tensor, size_t element, float value) {
    std::string file = ReadFile(Path("m/" + shard), 1 << 30);
    const SafetensorsContents contents = ParseSafetensors(Bytes(file), shard);
    const Tensor& view = contents.tensors.at(tensor);
    ASSERT_EQ(view.dtype, DType::kF32);
    const auto at = reinterpret_cast<const char*>(view.data) - file.data();
    std::memcpy(file.data() + at + element * sizeof value, &value, sizeof value);
    WriteFileAtomic(Path("m/" + shard), file);
  }

  std::string OpenError() const {
    return ErrorOf([&] { OpenNetwork(Path("m")); });
  }

  // The plan as an attacker or a helpful editor would leave it.
  void ExpectEditRefused(const char* pointer, const Json& value) {
    Write();
    EditJson(Path("m/config.json"),
             [&](Json& c) { c["quantization_config"][Json::json_pointer(pointer)] = value; });
    EXPECT_THAT(OpenError(),
                testing::AllOf(testing::HasSubstr(Path("m")), testing::HasSubstr("another plan")))
        << pointer;
  }

  static Tensor& Find(Tensors& tensors, const std::string& name) {
    for (NamedTensor& t : tensors) {
      if (t.name == name) return t.view;
    }
    throw std::out_of_range(name);
  }

  const ModelConfig config_ = TestConfig();
  Plan plan_ = TestPlan(config_);
  Rng rng_{1};
  std::vector<int32_t> gather_ = Permutation(config_.hidden_size);
  std::vector<float> scales_ = RandomScales(config_.hidden_size);
  std::vector<std::unique_ptr<PlaneVectors>> weights_;
  std::vector<std::unique_ptr<PackedLinear>> linears_;  // lend their scales and gathers
  std::vector<std::unique_ptr<std::vector<float>>> floats_;
};

}  // namespace nibble
