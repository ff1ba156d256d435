// SPDX-License-Identifier: Apache-2.0
// The tensors of a checkpoint that is not Nibble's, by the names that its family gives them.
#pragma once

#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "models/families/family.h"
#include "models/import/gguf_names.h"
#include "models/import/stored_codes.h"
#include "models/network.h"
#include "tensor/finite.h"

namespace nibble {

inline constexpr int64_t kMaxNextTokens = 8;  // published models have one such layer

// Hands out tensors by name with their expected shape and remembers which were used.
class SourceTensors {
 public:
  SourceTensors(const Network& network, const std::optional<StoredCodes>& codes,
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

}  // namespace nibble
