// SPDX-License-Identifier: Apache-2.0
// Calibration: the windows of a text run through the network layer by layer, and GPTQ sees the
// inputs of each set of linears as the already rounded part produces them. Each linear runs once
// per calibration token.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>

#include "quantize/round/gptq.h"
#include "quantize/walk/loss_weights.h"
#include "quantize/walk/stream.h"

namespace nibble {

// The time of each stage, in seconds.
struct CalibrationSeconds {
  double inputs = 0;    // the forward pass, uploads included
  double sums = 0;      // Hessians
  double rounding = 0;  // GPTQ
};

// Rounds float layers as planned, by GPTQ; weights: of the tokens of `ids`, or none. progress(share
// of the layer that is done, what).
class Calibration {
 public:
  Calibration(Backend& backend, const ModelConfig& config, const Plan& plan, const Recipe& recipe,
              const EmbeddingRows& embedding, std::vector<int32_t> ids, int64_t context,
              SpillFile* file = nullptr, LossWeights weights = {});

  using Progress = std::function<void(double share, std::string_view what)>;
  // Called when a set has been rounded, with what is not rounded yet and the others as they are
  // stored: it may change the weights of `rest` and the scales of the set (quantize/learn).
  // progress(share of the call that is done).
  using Tune = std::function<void(LinearSet set, FloatLayer& rest, LayerWeights& stored,
                                  const std::function<void(double)>& progress)>;
  // errors[role] receives the relative output error of each rounded linear. The memory of `layer`
  // is given back linear by linear.
  LayerWeights Round(FloatLayer layer, int64_t index, std::map<Role, double>& errors,
                     const Progress& progress, const Tune& tune = {});
  // A layer finished by an earlier run; `layer` is needed for GPTAQ's reference.
  void Skip(const LayerWeights& stored, const FloatLayer& layer, int64_t index);
  // The seconds of all calls of Round.
  const CalibrationSeconds& seconds() const { return seconds_; }

 private:
  void RoundSet(LinearSet set, FloatLayer& layer, int64_t index, LayerWeights& stored,
                std::map<Role, double>& errors, const Progress& progress);
  // Starts the sums for the linears of the set: one Gptq for all, or one for each.
  std::vector<Gptq> Begin(LinearSet set, int64_t index);
  // Adds the time since the last call to `stage`, once the backend has done what it was asked for.
  void Account(double& stage);

  Backend& backend_;
  const ModelConfig& config_;
  const Plan& plan_;
  const Recipe& recipe_;
  std::vector<int32_t> ids_;
  Stream stream_;
  Plan reference_plan_;
  std::optional<Stream> reference_;  // GPTAQ: the same windows through the network as it is
  LossWeights weights_;
  CalibrationSeconds seconds_;
  std::chrono::steady_clock::time_point last_;  // call of Account
};

}  // namespace nibble
