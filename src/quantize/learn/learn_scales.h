// SPDX-License-Identifier: Apache-2.0
// Scales learned from calibration data, and with them the head where weights are rough
// (docs/quality.md, "Learned scales"). Each row's scale (its groups' scales) gets a factor, and
// each entry of what linears read behind a norm. The loss is KL(float || rounded) of predictions,
// with straight-through gradients (backprop.h) and Adam's descent (adam.h).
//
// Some sequences of the text are held out: the factors that predict them best are those that are
// learned.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "compute/dense_math.h"
#include "quantize/learn/scale_factors.h"
#include "quantize/recipes/recipe.h"
#include "quantize/walk/stream.h"

namespace nibble {

// Returns whether a recipe's scales are learned from a text of `ids` tokens. That takes a network
// of gated FFNs without experts and a text of ScaleLearningMin tokens; a shorter one would be
// learned by heart.
bool LearnsScales(const Recipe& recipe, const ModelConfig& config, int64_t ids);
int64_t ScaleLearningMin(const Recipe& recipe, const ModelConfig& config);

struct ScaleTask {
  const ModelConfig& config;
  const Recipe& recipe;
  const Plan& plan;
  Matrix<float> embedding, head;  // [vocab, hidden], of the rotated network
  std::vector<float> final_norm;  // [hidden]; empty where it is folded into the head
  FloatLayers layers;             // the same; each is asked for once
  std::vector<LayerWeights> rounded;
  std::vector<int32_t> ids;  // calibration text, which is cut into sequences anew
  LearningState begun;       // what to go on from; empty: from the beginning
  // Called with a way to ask for the state, before the first step and after each.
  std::function<void(const std::function<LearningState()>&)> keep;
};

// Told how many tokens have been worked on, and on what.
using ScaleProgress = std::function<void(double tokens, const std::string& what)>;

// Returns the factors and the head that predict the held-out sequences best, factors of 1 if
// nothing did better; of a text that has no sequences to spare, those of the last step.
Learned LearnScales(Backend& backend, const DenseMath& math, const ScaleTask& task,
                    const ScaleProgress& progress);

// Learning's bytes in the backend's memory, and its tokens for a text of `ids`: a token that passes
// the float network or is measured counts as one, one there and back through the other network as
// two, which is about as long as they take.
double ScaleLearningBytes(const Recipe& recipe, const ModelConfig& config, int64_t ids);
double ScaleLearningTokens(const Recipe& recipe, const ModelConfig& config, int64_t ids);
// Bytes of a head that is learned, in host memory and in files beside the output: two
// states, of which one is being saved.
double HeadLearningBytes(const Recipe& recipe, const ModelConfig& config);

}  // namespace nibble
