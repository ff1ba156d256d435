// SPDX-License-Identifier: Apache-2.0
// A network as data. A decoder layer is always
//   x += O(attention(Q, K, V of norm(x)));  x += Down(open(Gate(norm(x))) * Up(norm(x)))
// where there may be no Up (GateSpec::alone) and both may read the same x (`parallel`). In a
// mixture of experts (Shazeer et al. 2017) the latter is a sum over a few experts, chosen for each
// token.
//
// Families differ in the numbers below and in the names of their tensors; LayerSpec has what may
// differ between the layers of one network.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "formats/gate_spec.h"
#include "formats/router_spec.h"
#include "transforms/rope.h"

namespace nibble {

// The job of a linear layer. From kExperts on: gate, up and down of one expert after another.
// kLayerTable and kLayerProjection: what the layers' own inputs are made of
// (engine/layer_inputs.h); kLayerGate and kLayerOutput: what a layer makes of its own.
enum class Role {
  kQ,
  kK,
  kV,
  kO,
  kGate,
  kUp,
  kDown,
  kHead,
  kEmbedding,
  kRouter,
  kLayerTable,
  kLayerProjection,
  kLayerGate,
  kLayerOutput,
  kExperts
};
// Roles of no layer: rows for tokens, and weights that all layers' own inputs are made of.
inline constexpr std::array kModelRoles = {Role::kEmbedding, Role::kHead, Role::kLayerTable,
                                           Role::kLayerProjection};
// Roles of a layer without experts.
inline constexpr std::array kLayerRoles = {Role::kQ,    Role::kK,  Role::kV,   Role::kO,
                                           Role::kGate, Role::kUp, Role::kDown};
// kGate, kUp or kDown of an expert; of none (-1), the role itself.
Role OfExpert(Role role, int64_t expert);
int64_t ExpertOf(Role role);      // -1: not an expert's
Role KindOf(Role role);           // kGate of any expert's gate, and so on
std::string RoleName(Role role);  // "q" ... "down", "head", "embedding", "router", ...

// Vectors of a layer: weights of RMS norms, of the residual stream in front of attention and of the
// FFN, of each query and key head in front of RoPE (Henry et al. 2020), and of what attention and
// FFN add to the stream; scores of the heads' sinks (Xiao et al. 2023).
enum class LayerVector {
  kAttentionNorm,
  kMlpNorm,
  kQueryNorm,
  kKeyNorm,
  kPostAttentionNorm,
  kPostMlpNorm,
  kSinks,
  kRouterBias,          // of the choice among experts
  kLayerScale,          // one number, of the residual stream behind the layer
  kPostLayerInputNorm,  // of what a layer makes of its own input
  // Vectors of experts beside an FFN (ModelConfig::dense_beside_experts): norms in front of the
  // router and of the experts, factors of the experts' weights, norms of what the FFN and what they
  // add up to.
  kRouterNorm,
  kExpertsNorm,
  kExpertScales,
  kPostDenseNorm,
  kPostExpertsNorm,
  kKeyCenter  // what cached keys are stored without (Plan::center_keys); no source has it
};
std::string_view VectorName(LayerVector vector);  // "attention_norm", "q_norm", "sinks", ..
// Weights of a norm in front of linears may be folded into them (Plan::norms_folded).
inline constexpr bool IsFoldable(LayerVector vector) {
  return vector == LayerVector::kAttentionNorm || vector == LayerVector::kMlpNorm ||
         vector == LayerVector::kRouterNorm || vector == LayerVector::kExpertsNorm;
}

// A value for each of some parts of a layer.
template <typename Part, typename T>
class ByPart {
 public:
  T& operator[](Part part) { return values_[part]; }
  const T& operator[](Part part) const {  // T() where there is none
    static const T kNone{};
    const auto it = values_.find(part);
    return it == values_.end() ? kNone : it->second;
  }
  bool contains(Part part) const { return values_.contains(part); }
  auto begin() const { return values_.begin(); }  // of pairs, in the order of parts
  auto end() const { return values_.end(); }
  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }

 private:
  std::map<Part, T> values_;
};
template <typename T>
using ByRole = ByPart<Role, T>;
template <typename T>
using ByVector = ByPart<LayerVector, T>;

struct LayerSpec {
  int rope = 0;                // of ModelConfig::ropes; -1: q and k are not turned
  int64_t sliding_window = 0;  // 0 = every earlier key is seen
  bool dense = false;          // has one FFN where other layers have experts
  // Heads unlike those of other layers; 0: the model's.
  int64_t kv_heads = 0, head_dim = 0;
  bool values_are_keys = false;  // V is what the key's linear gives
  int64_t kv_layer = -1;  // an earlier layer of such heads, whose keys and values it reads; -1: own
  int64_t intermediate_size = 0;  // of the FFN of all tokens; 0: the model's

  bool owns_kv() const { return kv_layer < 0; }
};

// The shape of a layer's attention.
struct HeadShape {
  int64_t heads, kv_heads, head_dim;
  int64_t q_width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

struct ModelConfig {
  std::string family;  // Hugging Face's model_type
  int64_t hidden_size = 0, layers = 0;
  int64_t layer_input_size = 0;  // of what each layer is given of a token; 0: nothing
  int64_t intermediate_size = 0, expert_size = 0;  // of the FFN of all tokens, and of an expert's
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t vocab_size = 0, context = 0;  // context = max_position_embeddings
  RouterSpec router;                    // of a layer's experts
  double norm_eps = 0;
  double embedding_scale = 1;  // of rows of the embedding, on their way into the residual stream
  double attention_scale = 0;  // of scores; 0: 1 / sqrt(head_dim)
  double logits_divisor = 1;   // the final norm, as OpenNetwork gives it, does that
  // Scores and logits x become c * tanh(x / c); 0: they stay.
  double attention_softcap = 0, logits_softcap = 0;
  // Attention and FFN read the same x, and both are added to it.
  bool parallel = false;
  // A row for each place is added to that of the token.
  bool learned_positions = false;
  // Layers with experts have an FFN of all tokens, too: x += norm(norm(FFN) + norm(experts)).
  bool dense_beside_experts = false;
  bool one_norm = false;  // the FFN's norm in front is that of attention, under one name
  // Norms of q and k are of all their heads at once, not of each.
  bool wide_query_norms = false;
  bool value_norms = false;  // heads of v have RMS norms, without weights
  GateSpec gating;           // of FFNs
  bool tied_head = false;
  std::vector<Role> biases;  // kinds of the linears that have one
  std::vector<LayerVector> vectors = {LayerVector::kAttentionNorm, LayerVector::kMlpNorm};
  std::vector<RopeSpec> ropes = {};
  std::vector<LayerSpec> specs = {};  // of each layer; fewer: the last is that of all others

  LayerSpec spec(int64_t layer) const;
  HeadShape head_shape(int64_t layer) const;
  // The largest of a number that layers differ in.
  template <typename Number>
  int64_t Largest(const Number& number) const {
    int64_t largest = 0;
    for (int64_t i = 0; i < layers; ++i) largest = std::max(largest, number(i));
    return largest;
  }
  bool shares_kv() const;              // any layer
  bool lends_kv(int64_t layer) const;  // others read its keys and values
  // Returns whether keys may be stored without a vector (Plan::center_keys).
  bool centers_keys() const { return attention_softcap == 0 && !has(LayerVector::kSinks); }
  bool has_experts(int64_t layer) const { return router.experts > 0 && !spec(layer).dense; }
  bool has_ffn(int64_t layer) const { return !has_experts(layer) || dense_beside_experts; }
  int64_t Widest(Role role) const;                     // outputs in the layer that has most
  int64_t ffn_size() const;                            // of the widest FFN
  std::vector<Role> layer_roles(int64_t layer) const;  // in the order in which a token meets them
  std::vector<Role> model_roles() const;               // of kModelRoles those that there are
  std::vector<LayerVector> layer_vectors(int64_t layer) const;
  // kGate, kUp or kDown of the first expert, or of the FFN where there is none.
  Role first(int64_t layer, Role role) const { return OfExpert(role, has_experts(layer) ? 0 : -1); }
  bool has_bias(Role role) const;
  bool has(LayerVector vector) const;
  // The norm whose output a linear reads, if there is one.
  std::optional<LayerVector> NormInFront(Role role) const;
  // Returns whether the residual stream can be rotated: weights of norms behind o and down let no
  // rotation pass.
  bool rotates_residual() const { return !has(LayerVector::kPostAttentionNorm); }
  int64_t width(int64_t layer, LayerVector vector) const;
  int64_t outputs(int64_t layer, Role role) const;  // N of a linear
  int64_t inputs(int64_t layer, Role role) const;   // K of a linear
  int64_t parameters() const;                       // of all weight matrices and norms
};

// Name of a linear inside Nibble: "layers.3.down"; "head", "embedding" (layer is ignored).
std::string LinearName(int64_t layer, Role role);

}  // namespace nibble
