// SPDX-License-Identifier: Apache-2.0
// Searched scales on families whose networks have outliers: they change nothing in floats, and
// rounded weights lose less with them.
#include "quantize/map/search_scales.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/rng.h"
#include "compute/exact_backend.h"
#include "models/import/open_network.h"
#include "models/outlier_model_testing.h"
#include "quantize/map/invariance.h"
#include "quantize/plan/make_plan.h"

namespace nibble {
namespace {

constexpr int64_t kSearchContext = 48;

std::vector<int32_t> RandomIds(uint64_t seed, int64_t vocabulary) {
  Rng rng(seed);
  std::vector<int32_t> ids(2 * kSearchContext);
  for (int32_t& id : ids) {
    id = static_cast<int32_t>(rng.Below(static_cast<uint64_t>(vocabulary)));
  }
  return ids;
}

class SearchedScales : public testing::TestWithParam<FamilyModel> {
 protected:
  SearchedScales() {
    const Json config = SmallConfig(GetParam().changes);
    const std::string name = "searched-" + std::string(GetParam().name);
    source_ = OpenNetwork(RandomModel(name, config, OutlierValues(config)));
    plan_ = MakePlan(source_.config, kAwqRecipe);
  }
  std::vector<ChannelScales> Search(int steps) {
    const Plan plain = SourcePlan(plan_);
    const Rotator source(source_, Recipe{}, plain, 0);
    const std::vector<int32_t> ids = RandomIds(1, source_.config.vocab_size);
    return SearchScales(*backend_, {source_.config, plan_, steps, source, ids, kSearchContext},
                        [](double) {});
  }
  // |x (Q(W) - W)^T|^2 on a text that the search has not seen, by plain loops, relative to |x
  // W^T|^2 and on average over all layers' linears but v and up, whose own rows have scales.
  double RelativeError(std::vector<ChannelScales> scales) {
    Rotator rotator(source_, kAwqRecipe, plan_, 0);
    rotator.Scale(std::move(scales));
    const std::vector<int32_t> ids = RandomIds(2, source_.config.vocab_size);
    const Plan plain = SourcePlan(plan_);
    Stream stream(*backend_, source_.config, plain, rotator.embedding(), ids, kSearchContext,
                  false);
    double sum = 0, count = 0;
    for (int64_t i = 0; i < source_.config.layers; ++i) {
      const FloatLayer layer = rotator.Layer(i);
      stream.Walk(StoreFloats(layer), i, [&](LinearSet set) {
        const auto [values, tokens] = stream.Input(set, 0, {.bits = 32});
        for (Role role : RolesOf(set)) {
          if (role == Role::kV || KindOf(role) == Role::kUp || tokens == 0) continue;
          const float* const x = backend_->Read(values, tokens * layer[role].cols);
          sum += Relative(x, tokens, layer[role], plan_.at(i, role).weights), ++count;
        }
      });
    }
    return sum / count;
  }
  static double Relative(const float* x, int64_t tokens, const Matrix<double>& w,
                         const FormatSpec& format) {
    const Matrix<float> rounded = Decode(RoundColumns(w, format));
    double errors = 0, squares = 0;
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t n = 0; n < w.rows; ++n) {
        double exact = 0, y = 0;
        for (size_t k = 0; k < static_cast<size_t>(w.cols); ++k) {
          const double input = x[static_cast<size_t>(t * w.cols) + k];
          exact += input * w.row(n)[k], y += input * rounded.row(n)[k];
        }
        errors += (y - exact) * (y - exact), squares += exact * exact;
      }
    }
    return errors / squares;
  }

  Network source_;
  Plan plan_;
  const std::unique_ptr<Backend> backend_ = MakeExactBackend();
};

TEST_P(SearchedScales, ChangeNothingInFloats) {
  Rotator rotator(source_, kAwqRecipe, plan_, 0);
  rotator.Scale(Search(4));
  const FloatLayers layers = [&](int64_t i) { return rotator.Layer(i); };
  EXPECT_LT(CheckInvariance(source_, rotator, layers, plan_, *backend_).change, 1e-4);
}

TEST_P(SearchedScales, LowerTheErrorOfProducts) {
  const double ratio = RelativeError(Search(20)) / RelativeError({});
  RecordProperty("ratio", fmt::format("{:.3f}", ratio));
  EXPECT_LT(ratio, 0.9);
}

INSTANTIATE_TEST_SUITE_P(All, SearchedScales, testing::ValuesIn(FamilyModels()),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace nibble
