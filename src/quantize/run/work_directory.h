// SPDX-License-Identifier: Apache-2.0
// OUT.partial: one shard per finished layer and per thing learned, each with its digest,
// provenance.json (everything that decides the result) and a lock. A killed run loses at most the
// layer it was working on. Files that a run cannot have made are never touched.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "io/publish.h"
#include "quantize/learn/scale_factors.h"
#include "quantize/round/stored_layer.h"

namespace nibble {

// Names the fields that decide a result and differ from when the work was begun: "settings/seed,
// plan"; empty: none do.
std::string DifferingFields(const Json& ours, const Json& theirs);

// OUT as it was given, links followed where they matter. Refuses one that is, contains or lies
// within `source`, by whatever names: replacing OUT would take the source away.
std::string OutputPath(const std::string& output, const std::string& source);
// The directory of work that is to become `output`.
std::string PartialPath(const std::string& output);
// Sum over the files of a directory; 0 if there is none.
double FilesBytes(const std::string& directory);

inline constexpr const char* kRotationFile = "rotation.safetensors";
inline constexpr const char* kLearningFile = "learning.safetensors";
inline constexpr const char* kFactorsFile = "factors.safetensors";

class WorkDirectory {
 public:
  // Creates OUT.partial, or continues it when `resume`; refuses an existing OUT without `force` or
  // with files that no checkpoint has, an existing OUT.partial without `resume` or with files that
  // no run makes, and another identity (listing the fields that differ).
  WorkDirectory(const std::string& output, const Json& identity, bool resume, bool force);
  // Finished files stay for --resume; a run that failed before its first one leaves nothing.
  ~WorkDirectory();

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const;
  // Throws for a file that is whole and yet not what a run with this identity saves.
  [[noreturn]] void FailDamaged(const std::string& name) const;

  struct SavedLayer {
    LayerWeights layer;
    std::map<Role, double> errors;
    bool scaled = false;  // by learned factors
  };
  // Throws, naming the linear, if the loader would refuse it.
  void SaveLayer(int64_t index, const SavedLayer& layer, const Plan& plan) const;
  // A layer saved by this or an earlier run; nothing if it is absent or no longer what was saved
  // (then it is redone).
  std::optional<SavedLayer> FindLayer(int64_t index, const Plan& plan,
                                      const ModelConfig& config) const;

  // The learned rotation of the residual stream [hidden, hidden]; kept until Publish.
  void SaveRotation(const Matrix<double>& rotation) const;
  std::optional<Matrix<double>> FindRotation(int64_t hidden) const;

  // Saves the state of scales that are being learned; kept until Publish.
  void SaveLearning(LearningState state) const;
  LearningState FindLearning() const;  // empty if there is none

  // Saves the learned factors of every layer and the learned head; kept until Publish.
  void SaveLearned(const Learned& learned) const;
  std::optional<Learned> FindLearned(const ModelConfig& config) const;

  // Renames OUT.partial to OUT, whole.
  void Publish(bool force);

 private:
  std::string output_, path_;
  std::unique_ptr<DirectoryLock> lock_;
};

}  // namespace nibble
