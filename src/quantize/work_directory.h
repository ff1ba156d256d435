// SPDX-License-Identifier: Apache-2.0
// OUT.partial: one shard per finished layer, provenance.json (everything that decides the result;
// its digest is in every shard) and a lock. A killed run loses at most the layer it was working on.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "io/atomic_file.h"
#include "quantize/learn_scales.h"
#include "quantize/stored_layer.h"

namespace nibble {

// What decides a result, now and when it was begun: "settings/seed, plan"; empty = the same.
std::string DifferingFields(const Json& ours, const Json& theirs);

class WorkDirectory {
 public:
  // Creates OUT.partial, or continues it when `resume`; refuses an existing OUT without `force`, an
  // existing OUT.partial without `resume`, and another identity (listing the fields that differ).
  WorkDirectory(const std::string& output, const Json& identity, bool resume, bool force);
  // Unpublished layers stay for --resume; a run that failed before its first one leaves nothing.
  ~WorkDirectory();

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const;

  struct SavedLayer {
    StoredLayer layer;
    std::map<Role, double> errors;
    bool scaled = false;  // by learned factors
  };
  void SaveLayer(int64_t index, const SavedLayer& layer, const Plan& plan) const;
  // A layer saved by an earlier run; nothing if it is absent or not readable (then it is redone).
  std::optional<SavedLayer> FindLayer(int64_t index, const Plan& plan,
                                      const ModelConfig& config) const;

  // Factors that are to scale every layer, until Publish.
  void SaveScaleFactors(const ScaleFactors& factors) const;
  std::optional<ScaleFactors> FindScaleFactors(int64_t layers) const;

  // Renames OUT.partial to OUT, whole.
  void Publish(bool force);

 private:
  std::string output_, path_, identity_digest_;
  std::unique_ptr<DirectoryLock> lock_;
};

}  // namespace nibble
