// SPDX-License-Identifier: Apache-2.0
// Passes over a network layer by layer: all windows of a text move on together, and whoever walks
// with them sees the inputs of each set of linears (q/k/v, o, gate/up, down) before it runs.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/mixture.h"
#include "io/spill_file.h"
#include "quantize/round/stored_layer.h"

namespace nibble {

// Linears that share an input: of attention, of the FFN, or of one expert of a mixture, behind the
// FFN where it has one beside them. Its router is in none of them.
struct LinearSet {
  enum Kind { kQkv, kO, kMlp, kDown };
  constexpr LinearSet(Kind k, int64_t e = -1, bool a = false) : kind(k), expert(e), alone(a) {}

  Kind kind;
  int64_t expert;  // of kMlp and kDown; -1: of the FFN
  bool alone;      // kMlp: there is no up; kQkv: the layer has neither k nor v

  bool operator==(const LinearSet&) const = default;
};
// The sets of a layer, in the order they run.
std::vector<LinearSet> LinearSets(const ModelConfig& config, int64_t layer);
std::vector<Role> RolesOf(LinearSet set);

// All windows at one depth of the network.
class Stream {
 public:
  // ids: windows of `context` tokens, one after the other. quantized: activations and cache as
  // planned; otherwise both at 16 bits. Where a file is given, of a backend in the program's
  // memory, windows that are not worked on lie in it.
  Stream(Backend& backend, const ModelConfig& config, const Plan& plan,
         const EmbeddingRows& embedding, std::span<const int32_t> ids, int64_t context,
         bool quantized, SpillFile* file = nullptr);

  int64_t windows() const { return windows_; }
  int64_t context() const { return context_; }
  static size_t Bytes(const ModelConfig& config, int64_t tokens);

  // From now on tokens go to the experts that `other` has chosen for the same layer and window.
  void Follow(const Stream& other) { leader_ = &other; }

  // Moves x behind a layer, whose linears are known.
  void Pass(const LayerWeights& layer, int64_t index);
  // Passes a layer set by set: visit(set) may look at the set's inputs and decide on its linears,
  // which are uploaded then; in `layer` they need not be known before.
  using Visit = std::function<void(LinearSet set)>;
  void Walk(const LayerWeights& layer, int64_t index, const Visit& visit) {
    Begin(layer, index, visit), Finish();
  }
  // Walk in two, between which the inputs of all sets may be looked at.
  void Begin(const LayerWeights& layer, int64_t index, const Visit& visit = {});
  void Finish();

  struct SetInput {
    const float* values;  // fp32 [tokens, K] in the backend's memory, valid until the next call
    int64_t tokens;       // an expert reads what is routed to it, which may be nothing
  };
  // The inputs of the set's linears in a window, which runs up to the set and must not be behind
  // it: after the online transform and quantized to `activations` (at 16 bits so is a tail), as the
  // codes mean them.
  SetInput Input(LinearSet set, int64_t window, const FormatSpec& activations);
  // The inputs with the planned activations in a quantized stream, at 16 bits in others.
  SetInput Input(LinearSet set, int64_t window) {
    return Input(set, window, layer_.inputs[RolesOf(set)[0]].activations);
  }
  // Gives up working memory, which the next window takes again.
  void Release() { scratch_ = Scratch(backend_), Rest(); }
  // The residual stream [windows * context, hidden], in the backend's memory.
  const float* x() const { return x_.data(); }
  // The residual stream to be changed, of a backend in host memory.
  std::span<float> host_x() { return {x_.data(), static_cast<size_t>(x_.size())}; }

 private:
  Decoder decoder(int64_t window) { return {backend_, config_, ropes_, scratch_, GivenTo(window)}; }
  const Intermediate* GivenTo(int64_t window) const;  // Decoder::layer_input
  InputSpec Planned(Role role, const PackedLinear& linear) const;
  void Upload(Role role, const PackedLinear& linear);
  // Runs a window up to the set from where it stands; the linears of earlier sets are uploaded.
  void RunTo(LinearSet set, int64_t window);
  void Advance(LinearSet set, int64_t window);  // from the set before
  // Lets the file take the windows' memory, before another window is worked on.
  void Rest() const;
  int64_t tokens(LinearSet set, int64_t window) const;
  void Route(int64_t window);
  // The rows that the norm in front of the set reads, [tokens(set, window), hidden].
  const float* Rows(LinearSet set, int64_t window);
  ActsSource Source(LinearSet set, int64_t window);
  void MakeLayerInputs(const Network& network, std::span<const int32_t> ids);
  // The window's place in the cache: empty, or of a layer whose keys this one reads.
  SequenceSlice CacheOf(int64_t window);
  // Writes `source` to a(set, window).
  void Keep(const ActsSource& source, LinearSet set, int64_t window);
  float* x(int64_t window) { return x_.data() + window * context_ * config_.hidden_size; }
  // The inputs of o or down, before the transform.
  float* a(LinearSet set, int64_t window);

  Backend& backend_;
  const ModelConfig& config_;
  const Plan& plan_;
  BackendRopes ropes_;
  int64_t context_, windows_;
  bool quantized_;
  SpillFile* file_;
  std::vector<KvSpec> kv_;                               // of each layer
  KvCache cache_;                                        // one layer, one window
  std::map<std::pair<int64_t, int64_t>, KvCache> lent_;  // of layers and windows that others read
  Scratch scratch_;
  Buffer<float> x_;  // [windows * context, hidden]
  // [windows * context, width of o or down]; of a parallel layer all of o, then all of down.
  Buffer<float> a_;
  Buffer<Intermediate> layer_inputs_;  // [windows][layers][context][layer_input_size]
  Layer layer_;
  std::vector<LinearSet> sets_;  // of the layer
  std::vector<size_t> places_;   // of windows: the set that each stands in front of
  InputSpec input_;              // of the last Input
  std::vector<Routes> routes_;   // of every window, in a mixture
  const Stream* leader_ = nullptr;
  int64_t index_ = 0;
};

}  // namespace nibble
