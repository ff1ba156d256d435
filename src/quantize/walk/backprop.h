// SPDX-License-Identifier: Apache-2.0
// A batch of sequences through the rounded network and back. Forward is what runs at inference, on
// integers; backward multiplies gradients of the loss with the decoded weights in fp32. Rounding
// counts as the identity (straight-through estimation, Bengio et al. 2013), the cache as not
// rounded.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "base/rng.h"
#include "compute/dense_math.h"
#include "engine/kv_cache.h"
#include "engine/layer.h"
#include "quantize/round/stored_layer.h"

namespace nibble {

// A layer's factors of scales, or the gradient of the factors' logarithms: `rows` [N] for a
// linear's weight rows, `inputs` [K] for an input's entries, under the first of the linears that
// share the input. Empty for linears that keep their scales.
struct LayerScales {
  ByRole<std::vector<float>> rows, inputs;
};

// Returns whether Backprop can handle such a network: gated FFNs without experts, each layer with
// keys of its own and without an input beside x.
bool Differentiable(const ModelConfig& config);
// Bytes of a Backprop and of the matrices of all layers, in the backend's memory.
double BackpropBytes(const ModelConfig& config, int64_t sequences, int64_t length);

class Backprop {
 public:
  // Takes differentiable networks whose linears have neither tails nor gathers.
  // head [vocab, hidden].
  Backprop(Backend& backend, const DenseMath& math, const ModelConfig& config, const Plan& plan,
           const Matrix<float>& head, const std::vector<float>& final_norm, int64_t sequences,
           int64_t length);
  ~Backprop();

  // The matrices [N, K] that a layer's linears multiply their inputs with as they are before the
  // online transform.
  using Matrices = ByRole<Buffer<float>>;
  Matrices MatricesOf(const LayerWeights& layer, int64_t index);

  // ids [sequences * length]; embedding [vocab, hidden] in the backend's memory.
  void Begin(const PackedWeights& embedding, std::span<const int32_t> ids);
  // Begins with the residual stream [tokens, hidden] in front of a layer, in the backend's memory.
  void BeginAt(const float* x);
  // From now on Forward keeps what linears read, as their codes mean it: [tokens, K] by the first
  // of those that share an input, of the last layer that has run. Not with online transforms.
  void KeepInputs() { keeps_inputs_ = true; }
  const float* Input(Role first) const;
  // Runs the next layer.
  void Forward(const LayerWeights& layer, int64_t index);
  // From now on predictions are made with another head [vocab, hidden] than the targets, and
  // Diverge sums up its gradient. The head has to stay.
  void UseHead(std::span<const float> head);
  // Returns the sum over tokens of KL(target || prediction), in nats. targets [tokens, hidden] are
  // the inputs of the head that make the target distributions.
  double Diverge(std::span<const float> targets);
  // The gradient of the head that UseHead set, from the last Diverge, [vocab, hidden].
  std::vector<float> HeadGradients() const;
  // Begins the way back with -log p of one token drawn from each prediction, in place of Diverge.
  // The mean over draws of the gradient's products with itself is the Hessian of the divergence.
  void Draw(Rng& rng);
  // Begins the way back with the mean squared distance of the residual stream from `target`
  // [tokens, hidden], which is returned, in place of Diverge.
  double Approach(const float* target);
  // Called with the gradient of a linear's outputs, [tokens, N].
  using Visit = std::function<void(Role role, const float* gradients)>;
  // Called with what linears read behind a norm, not rounded, and its gradient, [tokens, hidden].
  using VisitInput = std::function<void(Role first, const float* exact, const float* gradients)>;
  // Goes back through the last layer that has not been: returns the gradient of the factors of
  // every linear's rows, which means nothing where it has a bias, and of inputs that have scales.
  LayerScales Backward(const Matrices& matrices, int64_t index, const Visit& visit = {},
                       const VisitInput& visit_input = {});

 private:
  struct Saved;       // what the way back needs of a layer
  struct HeadMemory;  // of one kv head
  using Floats = Buffer<float>;

  int64_t tokens() const { return sequences_ * length_; }
  float eps() const { return static_cast<float>(config_.norm_eps); }
  Floats NewFloats(int64_t count = 0) const;
  void Keep(const Intermediate* values, int64_t width, Floats& kept) const;
  void KeepInput(Role first, const ActsSource& source);
  // Makes logits_ those of a sequence, [length, vocab]; returns what the head reads, [length,
  // hidden].
  const float* Predict(int64_t sequence, const float* head);
  // Carries the gradient of a sequence's logits, which stands in logits_, back to x_gradients_.
  void ThroughHead(int64_t sequence, const float* head);
  // Sums y times y's gradient over tokens, both [tokens, width]: the gradient of the logarithms of
  // factors of y's columns.
  std::vector<float> FactorGradients(const float* y, const float* y_gradients, int64_t width);
  // The gradient of the logarithms of the row scales of a linear, given its outputs and theirs.
  std::vector<float> RowGradients(Role role, const float* y, const float* y_gradients);
  // RowGradients of o or down, which add after - before to x, or the norm of
  // `output` where the norm's weights are `weight`. Returns the gradient of the linear's outputs.
  const float* AddedGradients(Role role, const float* before, const float* after,
                              const Floats& weight, const Floats& output, LayerScales& gradients);
  void VisitNormed(const VisitInput& visit, Role first, const Saved& saved, const Floats& x);
  // Carries input_gradients_, the gradient of what `role` and others read behind a norm of x, back
  // to x_gradients_.
  void ThroughNorm(Role role, const Saved& saved, const Floats& x, LayerScales& gradients);
  // out [tokens, K] = y_gradients [tokens, N] W.
  void Multiply(Role role, const float* y_gradients, const Matrices& matrices, bool accumulate,
                Floats& out) const;
  void AttentionGradients(const Saved& saved);
  void HeadGradients(const Saved& saved, int64_t index, HeadMemory& memory) const;
  // The gradients through one query head: of its q, and of k and v, added to what other heads of
  // the group left there; the first head starts anew.
  void QueryGradients(const Saved& saved, bool first_head, HeadMemory& memory) const;

  int64_t layer_ = 0;  // the current one
  bool keeps_inputs_ = false;
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
  Floats head_, final_norm_, x_, x_gradients_,
      input_gradients_;  // [tokens, hidden] but the first two
  Floats a_gradients_, q_gradients_, k_gradients_, v_gradients_, gate_gradients_, up_gradients_,
      output_gradients_;
  const float* own_head_ = nullptr;  // UseHead
  Floats loaded_head_, head_gradients_;
  Floats products_;  // [tokens, width]: a linear's outputs in front of their transform
  Floats logits_, target_, target_logits_, sums_, norm_weights_;
};

}  // namespace nibble
