// SPDX-License-Identifier: Apache-2.0
// Scales and orders of channels on the sample model, and tails in both roundings.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "compute/exact_backend.h"
#include "engine/engine_testing.h"
#include "formats/packed_weights_testing.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "quantize/map/channel_scales.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/gptq_testing.h"
#include "tensor/random_testing.h"

namespace nibble {
namespace {

std::vector<LayerStatistics> StatisticsOf(Backend& backend, const Network& source, const Plan& plan,
                                          const Rotator& rotator, uint64_t vocabulary) {
  Rng rng(1);
  std::vector<int32_t> ids;
  for (int i = 0; i < 2 * 48; ++i) ids.push_back(static_cast<int32_t>(rng.Below(vocabulary)));
  return CollectStatistics(backend, source.config, plan, rotator, ids, 48, true,
                           [](double, std::string_view) {});
}

// The scales that the recipe wants, by statistics of the source.
std::vector<ChannelScales> ScalesOfSource(Backend& backend, const Network& source,
                                          const Recipe& recipe, const Plan& plan,
                                          uint64_t vocabulary) {
  const Plan plain = SourcePlan(plan);
  const Rotator as_it_is(source, Recipe{}, plain, 0);
  return ScalesOf(StatisticsOf(backend, source, plain, as_it_is, vocabulary), as_it_is,
                  source.config, recipe);
}

// Every map that the recipe has leaves the logits alone.
void ExpectExact(const Network& source, const Recipe& wanted, uint64_t vocabulary) {
  const Recipe recipe = FittedTo(source.config, wanted);
  const auto backend = MakeExactBackend();
  const Plan plan = MakePlan(source.config, recipe);
  Rotator rotator(source, recipe, plan, 3);
  rotator.Scale(ScalesOfSource(*backend, source, recipe, plan, vocabulary));
  const auto statistics = StatisticsOf(*backend, source, plan, rotator, vocabulary);
  const FloatLayers layers = [&](int64_t i) {
    FloatLayer layer = rotator.Layer(i);
    ArrangeChannels(statistics[static_cast<size_t>(i)], source.config, recipe, plan, i, layer);
    return layer;
  };
  EXPECT_LT(CheckInvariance(source, rotator, layers, plan, *backend).change, 1e-4) << recipe.name;
}

// The sample model through CollectStatistics on random ids.
class ChannelsTest : public testing::Test {
 protected:
  std::vector<LayerStatistics> Statistics(const Plan& plan, const Rotator& rotator) {
    return StatisticsOf(*backend_, source_, plan, rotator, 4096);
  }

  struct Arranged {
    std::vector<LayerStatistics> statistics;
    FloatLayer before, after;
  };
  // Layer `index` before and after ArrangeChannels.
  Arranged Arrange(const Recipe& recipe, int64_t index) {
    const Plan plan = MakePlan(source_.config, recipe);
    const Rotator rotator(source_, recipe, plan, 0);
    Arranged arranged = {Statistics(plan, rotator), rotator.Layer(index), rotator.Layer(index)};
    ArrangeChannels(arranged.statistics[static_cast<size_t>(index)], source_.config, recipe, plan,
                    index, arranged.after);
    return arranged;
  }

  const Network source_ = OpenNetwork(kTinyModel);
  const std::unique_ptr<Backend> backend_ = MakeBackend("cpu", false);
};

// Every exact map leaves the logits alone, alone and together with a rotation.
TEST_F(ChannelsTest, MapsKeepTheLogits) {
  Recipe quik = kQuikRecipe, smooth = kSmoothquantRecipe, both = kAtomRecipe;
  both.smoothing = 0.5;
  Recipe rotated = kQuarotRecipe;
  rotated.order = ChannelOrder::kEnergy;
  rotated.key_smoothing = 0.7;
  Recipe qserve = kQserveRecipe;
  qserve.weights = {.bits = 4};  // no group divides down's width here
  for (const Recipe& recipe : {quik, smooth, both, rotated, qserve}) {
    ExpectExact(source_, recipe, 4096);
  }
}

// Scales of what norms give out and of keys, with a transform of every input and without.
class ScaledFamily : public testing::TestWithParam<FamilyModel> {};

TEST_P(ScaledFamily, ScalesKeepTheLogits) {
  const Network source = OpenNetwork(
      RandomModel("scaled-" + std::string(GetParam().name), SmallConfig(GetParam().changes)));
  Recipe inputs = kQuarotRecipe, plain = kRtnRecipe;
  inputs.rotation = Rotation::kInputs;
  inputs.center_keys = plain.center_keys = source.config.centers_keys();
  plain.k = {.bits = 8};
  if (source.config.has(LayerVector::kMlpNorm)) plain.smoothing = 0.5;
  plain.key_smoothing = 0.7;
  ExpectExact(source, inputs, 64);
  ExpectExact(source, plain, 64);
}

INSTANTIATE_TEST_SUITE_P(All, ScaledFamily, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

// Scales of an FFN and of the experts beside it go to the norm of either, and none to the router.
TEST(ChannelsOfExperts, MapsKeepTheLogits) {
  const std::vector<FamilyModel> families = FamilyModels();
  const auto family =
      std::ranges::find(families, std::string_view("gemma4_experts"), &FamilyModel::name);
  const Network source = OpenNetwork(RandomModel("channels-experts", SmallConfig(family->changes)));
  const auto backend = MakeBackend("cpu", true);
  Recipe ordered = kQuikRecipe;
  ordered.smoothing = 0.5, ordered.tail = 16;
  for (const Recipe& recipe : {kSmoothquantRecipe, ordered}) {
    const Plan plan = MakePlan(source.config, recipe);
    Rotator rotator(source, recipe, plan, 3);
    const FloatLayer before = rotator.Layer(1);
    rotator.Scale(ScalesOfSource(*backend, source, recipe, plan, 64));
    const FloatLayer after = rotator.Layer(1);
    for (const LayerVector norm : {LayerVector::kMlpNorm, LayerVector::kExpertsNorm}) {
      EXPECT_NE(before.vectors[norm], after.vectors[norm]) << VectorName(norm);
    }
    EXPECT_EQ(before.vectors[LayerVector::kRouterNorm], after.vectors[LayerVector::kRouterNorm]);
    ExpectExact(source, recipe, 64);
  }
}

// Both channels that RoPE turns into each other have one factor, and so have the queries of a key:
// without a transform its largest value, in front of one what balances keys and queries.
TEST_F(ChannelsTest, KeysAreScaledInPairs) {
  Recipe recipe = kRtnRecipe, rotated = kQuarotRecipe;
  recipe.key_smoothing = 1;
  rotated.balance = 0;
  const Plan plan = MakePlan(source_.config, recipe);
  const Rotator as_it_is(source_, Recipe{}, plan, 0);
  const auto statistics = Statistics(plan, as_it_is);
  Rotator rotator(source_, recipe, plan, 0);
  rotator.Scale(ScalesOf(statistics, as_it_is, source_.config, recipe));
  const FloatLayer before = as_it_is.Layer(1), after = rotator.Layer(1);
  const auto balanced = ScalesOf(statistics, as_it_is, source_.config, rotated)[1].keys;
  const KeyStatistics& keys = statistics[1].keys;
  const int64_t d = source_.config.head_dim, half = d / 2;
  const int64_t queries = source_.config.heads / source_.config.kv_heads;
  ASSERT_EQ(keys.largest.size(), static_cast<size_t>(source_.config.kv_heads * d));
  double first = 0;
  for (int64_t n = 0; n < source_.config.kv_heads * d; ++n) {
    const auto at = static_cast<size_t>(n);
    const double max = keys.largest[at];
    ASSERT_GT(max, 0);
    EXPECT_EQ(
        max,
        keys.largest[at - static_cast<size_t>(n % d) + static_cast<size_t>((n % d + half) % d)]);
    EXPECT_GE(keys.energy[at], max * max) << "of both channels";
    const int64_t query = (n / d * queries + queries - 1) * d + n % d;
    EXPECT_NEAR(after[Role::kK].row(n)[3] * max, before[Role::kK].row(n)[3], 1e-12);
    EXPECT_NEAR(after[Role::kQ].row(query)[3], before[Role::kQ].row(query)[3] * max, 1e-12);
    // All up to one factor, since s^2 = sqrt(k^2 / q^2).
    const double ratio = std::pow(balanced[at], 4) * keys.query_energy[at] / keys.energy[at];
    if (n == 0) first = ratio;
    EXPECT_NEAR(ratio / first, 1, 1e-9);
  }
}

TEST_F(ChannelsTest, OrdersRiseAndDownsIsFolded) {
  auto [statistics, before, after] = Arrange(kQuikRecipe, 2);
  const auto& largest = statistics[2].inputs[Role::kO].largest;
  const auto& gather = after.gathers[Role::kO];
  ASSERT_EQ(gather.size(), largest.size());
  for (size_t k = 0; k < gather.size(); ++k) {
    EXPECT_LE(largest[gather[k == 0 ? 0 : k - 1]], largest[gather[k]]);
    EXPECT_EQ(after[Role::kO].row(7)[k], before[Role::kO].row(7)[gather[k]]);
  }
  EXPECT_TRUE(after.gathers[Role::kDown].empty());
  EXPECT_EQ(after.gathers[Role::kQ], after.gathers[Role::kV]);
}

// Rows of up and v are divided by what the columns of down and o are multiplied with: SmoothQuant's
// scales, for o the largest of the query heads that share a value head.
TEST_F(ChannelsTest, OutputsAreSmoothed) {
  Recipe recipe = kRtnRecipe;
  recipe.output_smoothing = 0.25;
  Arranged arranged = Arrange(recipe, 1);
  const auto& statistics = arranged.statistics;
  FloatLayer &before = arranged.before, &after = arranged.after;
  const auto scale = [&](Role role, size_t k) {
    double weight = 0;
    for (int64_t n = 0; n < before[role].rows; ++n) {
      weight = std::max(weight, std::fabs(before[role].row(n)[k]));
    }
    const double largest = statistics[1].inputs[role].largest[k];
    return std::pow(largest, 0.25) / std::pow(weight, 0.75);
  };
  const auto check = [&](Role maker, int64_t row, Role reader, size_t column, double factor) {
    EXPECT_NEAR(after[maker].row(row)[5] * factor, before[maker].row(row)[5], 1e-12);
    EXPECT_NEAR(after[reader].row(5)[column], before[reader].row(5)[column] * factor, 1e-12);
  };
  for (int64_t k = 0; k < source_.config.intermediate_size; ++k) {
    const auto column = static_cast<size_t>(k);
    check(Role::kUp, k, Role::kDown, column, scale(Role::kDown, column));
  }
  const int64_t d = source_.config.head_dim;
  const int64_t queries = source_.config.heads / source_.config.kv_heads;
  for (int64_t n = 0; n < source_.config.kv_heads * d; ++n) {
    double largest = 0;
    for (int64_t head = n / d * queries; head < (n / d + 1) * queries; ++head) {
      const auto column = static_cast<size_t>(head * d + n % d);
      largest = std::max(largest, scale(Role::kO, column));
    }
    for (int64_t head = n / d * queries; head < (n / d + 1) * queries; ++head) {
      check(Role::kV, n, Role::kO, static_cast<size_t>(head * d + n % d), largest);
    }
  }
  recipe = kQuarotRecipe;
  recipe.output_smoothing = 0.25;
  EXPECT_THROW(MakePlan(source_.config, recipe), Error) << "online transforms mix these channels";
}

// Energy is the diagonal of the Hessian, largest the maximum over the same tokens: of one channel
// energy lies between max^2 and tokens * max^2.
TEST_F(ChannelsTest, StatisticsAgreeWithEachOther) {
  const Plan plan = MakePlan(source_.config, kAtomRecipe);
  const auto statistics = Statistics(plan, Rotator(source_, kAtomRecipe, plan, 0));
  ASSERT_EQ(statistics.size(), 6u);
  for (const LayerStatistics& layer : statistics) {
    for (const auto& [role, input] : layer.inputs) {
      for (size_t k = 0; k < input.largest.size(); ++k) {
        const double square = input.largest[k] * input.largest[k];
        EXPECT_GT(square, 0);
        EXPECT_GE(input.energy[k], square);
        EXPECT_LE(input.energy[k], 96 * square * (1 + 1e-12));
      }
    }
  }
}

TEST(Recipes, TailsFitTheWidths) {
  Recipe recipe = kQuikRecipe;
  EXPECT_EQ(TailColumns(recipe, 4096, 4096), 256);
  EXPECT_EQ(TailColumns(recipe, 4096, 11008), 704);
  EXPECT_EQ(TailColumns(recipe, 8192, 8192), 256);
  EXPECT_EQ(TailColumns(recipe, 8192, 28672), 896);  // as the paper's 70B
  EXPECT_EQ(TailColumns(recipe, 2048, 2048), 256);
  EXPECT_EQ(TailColumns(recipe, 512, 512), 32) << "as 256 of 4096";
  EXPECT_EQ(TailColumns(recipe, 512, 1376), 96);
  EXPECT_EQ(TailColumns(recipe, 64, 64), 32);
  recipe = kAtomRecipe;
  EXPECT_EQ(TailColumns(recipe, 4096, 4096), 128);
  EXPECT_EQ(TailColumns(recipe, 4096, 11008), 128);
  EXPECT_EQ(TailColumns(recipe, 8192, 28672), 128);
  EXPECT_EQ(TailColumns(recipe, 512, 1376), 96);  // 32 of it, then up to 1280 = 10 groups
  EXPECT_THROW(TailColumns(recipe, 100, 100), Error);
}

TEST(Recipes, GroupsFitTheWidths) {
  for (const auto& [group, width, fitting] :
       std::vector<std::array<int64_t, 3>>{{128, 4096, 128},
                                           {128, 1376, 32},
                                           {128, 1344, 96},
                                           {256, 11008, 256},
                                           {64, 1376, 32},
                                           {128, 688, 0},
                                           {0, 1376, 0},
                                           {100, 1376, 100},
                                           {2048, 512, 512}}) {
    EXPECT_EQ(FittingGroup(group, width), fitting) << group << " of " << width;
  }
}

// --- rounding -----------------------------------------------------------------------------------

// tr(E H E^T) by plain loops, H = X^T X.
double OutputError(const Matrix<double>& w, const Rounded& rounded, const Matrix<double>& x) {
  const Matrix<float> decoded = DecodeBoth(rounded.weights, rounded.tail);
  double total = 0;
  for (int64_t n = 0; n < w.rows; ++n) {
    for (int64_t t = 0; t < x.rows; ++t) {
      double sum = 0;
      for (size_t k = 0; k < static_cast<size_t>(w.cols); ++k) {
        sum += (double{decoded.row(n)[k]} - w.row(n)[k]) * x.row(t)[k];
      }
      total += sum * sum;
    }
  }
  return total;
}

TEST(Tails, NearestRoundsBothPartsByThemselves) {
  Rng rng(5);
  const Matrix<double> w = RandomMatrix(6, 96, rng);
  const TailPlan tail = {.columns = 32, .weights = {.bits = 8}};
  const Rounded rounded = RoundNearest(w, {.bits = 4}, tail);
  ExpectSamePlanes(rounded.weights, RoundNearest(Columns(w, 0, 64), {.bits = 4}).weights);
  ExpectSamePlanes(rounded.tail, RoundNearest(Columns(w, 64, 32), {.bits = 8}).weights);
  const Rounded halves = RoundNearest(w, {.bits = 4}, {.columns = 32});
  const Matrix<float> decoded = DecodeBoth(halves.weights, halves.tail);
  for (int64_t n = 0; n < 6; ++n) {
    for (size_t k = 64; k < 96; ++k) {
      EXPECT_NEAR(decoded.row(n)[k], w.row(n)[k], std::fabs(w.row(n)[k]) * 0x1p-11);
    }
  }
  Matrix<double> large = w;
  large.row(3)[90] = 1e6;
  EXPECT_THROW(RoundNearest(large, {.bits = 4}, {.columns = 32}), Error);
}

// Outputs stay closer when the tail takes up the errors of the columns in front of it: against
// GPTQ of those columns alone beside a tail as it was.
TEST(Tails, GptqsTailTakesUpErrors) {
  Rng rng(6);
  const int64_t cols = 160, tail = 32;
  Matrix<double> x = RandomMatrix(400, cols, rng);
  for (int64_t t = 0; t < x.rows; ++t) {  // every column leans on the tail
    for (size_t k = 0; k < static_cast<size_t>(cols - tail); ++k) {
      x.row(t)[k] += 2 * x.row(t)[static_cast<size_t>(cols - tail) + k % tail];
    }
  }
  Matrix<float> inputs(x.rows, cols);
  std::ranges::copy(x.data, inputs.data.begin());
  const Matrix<double> w = RandomMatrix(40, cols, rng);
  for (const int bits : {8, 16}) {
    for (const bool act_order : {false, true}) {
      for (const int64_t group : {0, 32}) {
        const FormatSpec format = {.bits = 3, .group = group};
        const FormatSpec last = {.bits = bits};
        const Rounded rounded =
            RoundGptq(w, inputs, format, {.act_order = act_order, .tail = tail}, last);
        EXPECT_EQ(rounded.weights.cols, cols - tail);
        EXPECT_EQ(rounded.tail.cols, tail);
        const double error = OutputError(w, rounded, x);
        Rounded idle = rounded;
        idle.tail = RoundColumns(Columns(w, cols - tail, tail), last);
        EXPECT_LT(error, 0.7 * OutputError(w, idle, x)) << bits << " " << act_order << " " << group;
        double power = 0;
        for (int64_t n = 0; n < w.rows; ++n) {
          for (int64_t t = 0; t < x.rows; ++t) {
            double sum = 0;
            for (int64_t k = 0; k < cols; ++k) sum += w.row(n)[k] * x.row(t)[k];
            power += sum * sum;
          }
        }
        EXPECT_NEAR(rounded.relative_error, error / power, 1e-6);
      }
    }
  }
}

}  // namespace
}  // namespace nibble
