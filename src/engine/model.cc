// SPDX-License-Identifier: Apache-2.0
#include "engine/model.h"

#include <algorithm>

namespace nibble {
namespace {

int64_t Positions(const ModelConfig& config, int64_t max_context) {
  return max_context == 0 ? config.context : std::min(config.context, max_context);
}

}  // namespace

Model::Model(Network network, std::unique_ptr<Backend> backend, int64_t max_context)
    : network_(std::move(network)),
      backend_(std::move(backend)),
      rope_(BuildRope(network_.config.rope, Positions(network_.config, max_context))),
      head_(backend_->Upload(network_.head)),
      final_norm_(NormWeights(network_.final_norm)) {
  for (const LayerWeights& weights : network_.layers) {
    layers_.push_back(UploadLayer(*backend_, weights));
    // What the backend has reordered need not stay in memory twice.
    if (network_.store) network_.store->DropPages();
  }
}

float* Model::Forward(std::span<const Sequence> sequences) {
  ids_.clear();
  slices_.clear();
  for (const Sequence& sequence : sequences) {
    const int64_t count = static_cast<int64_t>(sequence.ids.size());
    const int64_t position = sequence.cache->tokens();
    NIBBLE_CHECK(position + count <= context(), "{} + {} tokens", position, count);
    slices_.push_back(
        {.first_row = static_cast<int64_t>(ids_.size()), .tokens = count, .position = position});
    ids_.insert(ids_.end(), sequence.ids.begin(), sequence.ids.end());
    sequence.cache->Reserve(count);
  }
  x_.Grow(static_cast<int64_t>(ids_.size()) * config().hidden_size);
  backend_->Embed(network_.embedding, ids_, x_.data());
  const Decoder decoder = {*backend_, config(), network_.kv, rope_, scratch_};
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (size_t s = 0; s < sequences.size(); ++s) {
      slices_[s].pages = sequences[s].cache->pages(static_cast<int64_t>(i));
    }
    ForwardLayer(decoder, layers_[i], slices_, x_.data());
  }
  for (const Sequence& s : sequences) s.cache->Advance(static_cast<int64_t>(s.ids.size()));
  return x_.data();
}

void Model::Logits(const float* x, int64_t rows, float* logits) {
  const Activations acts =
      backend_->PrepareActs(Normed(config(), final_norm_, x), rows, network_.head.input);
  backend_->Gemm(acts, head_, logits, config().vocab_size, false);
}

std::unique_ptr<Model> LoadModel(const std::string& directory, const std::string& device,
                                 bool decoded, int64_t max_context) {
  return std::make_unique<Model>(OpenNetwork(directory), MakeBackend(device, decoded), max_context);
}

}  // namespace nibble
