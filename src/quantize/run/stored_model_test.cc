// SPDX-License-Identifier: Apache-2.0
// Models that other programs quantized, from the files to a Nibble checkpoint.
#include <gtest/gtest.h>

#include <filesystem>

#include "base/half.h"
#include "base/rng.h"
#include "engine/gguf_model_testing.h"
#include "formats/packed_weights_testing.h"
#include "io/io_testing.h"
#include "models/import/gguf_names.h"
#include "models/import/open_network.h"
#include "models/import/stored_codes.h"
#include "models/models_testing.h"
#include "models/random_model_testing.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/quantize.h"
#include "quantize/run/round_network.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

struct GptqLinear {
  Tensor qweight, qzeros, scales, g_idx;
};

// Random codes of 4 bits in groups, zero points and scales by the letter of GPTQ's layout. With
// act_order, groups take their columns in turn.
GptqLinear RandomGptq(Rng& rng, int64_t rows, int64_t cols, bool act_order) {
  const int64_t groups = cols % 32 == 0 ? cols / 32 : 1;
  const auto words = [&](int64_t count) {
    std::vector<uint32_t> random(static_cast<size_t>(count));
    for (uint32_t& word : random) word = static_cast<uint32_t>(rng.Below(1ull << 32));
    return random;
  };
  std::vector<uint16_t> scales(static_cast<size_t>(groups * rows));
  for (uint16_t& scale : scales)
    scale = F16FromF32(0.01f + 0.001f * static_cast<float>(rng.Below(8)));
  std::vector<int32_t> index(static_cast<size_t>(cols));
  for (int64_t k = 0; k < cols; ++k)
    index[static_cast<size_t>(k)] =
        static_cast<int32_t>(act_order ? k % groups : k / (cols / groups));
  std::vector<uint32_t> zeros = words(groups * rows / 8);
  for (uint32_t& word : zeros) word &= 0x77777777;  // none of them carries
  return {Tensor::Of(DType::kI32, {cols / 8, rows}, words(cols / 8 * rows)),
          Tensor::Of(DType::kI32, {groups, rows / 8}, std::move(zeros)),
          Tensor::Of(DType::kF16, {groups, rows}, std::move(scales)),
          Tensor::Of(DType::kI32, {cols}, std::move(index))};
}

// A model with such linears instead of those whose names end so.
class StoredModel : public TemporaryDirectoryTest {
 protected:
  void Write(bool act_order, const std::string& model = kTinyModel,
             const std::string& ending = "proj.weight") {
    const TensorStore floats(model);
    std::map<std::string, Tensor> tensors;
    Rng rng(3, 1);
    for (const std::string& name : floats.names()) {
      const Tensor& tensor = floats.Get(name);
      if (!name.ends_with(ending)) {
        tensors[name] = tensor;
        continue;
      }
      const GptqLinear linear = RandomGptq(rng, tensor.shape[0], tensor.shape[1], act_order);
      const std::string prefix = name.substr(0, name.size() - 6);
      tensors[prefix + "qweight"] = linear.qweight;
      tensors[prefix + "qzeros"] = linear.qzeros;
      tensors[prefix + "scales"] = linear.scales;
      tensors[prefix + "g_idx"] = linear.g_idx;
      tensors[prefix + "bias"] =
          Tensor::Of(DType::kF16, {tensor.shape[0]},
                     std::vector<uint16_t>(static_cast<size_t>(tensor.shape[0])));
    }
    fs::copy(model, Path("m"));
    EditJson(Path("m/config.json"), [&](Json& config) {
      config["quantization_config"] = {{"quant_method", "gptq"}, {"desc_act", act_order}};
    });
    std::vector<SafetensorsWriter::Entry> entries;
    for (const auto& [name, tensor] : tensors)
      entries.push_back({name, tensor.dtype, tensor.shape});
    SafetensorsWriter writer(Path("m/model.safetensors"), entries);
    for (const auto& [name, tensor] : tensors) writer.Append({tensor.data, tensor.bytes()});
    writer.Finish();
  }
};

TEST_F(StoredModel, CodesAreKeptInACheckpointAndWhileLoading) {
  for (const bool act_order : {false, true}) {
    SCOPED_TRACE(act_order);
    fs::remove_all(Path("m"));
    Write(act_order);
    const Network source = OpenNetwork(Path("m"));
    EXPECT_EQ(source.stored_codes, "GPTQ");
    Quantize({.model = Path("m"), .output = Path("out"), .recipe = kStoredRecipe, .force = true});
    const Network written = OpenNetwork(Path("out"));
    const Network loaded = RoundNetwork(source, LoadingRecipe(8, true));
    for (size_t i = 0; i < source.layers.size(); ++i) {
      for (const Role role : kLayerRoles) {
        const PackedLinear& linear = source.layers[i][role];
        EXPECT_EQ(linear.input.gather.empty(), !act_order || linear.input.width % 32 != 0);
        for (const Network* kept : {&written, &loaded}) {
          const PackedLinear& same = kept->layers[i][role];
          ExpectSamePlanes(same.weights, linear.weights);
          EXPECT_EQ(same.input.gather, linear.input.gather);
          EXPECT_EQ(same.input.activations.bits, 8);
        }
      }
    }
  }
}

// GLM 4's rows that RoPE turns together lie side by side.
TEST_F(StoredModel, RowsOfCodesArePutInOrder) {
  const std::vector<FamilyModel> families = FamilyModels();
  const auto family = std::ranges::find(families, std::string_view("glm4"), &FamilyModel::name);
  Write(false, RandomModel("stored-glm4", SmallConfig(family->changes)), "k_proj.weight");
  const Network net = OpenNetwork(Path("m"));
  const PackedWeights& read = net.layers[1][Role::kK].weights;
  const TensorStore store(Path("m"));
  std::set<std::string> used;
  const StoredCodes codes({{"quant_method", "gptq"}}, "config");
  const std::string name = "model.layers.1.self_attn.k_proj";
  const Matrix<float> stored = Decode(codes.Read(store, name, read.rows, read.cols, used).weights);
  const Tensor floats =
      PairsApart(Borrow(stored), net.config.head_dim, net.config.ropes[0].head_dim);
  EXPECT_EQ(Decode(read).data, ToF32(floats).data);
}

// Codes count as the weights that they mean where they are rounded anew; CheckInvariance compares
// the layers.
TEST_F(StoredModel, IsASourceOfFloats) {
  Write(true);
  Recipe recipe = kQuarotRecipe;
  recipe.rounding = Rounding::kNearest;
  const QuantizeReport report =
      Quantize({.model = Path("m"), .output = Path("out"), .recipe = recipe});
  EXPECT_TRUE(report.recipe.maps());
  EXPECT_LT(report.invariance.change, report.invariance.limit());
}

TEST_F(StoredModel, WhatCannotBeKeptIsRefused) {
  Recipe recipe = kStoredRecipe;
  EXPECT_THAT(ErrorOf([&] { MakePlan(OpenNetwork(kTinyModel), recipe); }),
              testing::HasSubstr("no codes that --rounding stored could keep"));
  Write(false);
  const Network source = OpenNetwork(Path("m"));
  recipe.rotation = Rotation::kHadamard;
  EXPECT_THAT(ErrorOf([&] { MakePlan(source, recipe); }), testing::HasSubstr("cannot be rotated"));
  EditJson(Path("m/config.json"),
           [](Json& config) { config["quantization_config"]["checkpoint_format"] = "marlin"; });
  EXPECT_THAT(ErrorOf([&] { OpenNetwork(Path("m")); }), testing::HasSubstr("\"marlin\""));
}

}  // namespace
}  // namespace nibble
