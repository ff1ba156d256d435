// SPDX-License-Identifier: Apache-2.0
#include "quantize/learn/learn_scales.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "base/half.h"
#include "compute/gpu_testing.h"
#include "compute/math_services.h"
#include "engine/engine_testing.h"
#include "formats/packed_weights_testing.h"
#include "models/import/open_network.h"
#include "models/random_model_testing.h"
#include "quantize/map/rotate.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/host_math.h"
#include "quantize/walk/backprop.h"

namespace nibble {
namespace {

constexpr int64_t kLayers = 2;

// The first layers of a model, rotated and rounded to nearest.
struct RoundedModel {
  explicit RoundedModel(const Recipe& recipe, const std::string& directory = kTinyModel)
      : source(OpenNetwork(directory)),
        plan(MakePlan(source.config, recipe)),
        rotator(source, recipe, plan, 0) {
    source.config.layers = kLayers;
    PlanInputScales(source.config, plan);
    for (int64_t i = 0; i < kLayers; ++i) {
      const FloatLayer floats = rotator.Layer(i);
      LayerWeights& layer = layers.emplace_back(StoreUnquantized(floats, plan, i));
      for (Role role : kLayerRoles) {
        const FormatSpec& format = plan.at(i, role).weights;
        if (format.quantized()) SetRounded(RoundNearest(floats[role], format), layer[role]);
      }
    }
  }
  Network source;
  Plan plan;
  Rotator rotator;
  std::vector<LayerWeights> layers;
};

constexpr int64_t kVocab = 4096;  // of the sample model

std::vector<int32_t> RandomIds(int64_t count) {
  Rng rng(3);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(static_cast<int32_t>(rng.Below(kVocab)));
  return ids;
}

// One machine, with the backend that computes in fp32 where there is a choice.
struct Machine {
  std::unique_ptr<Backend> backend;
  std::unique_ptr<DenseMath> math;
};
// Returns no backend where a GPU is wanted and there is none.
Machine MakeMachine(bool gpu, bool decoded) {
  Machine machine = {gpu ? GpuOrNull() : MakeBackend("cpu", decoded), nullptr};
  if (!machine.backend) return machine;
  machine.math = gpu ? machine.backend->services().MakeDense() : std::make_unique<HostMath>();
  return machine;
}

// Divergence from random targets, per token, with scales times factors.
class Loss {
 public:
  static constexpr int64_t kSequences = 2, kLength = 14;

  Loss(const Machine& machine, const RoundedModel& model)
      : model_(model),
        backprop_(*machine.backend, *machine.math, model.source.config, model.plan,
                  model.rotator.Table(Role::kHead), model.rotator.FinalNorm(), kSequences, kLength),
        embedding_(model.rotator.Table(Role::kEmbedding)),
        table_(machine.backend->Share(FloatTable(embedding_), memory_)) {
    Rng rng(5);
    for (int64_t i = 0; i < kSequences * kLength * model.source.config.hidden_size; ++i) {
      targets_.push_back(static_cast<float>(rng.Normal()));
    }
  }
  // The head of the predictions, in place of the targets'.
  std::vector<float> head() const { return model_.rotator.Table(Role::kHead).data; }
  double At(const std::vector<float>& head) {
    backprop_.UseHead(head);
    return At(ScaleFactors(kLayers));
  }
  std::vector<float> HeadGradients() const { return backprop_.HeadGradients(); }
  double At(const ScaleFactors& factors) {
    backprop_.Begin(table_, RandomIds(kSequences * kLength));
    for (int64_t i = 0; i < kLayers; ++i) {
      LayerWeights layer = model_.layers[static_cast<size_t>(i)];
      ApplyScales(factors[static_cast<size_t>(i)], layer);
      backprop_.Forward(layer, i);
    }
    return backprop_.Diverge(targets_);
  }
  std::vector<LayerScales> Gradients() {
    std::vector<LayerScales> gradients(kLayers);
    for (int64_t i = kLayers; i-- > 0;) {
      const auto at = static_cast<size_t>(i);
      gradients[at] = backprop_.Backward(backprop_.MatricesOf(model_.layers[at], i), i);
    }
    return gradients;
  }

 private:
  const RoundedModel& model_;
  Backprop backprop_;
  const Matrix<float> embedding_;
  AlignedBytes memory_;
  const PackedWeights table_;
  std::vector<float> targets_;
};

class LearnScalesTest : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!(machine_ = MakeMachine(GetParam(), true)).backend) GTEST_SKIP() << "needs a GPU";
  }
  Machine machine_;
};

// A start for learning: layers with wrong scales, and a short text.
struct LearningJob {
  explicit LearningJob(const Recipe& r, float factor = 1.2f) : recipe(r), model(recipe) {
    model.source.config.context = 16;  // of the sequences
    LayerScales wrong;
    for (Role role : {Role::kO, Role::kDown}) {
      wrong.rows[role].assign(static_cast<size_t>(model.source.config.hidden_size), factor);
    }
    for (LayerWeights& layer : model.layers) ApplyScales(wrong, layer);
  }
  // `state` receives the state that is kept after `keep_at` others, `reports` the progress
  // messages.
  Learned Learn(const Machine& machine, const LearningState& begun = {}, size_t keep_at = 0) {
    states = 0;
    reports.clear();
    const ScaleTask task = {model.source.config,
                            recipe,
                            model.plan,
                            model.rotator.Table(Role::kEmbedding),
                            model.rotator.Table(Role::kHead),
                            model.rotator.FinalNorm(),
                            [&](int64_t i) { return model.rotator.Layer(i); },
                            model.layers,
                            ids,
                            begun,
                            [&](const auto& now) {
                              if (states++ == keep_at) state = now();
                            }};
    return LearnScales(*machine.backend, *machine.math, task,
                       [&](double tokens, const std::string& what) {
                         if (what != "targets") reports.emplace_back(tokens, what);
                       });
  }
  // The numbers that stand behind `name` in reports, of those that have it.
  std::vector<double> Said(const std::string& name) const {
    std::vector<double> values;
    for (const auto& [tokens, what] : reports) {
      const size_t at = what.find(name);
      if (at != std::string::npos) values.push_back(std::stod(what.substr(at + name.size())));
    }
    return values;
  }

  Recipe recipe;
  RoundedModel model;
  std::vector<int32_t> ids = RandomIds(72 * 16);
  size_t states = 0;
  LearningState state;
  std::vector<std::pair<double, std::string>> reports;
};

Recipe EightBits() {
  Recipe recipe = kQuarotRecipe;
  recipe.activations.bits = recipe.k.bits = recipe.v.bits = 8;
  return recipe;
}

// Nothing but the weights is rounded, so that straight-through gradients are true ones.
void ExpectDerivatives(const std::string& directory, const Machine& machine, bool gpu,
                       bool output_transforms) {
  Recipe recipe = kQuarotRecipe;
  recipe.output_transforms = output_transforms;
  recipe.activations = {};
  recipe.k = recipe.v = {.bits = 32};
  const RoundedModel model(recipe, directory);
  Loss loss(machine, model);
  loss.At(ScaleFactors(kLayers));
  const std::vector<LayerScales> gradients = loss.Gradients();
  // A GPU's intermediate values are bf16: a longer step drowns their rounding.
  const double step = gpu ? 0.03 : 0.003;
  const auto expect = [&](size_t layer, Role role, ByRole<std::vector<float>> LayerScales::*kind) {
    // Along the signs of the gradients the loss rises by the sum of their magnitudes.
    double sum = 0;
    double differences[2];
    for (const int side : {0, 1}) {
      ScaleFactors factors(kLayers);
      sum = 0;
      for (const float gradient : (gradients[layer].*kind)[role]) {
        const double sign = (gradient > 0) == (side == 0) ? 1 : -1;
        (factors[layer].*kind)[role].push_back(static_cast<float>(std::exp(sign * step)));
        sum += std::abs(gradient);
      }
      differences[side] = loss.At(factors);
    }
    const double gradient = (differences[0] - differences[1]) / (2 * step);
    EXPECT_GT(sum, 0.01);
    // The third derivative's share, and fp32 sums of the loss over twice the step.
    EXPECT_NEAR(gradient, sum, (gpu ? 0.1 : 0.01) * sum) << layer << " " << RoleName(role);
  };
  for (size_t i = 0; i < kLayers; ++i) {
    for (Role role : kLayerRoles) expect(i, role, &LayerScales::rows);
    for (Role role : {Role::kQ, Role::kGate}) expect(i, role, &LayerScales::inputs);
  }
}

TEST_P(LearnScalesTest, GradientsAreDerivatives) {
  for (const bool transforms : {false, true}) {
    ExpectDerivatives(kTinyModel, machine_, GetParam(), transforms);
  }
}

// Norms of heads, windows, scales of scores, embeddings and layers, and heads of two lengths, which
// others do not have.
TEST_P(LearnScalesTest, GradientsOfOtherFamiliesAreDerivatives) {
  const Json qwen3 = {{"model_type", "qwen3"},
                      {"vocab_size", kVocab},
                      {"use_sliding_window", true},
                      {"sliding_window", 5},
                      {"layer_types", {"full_attention", "sliding_attention"}}};
  const Json granite = {{"model_type", "granite"},     {"vocab_size", kVocab},
                        {"embedding_multiplier", 5.0}, {"residual_multiplier", 0.3},
                        {"logits_scaling", 3.0},       {"attention_multiplier", 0.1}};
  const Json gemma3 = {{"model_type", "gemma3_text"},
                       {"vocab_size", kVocab},
                       {"sliding_window", 5},
                       {"head_dim", 16},
                       {"query_pre_attn_scalar", 24}};
  const Json gemma4 = {{"model_type", "gemma4_text"},
                       {"vocab_size", kVocab},
                       {"sliding_window", 5},
                       {"head_dim", 16},
                       {"global_head_dim", 24},
                       {"attention_k_eq_v", true},
                       {"num_global_key_value_heads", 1},
                       {"hidden_size_per_layer_input", 0}};
  for (const Json& changes : {qwen3, granite, gemma3, gemma4}) {
    const std::string name = "gradients-" + changes["model_type"].get<std::string>();
    const bool transforms = changes == gemma3;  // of o and down as well
    ExpectDerivatives(RandomModel(name, SmallConfig(changes)), machine_, GetParam(), transforms);
  }
}

TEST_P(LearnScalesTest, GradientsOfTheHeadAreDerivatives) {
  Recipe recipe = kQuarotRecipe;
  recipe.activations = {};
  recipe.k = recipe.v = {.bits = 32};
  const RoundedModel model(recipe);
  Loss loss(machine_, model);
  std::vector<float> head = loss.head();
  Rng rng(9);
  for (float& value : head) value += static_cast<float>(0.02 * rng.Normal());
  loss.At(head);
  const std::vector<float> gradients = loss.HeadGradients();
  ASSERT_EQ(gradients.size(), head.size());
  // Along random directions, each entry by at most a hundredth of what is in the head.
  constexpr double kStep = 1e-3;
  for (int i = 0; i < 3; ++i) {
    std::vector<float> more = head, less = head;
    double sum = 0;
    for (size_t k = 0; k < head.size(); ++k) {
      const double along = std::copysign(rng.Uniform(), gradients[k]);
      more[k] += static_cast<float>(kStep * along);
      less[k] -= static_cast<float>(kStep * along);
      sum += along * gradients[k];
    }
    const double gradient = (loss.At(more) - loss.At(less)) / (2 * kStep);
    EXPECT_GT(sum, 0.01);
    EXPECT_NEAR(gradient, sum, 0.01 * sum);  // the third derivative's share, and fp32 sums
  }
}

TEST(LearnScales, MultipliesScalesAsTheyAreStored) {
  for (const int64_t group : {0, 32}) {
    Recipe recipe = kQuarotRecipe;
    recipe.weights.group = group;
    recipe.rules = {{std::string(kDownPattern), "w-group=0"}};
    const RoundedModel model(recipe);
    LayerWeights layer = model.layers[0];
    const ModelConfig& c = model.source.config;
    LayerScales factors;
    Rng rng(7);
    const auto draw = [&](int64_t count, std::vector<float>& values) {
      while (static_cast<int64_t>(values.size()) < count) {
        values.push_back(static_cast<float>(1 + 0.1 * rng.Normal()));
      }
    };
    draw(c.outputs(0, Role::kUp), factors.rows[Role::kUp]);
    draw(c.hidden_size, factors.inputs[Role::kQ]);
    ApplyScales(factors, layer);
    for (Role role : {Role::kQ, Role::kK, Role::kV}) {
      EXPECT_EQ(layer[role].input.scales, factors.inputs[Role::kQ]);
    }
    EXPECT_EQ(layer[Role::kUp].input.scales, model.layers[0][Role::kUp].input.scales);
    const Matrix<float> before = DecodeScales(model.layers[0][Role::kUp].weights),
                        after = DecodeScales(layer[Role::kUp].weights);
    for (int64_t n = 0; n < before.rows; ++n) {
      for (size_t g = 0; g < before.row(n).size(); ++g) {
        const float exact = before.row(n)[g] * factors.rows[Role::kUp][static_cast<size_t>(n)];
        EXPECT_EQ(after.row(n)[g], group == 0 ? exact : F32FromF16(F16FromF32(exact)));
      }
    }
    EXPECT_EQ(BytesOf(layer[Role::kUp].weights.codes),
              BytesOf(model.layers[0][Role::kUp].weights.codes));
    ExpectSamePlanes(layer[Role::kGate].weights, model.layers[0][Role::kGate].weights);
  }
}

TEST_P(LearnScalesTest, BringsPredictionsCloserToTheFloatOnes) {
  machine_ = MakeMachine(GetParam(), false);
  LearningJob job(EightBits());
  const auto [factors, head] = job.Learn(machine_);
  EXPECT_TRUE(head.data.empty());
  const std::vector<double> divergences = job.Said("divergence "), held_out = job.Said("held out ");
  ASSERT_EQ(divergences.size(), 8u);
  EXPECT_LT(divergences[6] + divergences[7], 0.97 * (divergences[0] + divergences[1]));
  ASSERT_EQ(held_out.size(), 9u);
  EXPECT_EQ(held_out[7], held_out[0]);
  EXPECT_LT(held_out[8], 0.99 * held_out[0]);
  EXPECT_EQ(job.reports.back().first, ScaleLearningTokens(job.recipe, job.model.source.config,
                                                          static_cast<int64_t>(job.ids.size())));
  const auto expect = [&](const std::vector<float>& learned, int64_t count) {
    EXPECT_EQ(static_cast<int64_t>(learned.size()), count);
    for (const float factor : learned) {
      EXPECT_TRUE(factor > 0.95 && factor < 1.05) << factor;  // 8 steps of 0.0055 at most
    }
  };
  const ModelConfig& c = job.model.source.config;
  for (Role role : kLayerRoles) expect(factors[1].rows[role], c.outputs(1, role));
  for (Role role : {Role::kQ, Role::kGate}) expect(factors[1].inputs[role], c.hidden_size);
}

TEST_P(LearnScalesTest, HoldsNothingOutOfAShortText) {
  machine_ = MakeMachine(GetParam(), false);
  LearningJob job(EightBits());
  job.ids.resize(64 * 16);
  const Learned learned = job.Learn(machine_, {}, 8);
  EXPECT_TRUE(job.Said("held out ").empty());
  EXPECT_EQ(job.Said("divergence ").size(), 8u);
  ScaleDescent last(job.model.layers[1]);
  last.Resume(1, job.state);
  EXPECT_EQ(learned.factors[1].rows[Role::kUp], last.factors().rows[Role::kUp]);
  EXPECT_NE(learned.factors[1].rows[Role::kUp][0], 1);
}

TEST_P(LearnScalesTest, GoesOnFromAnyStateToTheSameBytes) {
  machine_ = MakeMachine(GetParam(), false);
  Recipe recipe = EightBits();
  recipe.weights.bits = 3;  // so that the head is learned, too
  constexpr size_t kStep = 13;
  LearningJob job(recipe);
  job.ids = RandomIds(128 * 16);
  const Learned whole = job.Learn(machine_, {}, kStep);
  ASSERT_EQ(job.states, 61u);
  const LearningState begun = job.state;
  const auto end = job.reports.back();
  // States of another learning, each with one fault, are refused.
  using Change = std::function<void(LearningState&)>;
  const std::vector<Change> changes = {
      [](auto& s) { s.erase("head"); }, [](auto& s) { s.begin()->second.push_back(1); },
      [](auto& s) { s["progress"].clear(); }, [](auto& s) { s["progress"][1] = 1e30f; }};
  for (const Change& change : changes) {
    LearningState strange = begun;
    change(strange);
    EXPECT_THROW(job.Learn(machine_, strange), Error);
  }
  job.states = 0;
  const Learned resumed = job.Learn(machine_, begun);
  EXPECT_EQ(job.states, 61 - kStep);
  EXPECT_EQ(job.state, begun);
  EXPECT_EQ(job.reports.back(), end);
  EXPECT_NE(whole.head.data, job.model.rotator.Table(Role::kHead).data);
  EXPECT_EQ(resumed.head.data, whole.head.data);
  for (size_t i = 0; i < kLayers; ++i) {
    for (Role role : kLayerRoles) {
      EXPECT_EQ(resumed.factors[i].rows[role], whole.factors[i].rows[role]);
      EXPECT_EQ(resumed.factors[i].inputs[role], whole.factors[i].inputs[role]);
    }
  }
}

// Weights of 8 bits and nothing else: the network predicts what the float one does.
Recipe Fine() {
  Recipe fine = kQuarotRecipe;
  fine.weights.bits = 8;
  fine.activations = {};
  fine.k = fine.v = {.bits = 32};
  return fine;
}

// Each step makes the predictions worse.
TEST(LearnScales, StopsWhereWhatIsHeldOutGetsNoBetter) {
  LearningJob job(Fine(), 1);
  job.recipe.weights.bits = 3;  // 60 steps, and the head is learned
  job.ids = RandomIds(128 * 16);
  const auto [factors, head] = job.Learn(MakeMachine(false, false));
  const std::vector<double> held_out = job.Said("held out ");
  EXPECT_EQ(job.Said("divergence ").size(), 36u);
  EXPECT_EQ(held_out.back(), held_out.front());
  for (const LayerScales& layer : factors) {
    for (const auto* kind : {&layer.rows, &layer.inputs}) {
      for (const auto& [role, values] : *kind) {
        EXPECT_EQ(values, std::vector<float>(values.size(), 1)) << RoleName(role);
      }
    }
  }
  EXPECT_EQ(head.data, job.model.rotator.Table(Role::kHead).data);
}

// The schedule is that of 4-bit weights, with few steps.
TEST(LearnScales, BeginsAgainWithShorterStepsWhereLongOnesGainNothing) {
  LearningJob job(Fine(), 1);
  job.recipe = EightBits();
  const Machine machine = MakeMachine(false, false);
  const Learned whole = job.Learn(machine, {}, 11);
  const std::vector<double> divergences = job.Said("divergence ");
  ASSERT_EQ(divergences.size(), 16u);
  EXPECT_EQ(divergences[8], divergences[0]);
  EXPECT_LT(divergences[14] + divergences[15], divergences[6] + divergences[7]);
  const LearningState begun = job.state;
  const Learned resumed = job.Learn(machine, begun);
  EXPECT_EQ(job.Said("divergence ").size(), 16u - 11);
  for (size_t i = 0; i < kLayers; ++i) {
    for (Role role : kLayerRoles) {
      EXPECT_EQ(resumed.factors[i].rows[role], whole.factors[i].rows[role]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Machines, LearnScalesTest, testing::Bool(),
                         [](const auto& machine) { return machine.param ? "Gpu" : "Host"; });

}  // namespace
}  // namespace nibble
