// SPDX-License-Identifier: Apache-2.0
// The numbers of a report against plain loops, and against models made so that they are known.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error_testing.h"
#include "base/rng.h"
#include "compute/exact_backend.h"
#include "engine/engine_testing.h"
#include "models/import/open_network.h"
#include "models/outlier_model_testing.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/round_network.h"
#include "report/measure.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

Matrix<double> Normals(int64_t rows, int64_t cols, uint64_t seed) {
  Rng rng(seed);
  Matrix<double> m(rows, cols);
  for (double& value : m.data) value = rng.Normal();
  return m;
}

std::vector<int32_t> RandomIds(int64_t count, uint64_t vocabulary) {
  Rng rng(2);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.Below(vocabulary)));
  return ids;
}

TEST(Incoherence, OfWeightsAsInPlainLoops) {
  const Matrix<double> w = Normals(7, 12, 1);
  double max = 0, squares = 0;
  for (int64_t n = 0; n < 7; ++n) {
    for (size_t k = 0; k < 12; ++k) {
      max = std::max(max, std::abs(w.row(n)[k]));
      squares += std::pow(w.row(n)[k], 2);
    }
  }
  EXPECT_NEAR(WeightIncoherence(w), max * std::sqrt(7 * 12) / std::sqrt(squares), 1e-12);
  EXPECT_TRUE(std::isnan(WeightIncoherence(Matrix<double>(3, 3))));
}

// One entry alone is as incoherent as can be, sqrt(K); its Hadamard transform not at all, 1.
TEST(Incoherence, AHadamardTransformSpreadsASpike) {
  for (const int64_t width : {64, 96, 640}) {
    Matrix<double> spike(1, width);
    spike.row(0)[5] = -3;
    EXPECT_NEAR(WeightIncoherence(spike), std::sqrt(width), 1e-9);
    ApplyTransformToRows(FullHadamard(width), spike);
    EXPECT_NEAR(WeightIncoherence(spike), 1, 1e-9) << width;
  }
}

TEST(Incoherence, OfInputsIsTheLargestOverTheRootMeanSquare) {
  // Two tokens of two channels: (3, 0) and (-4, 1).
  const InputSizes sizes = SizesOf({.largest = {4, 1}, .energy = {25, 1}, .tokens = 2});
  EXPECT_DOUBLE_EQ(sizes.mean_square, 26.0 / 4);
  EXPECT_DOUBLE_EQ(sizes.incoherence(), 4 / std::sqrt(6.5));
  EXPECT_TRUE(std::isnan(SizesOf({.largest = {0}, .energy = {0}, .tokens = 2}).incoherence()));
}

TEST(StreamQualityTest, SqnrIsThatOfItsFormula) {
  const std::vector<double> y = {3, 4}, other = {3, 3.5};
  EXPECT_NEAR(Sqnr(y, other), 20, 1e-9);  // 25 / 0.25
}

TEST(StreamQualityTest, TheRotationIsFoundInSpiteOfNoise) {
  constexpr int64_t kRows = 400, kWidth = 24;
  Rng rng(3);
  const Matrix<double> rotation = RandomOrthogonal(kWidth, rng);
  const Matrix<double> from = Normals(kRows, kWidth, 4), noise = Normals(kRows, kWidth, 5);
  Matrix<double> to(kRows, kWidth);
  for (int64_t t = 0; t < kRows; ++t) {
    for (int64_t i = 0; i < kWidth; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < kWidth; ++k) sum += rotation.row(i)[k] * from.row(t)[k];
      to.row(t)[i] = sum + 0.01 * noise.row(t)[i];
    }
  }
  const Matrix<double> found = FitRotation(from, to);
  for (size_t i = 0; i < found.data.size(); ++i) {
    EXPECT_NEAR(found.data[i], rotation.data[i], 0.005);
  }
}

// A checkpoint of `source` as quantize writes it, in memory.
Network CheckpointOf(const Network& source, const Recipe& recipe) {
  Network network = RoundNetwork(source, recipe);
  network.config_json["quantization_config"] = ToJson(MakePlan(source, recipe));
  network.packed = true;
  return network;
}

Recipe RoundedTo(int bits, Rotation rotation) {
  Recipe recipe = kRtnRecipe;
  recipe.rotation = rotation;
  recipe.weights = {.bits = bits};
  recipe.activations = {.bits = 8};
  recipe.k = recipe.v = {.bits = 8};
  return recipe;
}

class Streams : public testing::Test {
 protected:
  std::vector<StreamQuality> Compare(const std::vector<Network>& checkpoints) {
    return CompareStreams(*backend_, source_, SourcePlan(MakePlan(source_, kRtnRecipe)),
                          checkpoints, RandomIds(2 * 64, 4096), 64, [](double) {});
  }

  const Network source_ = OpenNetwork(kTinyModel);
  const std::unique_ptr<Backend> backend_ = MakeExactBackend();
};

// More bits leave more of the stream, turned or not; and where it is turned, the matrix that the
// embedding shows is the one that the recipe has drawn.
TEST_F(Streams, MoreBitsLeaveMoreWhateverTheBasis) {
  std::vector<Network> checkpoints;
  for (const Rotation rotation : {Rotation::kNone, Rotation::kHadamard}) {
    for (const int bits : {4, 8}) {
      checkpoints.push_back(CheckpointOf(source_, RoundedTo(bits, rotation)));
    }
  }
  const std::vector<StreamQuality> results = Compare(checkpoints);
  ASSERT_EQ(results.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const StreamQuality& r = results[i];
    EXPECT_EQ(r.turned, i >= 2);
    EXPECT_EQ(r.unmeasured, "");
    EXPECT_GT(r.embedding, 30) << "the table has 8 bits";
    ASSERT_EQ(std::ssize(r.together), source_.config.layers);
    ASSERT_EQ(std::ssize(r.middle), source_.config.layers);
  }
  for (const size_t four : {0, 2}) {
    for (size_t i = 0; i < results[0].together.size(); ++i) {
      EXPECT_GT(results[four].together[i], 5);
      EXPECT_GT(results[four + 1].together[i], results[four].together[i] + 6) << "layer " << i;
    }
  }
}

TEST_F(Streams, TheFittedRotationIsTheRecipes) {
  const Recipe recipe = RoundedTo(8, Rotation::kHadamard);
  const Network checkpoint = CheckpointOf(source_, recipe);
  const Plan plan = MakePlan(source_, recipe);
  const Rotator rotator(source_, recipe, plan, 0);
  const Matrix<double> from = ToF64(source_.embedding.values);
  const Matrix<float> table = Decode(checkpoint.embedding);
  Matrix<double> to(table.rows, table.cols);
  std::ranges::copy(table.data, to.data.begin());
  const Matrix<double> found = FitRotation(from, to);
  const Matrix<double> known = rotator.Turn(IdentityMatrix(from.cols));  // its transpose
  for (int64_t i = 0; i < found.rows; ++i) {
    for (int64_t k = 0; k < found.cols; ++k) ASSERT_NEAR(found.row(i)[k], known.row(k)[i], 2e-3);
  }
  // What is wrong with it is far below what four bits do.
  const Matrix<double> x = Normals(100, from.cols, 6), right = rotator.Turn(x);
  Matrix<double> fitted(x.rows, x.cols);
  Multiply(x, found, true, fitted);
  EXPECT_GT(Sqnr(right.data, fitted.data), 45);
}

TEST_F(Streams, AnotherModelIsRefused) {
  Network other = CheckpointOf(source_, RoundedTo(8, Rotation::kHadamard));
  Matrix<float> table(other.embedding.rows, other.embedding.cols);
  Rng rng(9);
  for (float& value : table.data) value = static_cast<float>(rng.Normal());
  other.embedding = FloatTable(table);
  std::vector<Network> checkpoints;
  checkpoints.push_back(std::move(other));
  EXPECT_THAT(ErrorOf([&] { Compare(checkpoints); }), testing::HasSubstr("of another model"));
}

// On models with outliers, of a family whose stream is turned and of one whose stream is not.
TEST(RotationTest, OutliersAreSpread) {
  for (const Json& changes : {Json{{"model_type", "llama"}}, Json{{"model_type", "olmo2"}}}) {
    const Json config = SmallConfig(changes);
    const Network source =
        OpenNetwork(RandomModel("report-outliers", config, OutlierValues(config)));
    const Recipe recipe = RotatedRecipe(source.config, kRtnRecipe);
    EXPECT_EQ(recipe.rotation, Rotation::kHadamard);
    const auto backend = MakeExactBackend();
    ModelReport report = {.layer = 1};
    MeasureRotation(*backend, source, recipe, RandomIds(2 * 32, 64), 32, report);
    ASSERT_EQ(report.before.size(), 2u);
    ASSERT_EQ(report.after.size(), 2u);
    for (size_t i = 0; i < 2; ++i) {
      for (const auto kind : {LinearSet::kQkv, LinearSet::kMlp}) {
        const InputSizes &a = report.before[i].inputs.at(kind),
                         &b = report.after[i].inputs.at(kind);
        EXPECT_EQ(a.largest.size(), b.largest.size());
        EXPECT_LT(b.incoherence(), a.incoherence()) << changes.dump() << " layer " << i;
      }
      EXPECT_EQ(report.before[i].weights.size(), 7u);
      EXPECT_EQ(report.after[i].weights.size(), 7u);
    }
  }
}

// Whatever a family's layers have, every layer has its inputs and weights, and a checkpoint follows
// the source.
class ReportFamilies : public testing::TestWithParam<FamilyModel> {};

TEST_P(ReportFamilies, AreMeasured) {
  const Network source = OpenNetwork(
      RandomModel("report-" + std::string(GetParam().name), SmallConfig(GetParam().changes)));
  const auto backend = MakeExactBackend();
  const std::vector<int32_t> ids = RandomIds(2 * 24, 64);
  const Recipe plain = RoundedTo(8, Rotation::kNone);
  ModelReport report;
  MeasureRotation(*backend, source, RotatedRecipe(source.config, plain), ids, 24, report);
  ASSERT_EQ(std::ssize(report.before), source.config.layers);
  ASSERT_EQ(std::ssize(report.after), source.config.layers);
  for (const auto* layers : {&report.before, &report.after}) {
    for (const LayerSizes& layer : *layers) {
      for (const auto& [kind, sizes] : layer.inputs) EXPECT_GE(sizes.incoherence(), 1) << kind;
      for (const auto& [role, mu] : layer.weights) EXPECT_GE(mu, 1) << RoleName(role);
      EXPECT_EQ(layer.inputs.size(), 4u);
    }
  }
  std::vector<Network> checkpoints;
  checkpoints.push_back(CheckpointOf(source, plain));
  const auto streams = CompareStreams(*backend, source, SourcePlan(MakePlan(source, plain)),
                                      checkpoints, ids, 24, [](double) {});
  EXPECT_GT(*std::ranges::min_element(streams[0].middle), 10);
  EXPECT_FALSE(SizesByRole(checkpoints[0]).empty());
}

INSTANTIATE_TEST_SUITE_P(All, ReportFamilies, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace nibble
