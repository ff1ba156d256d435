// SPDX-License-Identifier: Apache-2.0
// A batch of sequences through the rounded network and back. Forward is what runs at inference, on
// integers; backward multiplies slopes with the decoded weights in fp32. Rounding counts as the
// identity (straight-through estimation, Bengio et al. 2013), and the cache as not rounded.
// "Slopes" of a tensor are the derivatives of the loss by its elements.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "backends/interface/dense_math.h"
#include "base/rng.h"
#include "engine/kv_cache.h"
#include "engine/layer.h"
#include "quantize/stored_layer.h"

namespace nibble {

// Of a layer's weight rows [N], and of the entries [K] that the first of linears reads for all that
// share its input: factors of their scales, or slopes of the factors' logarithms. None for those
// that keep their scales.
struct LayerScales {
  ByRole<std::vector<float>> rows, inputs;
};

// Whether the slopes of such a network can be had: gated FFNs without experts, each layer with keys
// of its own and without an input beside x.
bool Differentiable(const ModelConfig& config);
// Of a Backprop and the matrices of all layers, in the backend's memory.
double BackpropBytes(const ModelConfig& config, int64_t sequences, int64_t length);

class Backprop {
 public:
  // For differentiable networks whose linears have neither tails nor gathers.
  // head [vocab, hidden].
  Backprop(Backend& backend, const DenseMath& math, const ModelConfig& config, const Plan& plan,
           const Matrix<float>& head, const std::vector<float>& final_norm, int64_t sequences,
           int64_t length);
  ~Backprop();

  // What a layer's linears multiply their inputs with before the online transform, [N, K].
  using Matrices = ByRole<Buffer<float>>;
  Matrices MatricesOf(const LayerWeights& layer, int64_t index);

  // ids [sequences * length]; embedding [vocab, hidden] in the backend's memory.
  void Begin(const PackedWeights& embedding, std::span<const int32_t> ids);
  // The next layer.
  void Forward(const LayerWeights& layer, int64_t index);
  // From now on predictions are those of another head than the targets', [vocab, hidden], which has
  // to stay, and Diverge sums up its slopes.
  void UseHead(std::span<const float> head);
  // The sum over tokens of KL(target || prediction), in nats; targets [tokens, hidden] is what the
  // head reads for the former.
  double Diverge(std::span<const float> targets);
  // Of the last Diverge, [vocab, hidden].
  std::vector<float> HeadSlopes() const;
  // In place of Diverge: slopes of -log p of tokens that are drawn from the predictions themselves,
  // one for each. The mean of their products over all draws is the Hessian of the divergence.
  void Draw(Rng& rng);
  // Is shown the slopes of what a linear gives out, [tokens, N].
  using Visit = std::function<void(Role role, const float* slopes)>;
  // Back through the last layer that has not been: slopes of every linear's rows, which mean
  // nothing where it has a bias, and of inputs that have scales.
  LayerScales Backward(const Matrices& matrices, int64_t index, const Visit& visit = {});

 private:
  struct Saved;       // what the way back needs of a layer
  struct HeadMemory;  // of one kv head
  using Floats = Buffer<float>;

  int64_t tokens() const { return sequences_ * length_; }
  float eps() const { return static_cast<float>(config_.norm_eps); }
  Floats NewFloats(int64_t count = 0) const;
  void Keep(const Intermediate* values, int64_t width, Floats& kept) const;
  // Makes logits_ those of a sequence, [length, vocab]; returns what the head reads, [length,
  // hidden].
  const float* Predict(int64_t sequence, const float* head);
  // From the slopes of a sequence's logits, in their place, to x_slopes_.
  void ThroughHead(int64_t sequence, const float* head);
  // Sums over tokens of y times y's slopes, [tokens, width]: the slopes of the logarithms of
  // factors of its columns.
  std::vector<float> FactorSlopes(const float* y, const float* y_slopes, int64_t width);
  // The same for o or down, which add y = after - before to x, or the norm of `output` where there
  // are weights of one. Returns the slopes of what they gave out.
  const float* AddedSlopes(Role role, const float* before, const float* after, const Floats& weight,
                           const Floats& output, LayerScales& slopes);
  // From input_slopes_, of what `role` and others read behind a norm of x, to x_slopes_.
  void ThroughNorm(Role role, const Saved& saved, const Floats& x, LayerScales& slopes);
  // out [tokens, K] = y_slopes [tokens, N] W.
  void Multiply(Role role, const float* y_slopes, const Matrices& matrices, bool accumulate,
                Floats& out) const;
  void AttentionSlopes(const Saved& saved);
  void HeadSlopes(const Saved& saved, int64_t index, HeadMemory& memory) const;
  // Of one query head; slopes of k and v are added to those of others, but for the first one.
  void QuerySlopes(const Saved& saved, bool first_head, HeadMemory& memory) const;

  int64_t layer_ = 0;  // where it stands
  Backend& backend_;
  const DenseMath& math_;
  const ModelConfig& config_;
  const Plan& plan_;
  const int64_t sequences_, length_;
  const std::vector<KvSpec> kv_;  // of each layer
  const BackendRopes ropes_;
  Scratch scratch_;
  std::vector<KvCache> caches_;  // one layer, one sequence each
  std::vector<SequenceSlice> batch_;
  std::vector<std::pair<TransformSpec, Floats>> transforms_;  // M^T
  std::vector<Saved> saved_;
  std::vector<HeadMemory> heads_;
  Floats head_, final_norm_, x_, x_slopes_, input_slopes_;  // [tokens, hidden] but the first two
  Floats a_slopes_, q_slopes_, k_slopes_, v_slopes_, gate_slopes_, up_slopes_, output_slopes_;
  const float* own_head_ = nullptr;  // UseHead
  Floats loaded_head_, head_slopes_;
  Floats logits_, target_, target_logits_, sums_, norm_weights_;
};

}  // namespace nibble
