// SPDX-License-Identifier: Apache-2.0
#include "models/import/load_source.h"

#include <cmath>
#include <cstring>

#include "models/checkpoint/packed_checkpoint.h"
#include "models/families/family.h"
#include "models/import/gguf_names.h"
#include "models/import/layer_norms.h"
#include "models/import/source_tensors.h"
#include "models/plan.h"

namespace nibble {
namespace {

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

// Moves a layer's LayerNorms (Family::layer_norms) into linears: biases into those that read norms,
// means into those that add to the residual stream.
void MoveNormBiases(const ModelConfig& c, const Family& family, int64_t layer,
                    SourceTensors& tensors, LayerWeights& weights) {
  ByVector<Tensor> biases;
  for (LayerVector norm : {LayerVector::kAttentionNorm, LayerVector::kMlpNorm}) {
    biases[norm] = tensors.NormBias(family.vector(c, layer, norm), c.hidden_size);
  }
  for (auto& [role, linear] : weights.linears) {
    if (role == Role::kO || role == Role::kDown) {
      CentreOutputs(linear);
    } else {
      AddNormBias(biases[*c.NormInFront(role)], linear);
    }
  }
}

// Puts rows apart that RoPE turns together, in all planes.
void PutPairsApart(const ModelConfig& c, PackedLinear& linear) {
  const auto apart = [&](Tensor& plane) {
    if (plane.data != nullptr) plane = PairsApart(plane, c.head_dim, c.ropes[0].head_dim);
  };
  PackedWeights& w = linear.weights;
  for (const Plane& plane : PlanesOf(w.format, w.rows, w.cols)) apart(w.*plane.tensor);
  apart(linear.bias);
}

// The divisor of a vector's stored numbers.
double DivisorOf(const ModelConfig& c, LayerVector vector) {
  return vector == LayerVector::kRouterNorm ? std::sqrt(static_cast<double>(c.hidden_size)) : 1;
}

// A head that is not there is the embedding, whatever config.json says; one made from it has to say
// so, as a plan that ties the head goes with no other.
void TieHead(Network& net) {
  Json& config = net.config_json;
  Json& text = &TextConfig(config) == &config ? config : config["text_config"];
  text["tie_word_embeddings"] = true;
  net.config.tied_head = ParseConfig(config, net.directory).tied_head;
}

class SourceLoader {
 public:
  SourceLoader(Network& net, const Family& family, const std::optional<StoredCodes>& codes)
      : net_(net), family_(family), tensors_(net, codes, Embedding()) {}

  void Load() {
    const ModelConfig& c = net_.config;
    Plan floats;
    floats.k = floats.v = {.bits = 32};
    net_.caches = LayerCaches(c, floats);
    net_.embedding = {.rows = c.vocab_size,
                      .cols = c.hidden_size,
                      .values = tensors_.GetFinite(Embedding(), {c.vocab_size, c.hidden_size})};
    net_.final_norm = tensors_.NormWeights(std::string(family_.final_norm), c.hidden_size,
                                           family_.norms_lack_one, c.logits_divisor);
    for (int64_t layer = 0; layer < c.layers; ++layer) LoadLayer(layer);
    if (family_.layer_norms) {
      LoadLayerNormHead();
    } else {
      LoadHead();
    }
    if (c.layer_input_size > 0) LoadLayerInputs();
    tensors_.RefuseUnused();
  }
  bool found_codes() const { return tensors_.found_codes(); }

 private:
  std::string Embedding() const {
    return family_.linear(net_.config, 0, Role::kEmbedding) + ".weight";
  }
  std::string Head() const { return family_.linear(net_.config, 0, Role::kHead); }

  void LoadLayer(int64_t layer) {
    const ModelConfig& c = net_.config;
    LayerWeights& weights = net_.layers.emplace_back();
    for (LayerVector norm : c.layer_vectors(layer)) {
      weights.vectors[norm] =
          tensors_.NormWeights(family_.vector(c, layer, norm), c.width(layer, norm),
                               family_.norms_lack_one, DivisorOf(c, norm));
    }
    for (Role role : c.layer_roles(layer)) LoadLinear(layer, role, weights[role]);
    if (!c.spec(layer).owns_kv()) {  // published files have them all the same
      for (Role role : {Role::kK, Role::kV}) {
        tensors_.Ignore(family_.linear(c, layer, role) + ".weight");
      }
      tensors_.Ignore(family_.vector(c, layer, LayerVector::kKeyNorm));
    }
    RequireSharedInputs(c, layer, weights, net_.directory);
    if (family_.layer_norms) MoveNormBiases(c, family_, layer, tensors_, weights);
  }

  void LoadLinear(int64_t layer, Role role, PackedLinear& linear) {
    const ModelConfig& c = net_.config;
    const std::string name = family_.linear(c, layer, role);
    const RowBlock block = family_.rows == nullptr ? RowBlock{} : family_.rows(c, role);
    const int64_t rows = c.outputs(layer, role), cols = c.inputs(layer, role);
    // Biases of LayerNorms become those of linears for which the files may have none.
    const bool bias = c.has_bias(role) && (!family_.layer_norms || c.has_bias(Role::kO));
    linear = block.total > 0 ? tensors_.Part(name, block, rows, cols, bias)
                             : tensors_.Linear(name, rows, cols, bias);
    if (family_.rope_pairs && (role == Role::kQ || role == Role::kK)) PutPairsApart(c, linear);
    // Codes cannot stay if the means of norms move into weights.
    if (linear.weights.values.dtype != DType::kMxfp4 || family_.layer_norms) return;
    linear.weights = CodesOfMxfp4(linear.weights.values, net_.directory + ": " + name);
    net_.stored_codes = "MXFP4";
    net_.store->DropPages();
  }

  void LoadHead() {
    const ModelConfig& c = net_.config;
    const std::string stored = Head() + ".weight";
    if (tensors_.of_base_class() && !tensors_.Has(stored)) TieHead(net_);
    if (c.tied_head && tensors_.Has(stored)) {
      // Some exports store the table twice. Fine-tunes that train both apart keep both, and
      // config.json still says that they are one.
      const Tensor own = tensors_.GetFinite(stored, net_.embedding.values.shape);
      net_.config.tied_head = SameBytes(own, net_.embedding.values);
    }
    if (c.tied_head) {
      net_.head.weights = net_.embedding;
      net_.head.input.width = c.hidden_size;
    } else {
      net_.head = tensors_.Linear(Head(), c.vocab_size, c.hidden_size, false);
      if (net_.head.weights.format.quantized()) net_.head = InFloats(net_.head);  // as tables are
    }
  }

  // The head's table has a mean and the embedding's none, even where they are tied.
  void LoadLayerNormHead() {
    const ModelConfig& c = net_.config;
    const std::string stored = Head() + ".weight";
    if (tensors_.of_base_class() && !tensors_.Has(stored)) TieHead(net_);
    net_.head.weights = net_.embedding;
    const bool tied =
        JsonFind<bool>(net_.config_json, "tie_word_embeddings", net_.directory).value_or(true);
    if (!tied || tensors_.Has(stored)) {
      net_.head.weights.values = tensors_.GetFinite(stored, net_.embedding.values.shape);
    }
    net_.head.input.width = c.hidden_size;
    AddNormBias(tensors_.NormBias(std::string(family_.final_norm), c.hidden_size), net_.head);
    CentreRows(net_.embedding.values);
    if (!c.learned_positions) return;
    const int64_t unused = family_.unused_positions;
    const std::string name = std::string(family_.positions);
    net_.positions =
        tensors_.GetFinite(name, {unused + c.context, c.hidden_size}).Rows(unused, c.context);
    CentreRows(net_.positions);
  }

  // ModelConfig::layer_input_size.
  void LoadLayerInputs() {
    const ModelConfig& c = net_.config;
    const int64_t width = c.layer_input_size, all = c.layers * width;
    const std::string table = family_.linear(c, 0, Role::kLayerTable) + ".weight";
    net_.layer_table = {.rows = c.outputs(0, Role::kLayerTable), .cols = width};
    net_.layer_table.values = tensors_.GetFinite(table, {c.vocab_size, all});
    net_.layer_table.values.shape = {net_.layer_table.rows, width};
    const std::string projection = family_.linear(c, 0, Role::kLayerProjection);
    net_.layer_projection = tensors_.Linear(projection, all, c.hidden_size, false);
    if (net_.layer_projection.weights.format.quantized()) {
      net_.layer_projection = InFloats(net_.layer_projection);
    }
    net_.layer_input_norm =
        tensors_.NormWeights(std::string(family_.layer_input_norm), width, family_.norms_lack_one);
  }

  Network& net_;
  const Family& family_;
  SourceTensors tensors_;
};

}  // namespace

void LoadSource(Network& net, const Family& family, const std::optional<StoredCodes>& codes) {
  if (codes && family.layer_norms) {
    Fail(
        "{}: a {} model's LayerNorms move into its weights, which {}'s codes do not allow; use the "
        "float checkpoint",
        net.directory, net.config.family, net.stored_codes);
  }
  SourceLoader loader(net, family, codes);
  loader.Load();
  if (codes && !loader.found_codes()) {
    Fail("{}: config.json says that {} quantized it, but no linear has codes", net.directory,
         net.stored_codes);
  }
}

}  // namespace nibble
