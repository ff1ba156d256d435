// SPDX-License-Identifier: Apache-2.0
// How much of the residual stream survives in a checkpoint, layer by layer.
//
// A checkpoint whose recipe turns the stream has it in another basis. The rotation is not stored,
// but it turned the embedding, too, which both models have: R is the orthogonal matrix that brings
// the source's rows closest to the checkpoint's (orthogonal Procrustes, Schoenemann 1966).
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "compute/backend.h"
#include "models/network.h"
#include "models/plan.h"

namespace nibble {

// Signal-to-noise in dB of y' as a picture of y: 10 log10 |y|^2 / |y - y'|^2.
double Sqnr(std::span<const double> y, std::span<const double> other);

// The orthogonal R [n, n] that makes the sum of |R a - b|^2 over rows a of `from` and b of `to` [m,
// n] the smallest: U V^T of the singular value decomposition of the sum of b a^T.
Matrix<double> FitRotation(const Matrix<double>& from, const Matrix<double>& to);

struct StreamQuality {
  bool turned = false;   // the checkpoint has the stream in another basis
  double embedding = 0;  // dB, of the rows that R was fitted to
  // dB that R is good for: noise of so many rows has an effect on it as their share of dimensions.
  double limit = 0;
  // dB behind each layer: of all tokens together, and of the token in the middle.
  std::vector<double> together, middle;
  std::string unmeasured;  // why it could not be measured; empty: it was
};
// Runs windows of `context` tokens through the source, by the plan of itself (SourcePlan), and
// through checkpoints of it. Throws, naming the checkpoint, where one is of another model.
// progress(share).
std::vector<StreamQuality> CompareStreams(Backend& backend, const Network& source, const Plan& plan,
                                          std::span<const Network> checkpoints,
                                          std::span<const int32_t> ids, int64_t context,
                                          const std::function<void(double)>& progress);

}  // namespace nibble
