// SPDX-License-Identifier: Apache-2.0
// A network taken over by a backend, and its forward pass: fp32, quantized and decoded models
// differ in what the backend was given, not in code.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/kv_cache.h"
#include "engine/layer.h"
#include "engine/layer_inputs.h"

namespace nibble {

class Model {
 public:
  Model(Network network, std::unique_ptr<Backend> backend);

  const ModelConfig& config() const { return network_.config; }
  const Network& network() const { return network_; }  // without its layers, which the backend has
  int64_t context() const { return config().context; }
  Backend& backend() { return *backend_; }
  const std::vector<Layer>& layers() const { return layers_; }
  LinearId head() const { return head_; }

  // The groups of layers that share a page of the cache, and the bytes of a page.
  const KvGroups& kv_groups() const { return kv_groups_; }
  KvCache MakeCache() const { return {kv_groups_, *backend_}; }
  // Has layers store their keys and values in other formats; earlier caches are of no use then.
  // `caches` has one entry for each layer, with the heads that the layer has.
  void UseCaches(const std::vector<KvSpec>& caches);

  // Runs new tokens of several sequences through all layers and appends them to their caches.
  // Returns the residual stream before the final norm, [all tokens, hidden], sequence after
  // sequence; valid until the next call.
  struct Sequence {
    std::span<const int32_t> ids;
    KvCache* cache;
  };
  float* Forward(std::span<const Sequence> sequences);

  // head(norm(x[row])) of `rows` rows, [rows, vocab] in host memory; valid until the next
  // call.
  const float* Logits(const float* x, int64_t rows);
  // The logits of some of the `tokens` rows of x, in the order of `rows`.
  const float* Logits(const float* x, int64_t tokens, std::span<const int32_t> rows);
  // What drawing needs of the logits of those rows, one query for each: all of them need not leave
  // a GPU.
  std::vector<Likely> FindLikely(const float* x, int64_t tokens, std::span<const int32_t> rows,
                                 std::span<const LikelyQuery> queries);
  // The final norm of those rows, [rows, hidden] in host memory; valid until the next
  // call. The norm has its weights, unless they are folded into a head that has a table of its own.
  const float* States(const float* x, int64_t tokens, std::span<const int32_t> rows);
  // Throws, for callers that find logits unusable; `where` is the token, window or request.
  [[noreturn]] void FailNotFinite(const std::string& where) const;

  // Positions whose angles are in memory. The table doubles as sequences grow: a context of a
  // million tokens takes gigabytes only where it is used.
  int64_t rope_positions() const { return ropes_.positions(); }

 private:
  void ReserveRope(int64_t positions);
  void AddPositions();  // to x_
  const float* Pick(const float* x, int64_t tokens, std::span<const int32_t> rows);
  ActsSource HeadSource(const float* x, int64_t rows);        // valid until the next call
  const float* UncappedLogits(const float* x, int64_t rows);  // in the backend's memory

  Network network_;
  KvGroups kv_groups_;
  std::unique_ptr<Backend> backend_;
  AlignedBytes embedding_memory_;
  PackedWeights embedding_;
  AlignedBytes positions_memory_;
  PackedWeights positions_;  // without rows: there are none
  LayerInputs layer_inputs_;
  BackendRopes ropes_;
  std::vector<Layer> layers_;
  LinearId head_;
  std::optional<LinearId> head_rotation_;
  Buffer<float> final_norm_;
  Scratch scratch_;
  Buffer<float> x_, places_, picked_, turned_, logits_;
  std::vector<float> capped_;  // logits
  std::vector<int32_t> ids_;
  std::vector<SequenceSlice> slices_;
  std::optional<OpsId> ops_;
};

// Opens a model directory on a device ("cpu"); decoded: see MakeBackend.
std::unique_ptr<Model> LoadModel(const std::string& directory, const std::string& device,
                                 bool decoded);

}  // namespace nibble
