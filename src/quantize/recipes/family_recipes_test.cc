// SPDX-License-Identifier: Apache-2.0
// Every family under the recipes: rotation and folding are exact (Quantize checks it), and kernels
// compute what the checkpoint means.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_testing.h"
#include "engine/engine_testing.h"
#include "models/random_model_testing.h"
#include "quantize/run/quantize.h"
#include "quantize/walk/backprop.h"

namespace nibble {
namespace {

double Distance(std::span<const float> a, std::span<const float> b) {
  double squares = 0;
  for (size_t i = 0; i < a.size(); ++i) squares += std::pow(double{a[i]} - b[i], 2);
  return std::sqrt(squares);
}

class FamilyRecipes : public testing::TestWithParam<FamilyModel> {};

TEST_P(FamilyRecipes, KernelsComputeWhatIsStored) {
  const std::string name = "recipes-" + std::string(GetParam().name);
  Json config = SmallConfig(GetParam().changes);
  config["vocab_size"] = config["vocab_size_per_layer_input"] = 4096;  // of the tokenizer
  const std::string source = RandomModel(name, config);
  std::filesystem::copy_file(std::string(kTinyModel) + "/tokenizer.json",
                             source + "/tokenizer.json",
                             std::filesystem::copy_options::overwrite_existing);
  std::vector<int32_t> ids;
  Rng rng(5);
  for (int i = 0; i < 48; ++i) ids.push_back(static_cast<int32_t>(rng.Below(4096)));
  const std::vector<float> exact = AllLogits(*LoadModel(source, "cpu", false), ids);
  Recipe quik = kQuikRecipe;
  quik.tail = 16;
  for (const Recipe* recipe : {&kW4a8Recipe, &kQuarotRecipe, &std::as_const(quik), &kNibbleRecipe,
                               &kAwqRecipe, &kOmniquantRecipe}) {
    QuantizeOptions options = {.model = source,
                               .output = testing::TempDir() + "/" + name + "-out",
                               .recipe = *recipe,
                               .calibration_windows = 2,
                               .context = 64,
                               .force = true};
    std::filesystem::remove_all(options.output + ".partial");  // of a test that crashed
    if (recipe->block_epochs > 0 && !Differentiable(ParseConfig(config, name))) {
      EXPECT_THAT(ErrorOf([&] { Quantize(options); }), testing::HasSubstr("--block-epochs"));
      continue;
    }
    Quantize(options);
    const auto logits = [&](bool decoded) {
      return AllLogits(*LoadModel(options.output, "cpu", decoded), ids);
    };
    const std::vector<float> kernels = logits(false), decoded = logits(true);
    // The order of fp32 sums moves a code of activations or of the cache now and then, and with it
    // those behind it: at worst the two are two roundings of one model.
    const double loss = Distance(kernels, exact);
    EXPECT_LT(Distance(kernels, decoded), loss) << recipe->name;
    EXPECT_NEAR(loss / Distance(decoded, exact), 1, 0.2) << recipe->name;
    EXPECT_LT(loss, Distance(exact, std::vector<float>(exact.size()))) << recipe->name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, FamilyRecipes, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace nibble
