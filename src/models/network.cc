// SPDX-License-Identifier: Apache-2.0
#include "models/network.h"

#include <cmath>
#include <cstring>
#include <mutex>
#include <set>

#include "models/config_keys.h"
#include "models/gguf_names.h"
#include "models/layer_norms.h"
#include "models/packed_checkpoint.h"
#include "models/stored_codes.h"
#include "models/tile_plane.h"
#include "source/model_source.h"
#include "tensor/finite.h"

namespace nibble {
namespace {

bool SameBytes(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0;
}

// Hands out tensors by name with their expected shape and remembers which were used.
constexpr int64_t kMaxNextTokens = 8;  // published models have one such layer; a file may say more

class Tensors {
 public:
  Tensors(const Network& network, const std::optional<StoredCodes>& codes,
          const std::string& embedding)
      : network_(network), codes_(codes), base_(embedding.substr(0, embedding.find('.') + 1)) {
    of_base_class_ = !Has(embedding) && HasAnywhere(WithoutBase(embedding));
  }

  Tensor Get(const std::string& plain, const std::vector<int64_t>& shape) {
    const std::string name = StoredName(plain);
    const Tensor& view = network_.store->Get(name);
    if (view.shape != shape) {
      Fail("{}: tensor {} has shape {}, expected {} from config.json", network_.directory, name,
           ShapeText(view.shape), ShapeText(shape));
    }
    if (!IsFloat(view.dtype)) {
      Fail("{}: tensor {} is {}; use F32, F16 or BF16 weights", network_.directory, name,
           DTypeName(view.dtype));
    }
    used_.insert(name);
    return view;
  }

  // Gets a tensor that every token meets: NaN would stay unseen until logits.
  Tensor GetFinite(const std::string& name, const std::vector<int64_t>& shape) {
    const Tensor view = Get(name, shape);
    RequireFinite(view, fmt::format("{}: {}", network_.directory, name));
    return view;
  }

  // A norm's weights as they multiply: with the 1 that some families leave out.
  Tensor NormWeights(const std::string& name, int64_t width, bool lacks_one, double divisor = 1) {
    const Tensor stored = GetFinite(name, {width});
    if (!lacks_one && divisor == 1) return stored;
    std::vector<float> values = ToF32(stored).data;
    for (float& value : values) {
      value = static_cast<float>((double{value} + (lacks_one ? 1 : 0)) / divisor);
    }
    return Tensor::Of(DType::kF32, {width}, std::move(values));
  }

  // Reads a linear from rows of a tensor that other linears share: NAME.weight or NAME, or MXFP4's
  // codes and exponents; biases come from NAME.bias or NAME_bias.
  PackedLinear Part(const std::string& plain, const RowBlock& block, int64_t rows, int64_t cols,
                    bool bias) {
    const std::string name = Bare(plain);
    if (codes_ && codes_->Has(*network_.store, name)) {
      Fail("{}: {} holds codes of several linears, which are not read; use the float checkpoint",
           network_.directory, name);
    }
    PackedLinear linear;
    linear.weights = {.rows = rows, .cols = cols};
    linear.input.width = cols;
    if (Has(name + "_blocks")) {
      linear.weights.values = Mxfp4(name, block, rows, cols);
    } else {
      linear.weights.values =
          RowsOf(Get(Has(name) ? name : name + ".weight", ShapeOf(block, cols)), block, rows, cols);
    }
    if (!bias) return linear;
    RowBlock entries = block;
    entries.transposed = false;
    std::vector<int64_t> shape = ShapeOf(entries, 1);
    shape.pop_back();
    const Tensor all = GetFinite(name + (Has(name + "_bias") ? "_bias" : ".bias"), shape);
    linear.bias = RowsOf(Tensor::Of(DType::kF32, shape, ToF32(all).data), entries, rows, 1);
    linear.bias.shape = {rows};
    return linear;
  }

  PackedLinear Linear(const std::string& plain, int64_t rows, int64_t cols, bool bias) {
    const std::string name = Bare(plain);  // as codes are called, too
    PackedLinear linear;
    if (codes_ && codes_->Has(*network_.store, name)) {
      linear = codes_->Read(*network_.store, name, rows, cols, used_);
      found_codes_ = true;
      network_.store->DropPages();
      if (!bias) IgnoreZeros(name + ".bias");
    } else {
      linear.weights = {.rows = rows, .cols = cols, .values = Get(name + ".weight", {rows, cols})};
      linear.input.width = cols;
    }
    if (bias) linear.bias = GetFinite(name + ".bias", {rows});
    return linear;
  }

  void RefuseUnused() const {
    for (const std::string& name : network_.store->names()) {
      // Some exports carry the rotary table, which follows from the config.
      if (name.starts_with(kGgufRopePrefix) || name.ends_with("rotary_emb.inv_freq")) continue;
      if (used_.contains(name) || (InLargerModel() && !IsOfText(name))) continue;
      if (IsOfNextTokens(name) || IsMask(name)) continue;
      Fail("{}: tensor {} is not part of a {} model with this config.json", network_.directory,
           name, network_.config.family);
    }
  }

  // The bias of the norm of these weights, NAME.weight.
  Tensor NormBias(const std::string& weights, int64_t width) {
    const std::string_view suffix = "weight";
    NIBBLE_CHECK(weights.ends_with(suffix), "{}", weights);
    return GetFinite(weights.substr(0, weights.size() - suffix.size()) + "bias", {width});
  }

  bool Has(const std::string& plain) const {
    return network_.store->Find(StoredName(plain)) != nullptr;
  }
  void Ignore(const std::string& name) { used_.insert(StoredName(name)); }
  bool found_codes() const { return found_codes_; }
  // The checkpoint was saved from the model without its head, as those of embedding models are:
  // names lack the prefix that they have in the whole, "norm.weight" for "model.norm.weight".
  bool of_base_class() const { return of_base_class_; }

 private:
  // A text model may be a part of one that sees or hears, "language_model.model.norm.weight" or
  // "model.language_model.norm.weight".
  bool InLargerModel() const { return &TextConfig(network_.config_json) != &network_.config_json; }
  // Layers behind the last that guess further tokens (num_nextn_predict_layers).
  bool IsOfNextTokens(const std::string& name) const {
    const Json& text = TextConfig(network_.config_json);
    const int64_t layers = network_.config.layers;
    const auto more = JsonFind<int64_t>(text, "num_nextn_predict_layers", "").value_or(0);
    for (int64_t i = layers; i < layers + std::min(more, kMaxNextTokens); ++i) {
      if (name.starts_with(Bare(fmt::format("model.layers.{}.", i)))) return true;
    }
    return false;
  }
  // Tells a mask of the keys that a query sees, in older checkpoints of GPT-NeoX.
  static bool IsMask(const std::string& name) {
    return name.ends_with(".attention.bias") || name.ends_with(".attention.masked_bias");
  }
  static bool IsOfText(const std::string& name) {
    return name.find("language_model.") != name.npos || name.starts_with("lm_head.");
  }
  std::string WithoutBase(const std::string& name) const {
    return name.starts_with(base_) ? name.substr(base_.size()) : name;
  }
  std::string Bare(const std::string& name) const {
    return of_base_class_ ? WithoutBase(name) : name;
  }
  // Tells whether the store has a tensor of a model that is alone or in a larger one.
  bool HasAnywhere(const std::string& name) const {
    return network_.store->Find(name) != nullptr ||
           (InLargerModel() && network_.store->Find("language_model." + name) != nullptr);
  }
  std::string StoredName(const std::string& plain) const {
    const std::string name = Bare(plain);
    if (!InLargerModel() || network_.store->Find(name) != nullptr) return name;
    const std::string_view model = "model.";
    std::string inner = name;
    if (name.starts_with(model)) inner.insert(model.size(), "language_model.");
    return network_.store->Find(inner) != nullptr ? inner : "language_model." + name;
  }

  Tensor Mxfp4(const std::string& name, const RowBlock& block, int64_t rows, int64_t cols) {
    if (cols % 32 != 0) {
      Fail("{}: {} has {} inputs, which are no blocks of MXFP4", network_.directory, name, cols);
    }
    const int64_t outputs = block.total / block.stacked;
    const auto get = [&](const std::string& plain, const std::vector<int64_t>& shape) {
      const std::string part = StoredName(plain);
      const Tensor& tensor = network_.store->Get(part);
      if (tensor.dtype != DType::kU8 || tensor.shape != shape) {
        Fail("{}: tensor {} is {} {}, expected U8 {}", network_.directory, part,
             DTypeName(tensor.dtype), ShapeText(tensor.shape), ShapeText(shape));
      }
      used_.insert(part);
      return tensor;
    };
    return RowsOfMxfp4(get(name + "_blocks", {block.stacked, outputs, cols / 32, 16}),
                       get(name + "_scales", {block.stacked, outputs, cols / 32}), block, rows,
                       cols);
  }

  // AutoGPTQ stores a bias of zeros where the model has none.
  void IgnoreZeros(const std::string& name) {
    const Tensor* bias = network_.store->Find(name);
    if (bias == nullptr || !IsFloat(bias->dtype)) return;
    const auto values = ToF32(*bias).data;
    if (std::ranges::all_of(values, [](float value) { return value == 0; })) Ignore(name);
  }

  const Network& network_;
  const std::optional<StoredCodes>& codes_;
  const std::string base_;  // "model." of most families
  bool of_base_class_ = false;
  std::set<std::string> used_;
  bool found_codes_ = false;
};

// Moves a layer's LayerNorms (Family::layer_norms) into linears: biases into those that read norms,
// means into those that add to the residual stream.
void MoveNormBiases(const ModelConfig& c, const Family& family, int64_t layer, Tensors& tensors,
                    LayerWeights& weights) {
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

void LoadPlain(Network& net, const Family& family, const std::optional<StoredCodes>& codes) {
  const ModelConfig& c = net.config;
  if (codes && family.layer_norms) {
    Fail(
        "{}: a {} model's LayerNorms move into its weights, which {}'s codes do not allow; use the "
        "float checkpoint",
        net.directory, c.family, net.stored_codes);
  }
  const std::string embedding = family.linear(c, 0, Role::kEmbedding) + ".weight";
  Tensors tensors(net, codes, embedding);
  Plan floats;
  floats.k = floats.v = {.bits = 32};
  net.caches = LayerCaches(c, floats);
  net.embedding = {.rows = c.vocab_size,
                   .cols = c.hidden_size,
                   .values = tensors.GetFinite(embedding, {c.vocab_size, c.hidden_size})};
  net.final_norm = tensors.NormWeights(std::string(family.final_norm), c.hidden_size,
                                       family.norms_lack_one, c.logits_divisor);
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    LayerWeights& weights = net.layers.emplace_back();
    for (LayerVector norm : c.layer_vectors(layer)) {
      weights.vectors[norm] =
          tensors.NormWeights(family.vector(c, layer, norm), c.width(layer, norm),
                              family.norms_lack_one, DivisorOf(c, norm));
    }
    for (Role role : c.layer_roles(layer)) {
      PackedLinear& linear = weights[role];
      const std::string name = family.linear(c, layer, role);
      const RowBlock block = family.rows == nullptr ? RowBlock{} : family.rows(c, role);
      const int64_t rows = c.outputs(layer, role), cols = c.inputs(layer, role);
      // Biases of LayerNorms become those of linears for which the files may have none.
      const bool bias = c.has_bias(role) && (!family.layer_norms || c.has_bias(Role::kO));
      linear = block.total > 0 ? tensors.Part(name, block, rows, cols, bias)
                               : tensors.Linear(name, rows, cols, bias);
      if (family.rope_pairs && (role == Role::kQ || role == Role::kK)) PutPairsApart(c, linear);
      // Codes cannot stay if the means of norms move into weights.
      if (linear.weights.values.dtype != DType::kMxfp4 || family.layer_norms) continue;
      linear.weights = CodesOfMxfp4(linear.weights.values, net.directory + ": " + name);
      net.stored_codes = "MXFP4";
      net.store->DropPages();
    }
    if (!c.spec(layer).owns_kv()) {  // published files have them all the same
      for (Role role : {Role::kK, Role::kV}) {
        tensors.Ignore(family.linear(c, layer, role) + ".weight");
      }
      tensors.Ignore(family.vector(c, layer, LayerVector::kKeyNorm));
    }
    RequireSharedInputs(c, layer, weights, net.directory);
    if (family.layer_norms) MoveNormBiases(c, family, layer, tensors, weights);
  }
  const std::string head = family.linear(c, 0, Role::kHead);
  if (tensors.of_base_class() && !tensors.Has(head + ".weight")) TieHead(net);
  if (c.tied_head && !family.layer_norms && tensors.Has(head + ".weight")) {
    // Some exports store the table twice. Fine-tunes that train both apart keep both, and
    // config.json still says that they are one.
    const Tensor own = tensors.GetFinite(head + ".weight", net.embedding.values.shape);
    net.config.tied_head = SameBytes(own, net.embedding.values);
  }
  if (family.layer_norms) {
    // The head's table has a mean and the embedding's none, even where they are tied.
    net.head.weights = net.embedding;
    const bool tied =
        JsonFind<bool>(net.config_json, "tie_word_embeddings", net.directory).value_or(true);
    if (!tied || tensors.Has(head + ".weight")) {
      net.head.weights.values = tensors.GetFinite(head + ".weight", net.embedding.values.shape);
    }
    net.head.input.width = c.hidden_size;
    AddNormBias(tensors.NormBias(std::string(family.final_norm), c.hidden_size), net.head);
    CentreRows(net.embedding.values);
    if (c.learned_positions) {
      const int64_t unused = family.unused_positions;
      const std::string name = std::string(family.positions);
      net.positions =
          tensors.GetFinite(name, {unused + c.context, c.hidden_size}).Rows(unused, c.context);
      CentreRows(net.positions);
    }
  } else if (c.tied_head) {
    net.head.weights = net.embedding;
    net.head.input.width = c.hidden_size;
  } else {
    net.head = tensors.Linear(head, c.vocab_size, c.hidden_size, false);
    if (net.head.weights.format.quantized()) net.head = InFloats(net.head);  // as tables are
  }
  if (c.layer_input_size > 0) {
    const int64_t width = c.layer_input_size, all = c.layers * width;
    const std::string table = family.linear(c, 0, Role::kLayerTable) + ".weight";
    net.layer_table = {.rows = c.outputs(0, Role::kLayerTable), .cols = width};
    net.layer_table.values = tensors.GetFinite(table, {c.vocab_size, all});
    net.layer_table.values.shape = {net.layer_table.rows, width};
    const std::string projection = family.linear(c, 0, Role::kLayerProjection);
    net.layer_projection = tensors.Linear(projection, all, c.hidden_size, false);
    if (net.layer_projection.weights.format.quantized()) {
      net.layer_projection = InFloats(net.layer_projection);
    }
    net.layer_input_norm =
        tensors.NormWeights(std::string(family.layer_input_norm), width, family.norms_lack_one);
  }
  tensors.RefuseUnused();
  if (codes && !tensors.found_codes()) {
    Fail("{}: config.json says that {} quantized it, but no linear has codes", net.directory,
         net.stored_codes);
  }
}

UnreadKeys CheckKeys(const std::string& model, const Json& config) {
  UnreadKeys unread;
  // A GGUF file's config.json is made of its keys.
  if (!IsGguf(model)) FindUnreadConfigKeys(config, unread);
  FindUnreadDocumentKeys(model, unread);
  if (!unread.refused.empty()) {
    Fail("{}: not supported: {}", model, fmt::join(unread.refused, ", "));
  }
  return unread;
}

// Once for each model: some commands open one several times.
void Deliver(const std::string& model, const UnreadKeys& unread) {
  static std::mutex mutex;
  static std::set<std::string> reported;
  const std::lock_guard lock(mutex);
  const auto tell = [&](const char* what, const std::vector<std::string>& keys) {
    const auto line = fmt::format("nibble: {}: {} {}\n", model, what, fmt::join(keys, ", "));
    if (!keys.empty() && reported.insert(line).second) Note("{}", line);
  };
  tell("answers may differ, as nothing reads", unread.answers);
  tell("not known, and left alone:", unread.unknown);
}

}  // namespace

Network OpenNetwork(const std::string& directory) {
  Network net;
  net.directory = directory;
  RequireModel(directory);
  const std::string where = DocumentPath(directory, "config.json");
  net.config_json = ParseJson(GetDocument(directory, "config.json", kMaxJsonBytes), where);
  net.config = ParseConfig(net.config_json, where);
  net.unread = CheckKeys(directory, net.config_json);
  const auto quantization = JsonFind<Json>(net.config_json, "quantization_config", where);
  net.store = OpenTensors(directory);
  if (quantization && JsonFind<std::string>(*quantization, "quant_method", where) == "nibble") {
    net.packed = true;
    LoadPacked(net, *quantization, where);
    AttachTiles(net);
    Deliver(directory, net.unread);
    return net;
  }
  std::optional<StoredCodes> codes;
  const bool mxfp4 =
      quantization && JsonFind<std::string>(*quantization, "quant_method", where) == "mxfp4";
  if (quantization && !mxfp4) {
    codes.emplace(*quantization, where);
    net.stored_codes = codes->name();
  }
  const bool gguf = IsGguf(directory);
  LoadPlain(net, gguf ? GgufFamilyOf(net.config, where) : FamilyOf(net.config_json, where), codes);
  Deliver(directory, net.unread);
  return net;
}

}  // namespace nibble
