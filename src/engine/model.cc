// SPDX-License-Identifier: Apache-2.0
#include "engine/model.h"

#include <algorithm>
#include <cmath>

#include "base/thread_pool.h"
#include "models/import/open_network.h"

namespace nibble {
namespace {

constexpr int64_t kFirstPositions = 8192;  // of the table of angles: some megabytes

}  // namespace

Model::Model(Network network, std::unique_ptr<Backend> backend)
    : network_(std::move(network)),
      kv_groups_(network_.config, network_.caches),
      backend_(std::move(backend)),
      embedding_(backend_->Share(network_.embedding, embedding_memory_)),
      layer_inputs_(*backend_, network_),
      ropes_(*backend_, network_.config.ropes, std::min(network_.config.context, kFirstPositions)),
      head_(backend_->Upload(network_.head)),
      final_norm_(UploadNorm(*backend_, network_.final_norm)),
      scratch_(*backend_),
      x_(backend_->allocator()),
      places_(backend_->allocator()),
      picked_(backend_->allocator()),
      turned_(backend_->allocator()),
      logits_(backend_->allocator()),
      ops_(std::in_place) {
  if (network_.head_rotation.weights.rows > 0)
    head_rotation_ = backend_->Upload(network_.head_rotation);
  if (network_.positions.data != nullptr) {
    const auto [rows, cols] = std::pair(config().context, config().hidden_size);
    positions_ = backend_->Share({.rows = rows, .cols = cols, .values = network_.positions},
                                 positions_memory_);
  }
  for (LayerWeights& weights : network_.layers) {
    const auto index = static_cast<int64_t>(layers_.size());
    const KvSpec& cache = network_.caches[layers_.size()];
    layers_.push_back(UploadLayer(*backend_, config(), index, weights, cache));
    // Weights that the backend has reordered need not stay in memory twice.
    weights = {};
    if (network_.store) network_.store->DropPages();
  }
}

void Model::UseCaches(const std::vector<KvSpec>& caches) {
  network_.caches = caches;
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i].cache = caches[i];
  kv_groups_ = KvGroups(config(), caches);
  ops_.emplace();
}

void Model::ReserveRope(int64_t positions) {
  if (positions <= rope_positions()) return;
  positions = std::min(context(), std::max(positions, 2 * rope_positions()));
  ropes_ = BackendRopes(*backend_, config().ropes, positions);
}

void Model::AddPositions() {
  std::vector<int32_t> places, rows;
  for (const SequenceSlice& slice : slices_) {
    for (int64_t i = 0; i < slice.tokens; ++i) {
      places.push_back(static_cast<int32_t>(slice.position + i));
      rows.push_back(static_cast<int32_t>(slice.first_row + i));
    }
  }
  const int64_t hidden = config().hidden_size;
  float* const added = places_.Grow(static_cast<int64_t>(rows.size()) * hidden);
  backend_->Embed(positions_, places, 1, added);
  backend_->AddRows(added, rows, std::vector<float>(rows.size(), 1), hidden, x_.data());
}

float* Model::Forward(std::span<const Sequence> sequences) {
  ids_.clear();
  slices_.clear();
  for (const Sequence& sequence : sequences) {
    const int64_t count = static_cast<int64_t>(sequence.ids.size());
    const int64_t position = sequence.cache->tokens();
    NIBBLE_CHECK(position + count <= context(), "{} + {} tokens", position, count);
    ReserveRope(position + count);
    sequence.cache->Reserve(count);
    slices_.push_back(sequence.cache->Slice(static_cast<int64_t>(ids_.size()), count));
    ids_.insert(ids_.end(), sequence.ids.begin(), sequence.ids.end());
  }
  x_.Grow(static_cast<int64_t>(ids_.size()) * config().hidden_size);
  backend_->Embed(embedding_, ids_, static_cast<float>(config().embedding_scale), x_.data());
  if (positions_.rows > 0) AddPositions();
  Decoder decoder = {*backend_, config(), ropes_, scratch_};
  const Intermediate* const inputs = layer_inputs_.Make(ids_, x_.data());
  const auto forward = [&] {
    for (size_t i = 0; i < layers_.size(); ++i) {
      const auto [group, offset] = kv_groups_.place(static_cast<int64_t>(i));
      const auto [recent_group, recent_offset] = kv_groups_.recent_place(static_cast<int64_t>(i));
      for (SequenceSlice& slice : slices_) {
        slice.table = group, slice.offset = offset;
        slice.recent_table = recent_group, slice.recent_offset = recent_offset;
      }
      decoder.layer_input =
          layer_inputs_.Part(inputs, static_cast<int64_t>(i), static_cast<int64_t>(ids_.size()));
      ForwardLayer(decoder, layers_[i], slices_, x_.data());
    }
  };
  const auto waits = [](const Layer& l) { return l.ids.contains(Role::kRouter) && !l.experts; };
  if (std::ranges::any_of(layers_, waits)) {
    forward();  // which ops run depends on the routers
  } else {
    backend_->Run(*ops_, slices_, forward);
  }
  for (const Sequence& s : sequences) s.cache->Advance(static_cast<int64_t>(s.ids.size()));
  return x_.data();
}

ActsSource Model::HeadSource(const float* x, int64_t rows) {
  const InputSpec& back = network_.head_unrotation;
  if (!back.transform.identity()) {
    const float* values = backend_->PrepareActs({.x = x}, rows, back).values;
    backend_->Copy(values, rows * back.width, turned_.Grow(rows * back.width));
    x = turned_.data();
  }
  ActsSource source = Normed(config(), final_norm_, x);
  if (head_rotation_) {
    const InputSpec& input = network_.head_rotation.input;
    float* const turned = turned_.Grow(rows * input.width);
    backend_->Gemm(backend_->PrepareActs(source, rows, input), *head_rotation_, turned, input.width,
                   false);
    source = {.x = turned};
  }
  return source;
}

const float* Model::UncappedLogits(const float* x, int64_t rows) {
  const Activations acts = backend_->PrepareActs(HeadSource(x, rows), rows, network_.head.input);
  backend_->Gemm(acts, head_, logits_.Grow(rows * config().vocab_size), config().vocab_size, false);
  return logits_.data();
}

const float* Model::Logits(const float* x, int64_t rows) {
  const int64_t count = rows * config().vocab_size;
  const float* const logits = backend_->Read(UncappedLogits(x, rows), count);
  const auto cap = static_cast<float>(config().logits_softcap);
  if (cap == 0) return logits;
  capped_.resize(static_cast<size_t>(count));
  ParallelFor(static_cast<size_t>(rows), [&](size_t row) {
    const size_t first = row * static_cast<size_t>(config().vocab_size);
    for (size_t i = first; i < first + static_cast<size_t>(config().vocab_size); ++i) {
      capped_[i] = cap * std::tanh(logits[i] / cap);
    }
  });
  return capped_.data();
}

const float* Model::Pick(const float* x, int64_t tokens, std::span<const int32_t> rows) {
  const int64_t hidden = config().hidden_size;
  const PackedWeights table = {
      .rows = tokens,
      .cols = hidden,
      .values = {DType::kF32, {tokens, hidden}, reinterpret_cast<const std::byte*>(x)}};
  float* picked = picked_.Grow(static_cast<int64_t>(rows.size()) * hidden);
  backend_->Embed(table, rows, 1, picked);
  return picked;
}

const float* Model::Logits(const float* x, int64_t tokens, std::span<const int32_t> rows) {
  return Logits(Pick(x, tokens, rows), static_cast<int64_t>(rows.size()));
}

const float* Model::States(const float* x, int64_t tokens, std::span<const int32_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const InputSpec as_it_is = {.width = config().hidden_size};
  const ActsSource source = HeadSource(Pick(x, tokens, rows), count);
  const float* states = backend_->Decode(backend_->PrepareActs(source, count, as_it_is));
  return backend_->Read(states, count * as_it_is.width);
}

std::vector<Likely> Model::FindLikely(const float* x, int64_t tokens, std::span<const int32_t> rows,
                                      std::span<const LikelyQuery> queries) {
  const float* logits = UncappedLogits(Pick(x, tokens, rows), static_cast<int64_t>(rows.size()));
  return backend_->FindLikelyRows(logits, config().vocab_size,
                                  static_cast<float>(config().logits_softcap), queries);
}

void Model::FailNotFinite(const std::string& where) const {
  const std::string& directory = network_.directory;
  Fail("{}: {}: the logits are NaN, infinite or far too large; {}", directory, where,
       network_.packed ? fmt::format("`nibble inspect {} --verify` looks for damage", directory)
                       : "the weights are damaged or too large for fp32");
}

std::unique_ptr<Model> LoadModel(const std::string& directory, const std::string& device,
                                 bool decoded) {
  return std::make_unique<Model>(OpenNetwork(directory), MakeBackend(device, decoded));
}

}  // namespace nibble
