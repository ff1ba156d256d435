// SPDX-License-Identifier: Apache-2.0
// Recipes on families whose networks have outliers, as trained ones do.
#include <gtest/gtest.h>

#include "engine/engine_testing.h"
#include "models/families/family.h"
#include "models/import/open_network.h"
#include "models/outlier_model_testing.h"
#include "quantize/recipes/recipe_fields.h"
#include "quantize/run/quantize.h"
#include "quantize/run/round_network.h"

namespace nibble {
namespace {

// Mean over rows of KL(p || q) of softmaxes, in nats.
double Divergence(std::span<const float> p, std::span<const float> q, size_t vocab) {
  double kl = 0;
  const auto log_sum = [](std::span<const float> row) {
    double sum = 0;
    const double top = double{*std::ranges::max_element(row)};
    for (const float x : row) sum += std::exp(x - top);
    return std::log(sum) + top;
  };
  for (size_t first = 0; first < p.size(); first += vocab) {
    const auto a = p.subspan(first, vocab), b = q.subspan(first, vocab);
    const double log_a = log_sum(a), log_b = log_sum(b);
    for (size_t i = 0; i < vocab; ++i) {
      kl += std::exp(a[i] - log_a) * (a[i] - log_a - (b[i] - log_b));
    }
  }
  return kl * static_cast<double>(vocab) / static_cast<double>(p.size());
}

class OutlierFamilies : public testing::TestWithParam<FamilyModel> {
 protected:
  // prefix: of files, those of a suite, since suites run side by side.
  explicit OutlierFamilies(std::string prefix = "outliers-") : prefix_(std::move(prefix)) {}
  void SetUp() override {
    Json config = SmallConfig(GetParam().changes);
    config["vocab_size"] = config["vocab_size_per_layer_input"] = kVocab;  // of the tokenizer
    source_ = RandomModel(Name(), config, OutlierValues(config));
    std::filesystem::copy_file(std::string(kTinyModel) + "/tokenizer.json",
                               source_ + "/tokenizer.json",
                               std::filesystem::copy_options::overwrite_existing);
    DrawText(5);
  }
  void DrawText(uint64_t seed) {
    Rng rng(seed);
    for (size_t i = 1; i < ids_.size(); ++i) ids_[i] = static_cast<int32_t>(rng.Below(kVocab));
    exact_ = AllLogits(*LoadModel(source_, "cpu", false), ids_);
  }
  std::string Name() const { return prefix_ + std::string(GetParam().name); }

  double Lost(Model& model) { return Divergence(exact_, AllLogits(model, ids_), kVocab); }
  double Quantized(const Recipe& recipe) {
    QuantizeOptions options = {.model = source_,
                               .output = testing::TempDir() + "/" + Name() + "-out",
                               .recipe = recipe,
                               .calibration_windows = 4,
                               .context = 64,
                               .force = true};
    std::filesystem::remove_all(options.output + ".partial");  // of a test that crashed
    Quantize(options);
    return Lost(*LoadModel(options.output, "cpu", false));
  }
  double Rounded(const Recipe& recipe) {
    const Network source = OpenNetwork(source_);
    Model model(RoundNetwork(source, recipe), MakeBackend("cpu", false));
    return Lost(model);
  }

  static constexpr size_t kVocab = 4096;
  const std::string prefix_;
  std::string source_;
  std::vector<int32_t> ids_ = std::vector<int32_t>(64);
  std::vector<float> exact_;
};

// KL divergences over that of weight-only rounding to rows of 8 bits, and over that of the recipe's
// own formats rounded to nearest. The largest that were measured are 2.2 and 1.5 (the latter of
// codewords of two bits, which leave next to nothing either way); the ratios are properties in the
// XML file.
TEST_P(OutlierFamilies, NoRecipeDoesHarm) {
  Recipe bytes = kRtnRecipe;
  bytes.weights = {.bits = 8, .group = 64};
  const double min = Rounded(bytes);
  for (const Recipe* own :
       {&kW4a8Recipe, &kQuarotRecipe, &kGptqRecipe, &kQuipsharpRecipe, &kAwqRecipe}) {
    std::string fields = "w-bits=8";
    if (own->activations.bits < 8) fields += ",a-bits=8";
    if (own->k.bits < 8) fields += ",kv-bits=8";
    const Recipe eight = ChangedRecipe(*own, ParseFields(fields), {});
    const double eight_bits = Quantized(eight) / min;
    const double own_bits = Quantized(*own) / Rounded(PlainRecipe(*own));
    RecordProperty(std::string(own->name) + "_8_bits", fmt::format("{:.2f}", eight_bits));
    RecordProperty(std::string(own->name) + "_own_bits", fmt::format("{:.2f}", own_bits));
    EXPECT_LT(eight_bits, 3) << own->name;
    EXPECT_LT(own_bits, 2) << own->name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OutlierFamilies, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

std::vector<FamilyModel> FamiliesWithKeyBiases() {
  std::vector<FamilyModel> families = FamilyModels();
  std::erase_if(families, [](const FamilyModel& family) {
    const ModelConfig config = ParseConfig(SmallConfig(family.changes), std::string(family.name));
    return !config.has_bias(Role::kK) || !config.centers_keys();
  });
  return families;
}

// Keys of 4 bits, and nothing else that is rounded, on five texts. Families without biases have no
// mean to speak of, and ratios on both sides of 1.
class BiasedKeys : public OutlierFamilies {
 protected:
  BiasedKeys() : OutlierFamilies("biased-keys-") {}
};
TEST_P(BiasedKeys, AreCloserWithoutTheirMean) {
  const Recipe raw = ChangedRecipe(kRtnRecipe, ParseFields("w-bits=16,k-bits=4,kv-asym"), {});
  Recipe centered = raw;
  centered.center_keys = true;
  double lost = 0, lost_raw = 0;
  for (uint64_t seed = 5; seed < 10; ++seed) {
    DrawText(seed);
    lost += Quantized(centered), lost_raw += Quantized(raw);
  }
  RecordProperty("ratio", fmt::format("{:.3f}", lost / lost_raw));
  EXPECT_LT(lost / lost_raw, 0.95);
}

INSTANTIATE_TEST_SUITE_P(Families, BiasedKeys, testing::ValuesIn(FamiliesWithKeyBiases()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace nibble
