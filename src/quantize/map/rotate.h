// SPDX-License-Identifier: Apache-2.0
// The exact offline maps of a rotated network (QuaRot, section 4), all in fp64 from source
// precision:
//   every linear behind a norm  W <- W diag(gamma) R^T        (the norm becomes weightless)
//   embedding rows, o, down     e <- R e, W <- R W
//
//   v, per head  W <- H S_v W,  o: W <- W (H S_v)^-1, then the online part across heads
//   up, down     up rows times S_f, down: W <- W (H_f S_f)^-1, H_f online
//   q, k         rows times S_k, equal on both halves of a RoPE pair; H online
//
//   with an output transform T  W <- T^-1 W, T online
//
// R is a Hadamard matrix with random signs, or a random orthogonal one; H is a random one, too,
// with Rotation::kKronecker, but for q and k. The S are random signs, which folding makes free.
// Experts have signs of their own; a router is behind the norm.
//
// Where norms with weights stand behind o and down (ModelConfig::rotates_residual), R is the
// identity and q, k, v, gate and up get an online Hadamard on their input instead, W <- W
// diag(gamma) H^T.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "models/network.h"
#include "quantize/recipes/recipe.h"
#include "quantize/round/float_layer.h"
#include "transforms/orthogonal.h"

namespace nibble {

// The number of passes over layers whose residual stream is turned for good: rounding, and where
// the recipe has them the check that maps are exact, the search for clips, the weights of tokens
// and learned scales.
int LayerPasses(const Recipe& recipe);
// Layers for so many passes. The first ones, as many as fit into `bytes`, are made once and stay in
// memory until the last pass.
FloatLayers KeepLayers(FloatLayers make, int passes, double bytes);

// Divisors of a layer's channels; whatever reads a channel is multiplied by the same number.
struct ChannelScales {
  ByVector<std::vector<double>> norms;  // [hidden] or nothing: what norms give out to linears
  // [kv_heads, head_dim] or nothing: keys, those that RoPE turns into each other by one factor, and
  // in all heads alike where these share the weights of a norm.
  std::vector<double> keys;
  // Rows of v [kv_heads, head_dim] and of each up [intermediate] or nothing: what o, which has v's
  // scales for every head that reads them, and down multiply with.
  ByRole<std::vector<double>> outputs;
  // [kv_heads, head_dim] or nothing: the mean of keys behind RoPE, before they are divided.
  std::vector<double> key_mean;
};

// Scales of kv heads [kv_heads, head_dim] for all query heads, [heads, head_dim].
std::vector<double> ForQueries(const HeadShape& shape, std::span<const double> scales);

// Scales what norms, v and up give out in one layer.
void ScaleChannels(const ModelConfig& config, int64_t index, const ChannelScales& scales,
                   FloatLayer& layer);

// The plan of the source itself: no online transforms, and nothing folded.
Plan SourcePlan(Plan plan);

// Everything random about a rotated model, drawn from one seed.
class Rotator {
 public:
  Rotator(const Network& source, const Recipe& recipe, const Plan& plan, uint64_t seed);

  // Makes the same maps of the same source, with the online transforms of another plan.
  Rotator(const Rotator& like, const Plan& plan);

  // Layer `index`, folded and rotated (or as it is with Rotation::kNone). Throws naming the tensor
  // when a weight is not finite. The source's pages go back to its files.
  FloatLayer Layer(int64_t index) const;
  // From now on the residual stream is turned by `rotation` [hidden, hidden] as well, behind the
  // random one.
  void Follow(const Matrix<double>& rotation);
  // The residual stream [tokens, hidden] of the source as that of the rotated model.
  Matrix<double> Turn(Matrix<double> x) const;
  // From now on the channels of layers are scaled.
  void Scale(std::vector<ChannelScales> scales) { scales_ = std::move(scales); }
  const std::vector<ChannelScales>& scales() const { return scales_; }  // of all layers, or empty
  // Some rows of the embedding or the head; a folded norm is multiplied into the head.
  Matrix<double> ExactRows(Role role, int64_t first, int64_t count) const;
  Matrix<float> TableRows(Role role, int64_t first, int64_t count) const;
  Matrix<float> Table(Role role) const;  // all of them
  std::vector<float> FinalNorm() const;  // [hidden]; empty where it is folded into the head
  // The embeddings of tokens at places 0, 1, ..; valid as long as this object.
  EmbeddingRows embedding() const;
  Matrix<double> Positions() const;  // [context, hidden] or nothing
  // The matrix in front of a head that shares its table, rotated by R, with the embedding: R
  // diag(final norm) R^T, [hidden, hidden] (Plan::head_rotation).
  Matrix<double> HeadRotation() const;
  DType half() const;

 private:
  void CenterKeys(FloatLayer& layer, int64_t index) const;
  void ScaleKeys(FloatLayer& layer, int64_t index) const;
  void RotateLayer(FloatLayer& layer, int64_t index) const;
  Matrix<double> RotatedRows(Role role, Matrix<double> rows) const;

  const Network& source_;
  const Plan& plan_;
  Rotation rotation_;
  bool keep_codes_;
  uint64_t seed_;
  std::optional<ResidualRotation> residual_;
  std::vector<ChannelScales> scales_;  // of all layers, or empty
};

}  // namespace nibble
