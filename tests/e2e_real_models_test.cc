// SPDX-License-Identifier: Apache-2.0
// Tests quantizing with defaults on models that people use: the loss must not exceed that of
// rounding to nearest.
#include <gtest/gtest.h>

#include "models/real_model_testing.h"
#include "tests/e2e_testing.h"

namespace nibble {
namespace {

#ifndef NIBBLE_SLOW_BUILD  // where it would take many minutes
class RealModelsEndToEnd : public EndToEnd, public testing::WithParamInterface<const char*> {};

TEST_P(RealModelsEndToEnd, TheDefaultLosesLessThanPlainGroups) {
  const std::string model = RealModel(GetParam());
  if (model.empty()) GTEST_SKIP() << "needs " << GetParam();
  const Result r = Nibble({"quantize", model, "-o", Path("out"), "--calib-windows", "4",
                           "--context", "512", "--loss-windows", "2", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json loss = r.json()["loss"];
  EXPECT_LT(loss["kl_mean"], loss["plain"]["kl_mean"]);
}

INSTANTIATE_TEST_SUITE_P(All, RealModelsEndToEnd, testing::ValuesIn(kRealModels),
                         [](const auto& param) { return RealModelTestName(param.param); });
#endif

}  // namespace
}  // namespace nibble
