// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/work_directory.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "io/atomic_file.h"
#include "models/checkpoint/manifest.h"
#include "transforms/orthogonal.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* kScaledKey = "scales";
constexpr const char* kErrorsKey = "relative_errors";
constexpr const char *kRotationName = "rotation", *kLearnedHead = "head";
constexpr const char* kShardSuffix = ".safetensors";

// Files of the work directory that a checkpoint does not have.
constexpr const char* kLearnedFiles[] = {kRotationFile, kLearningFile, kFactorsFile};

bool IsWorkFile(std::string_view name) {
  return std::ranges::count(kLearnedFiles, name) > 0 || IsCheckpointFile(name);
}

// Returns whether `other` is the directory itself or one above it.
bool LiesWithin(fs::path directory, const fs::path& other) {
  for (;; directory = directory.parent_path()) {
    std::error_code ignored;
    if (fs::equivalent(directory, other, ignored)) return true;
    if (directory == directory.root_path()) return false;
  }
}

// OUT.partial that a run began. One that was killed before it wrote its identity left nothing but a
// lock and temporaries.
void RequireWork(const std::string& path) {
  RefuseUnknownFiles(path, IsWorkFile);
  if (fs::exists(fs::path(path) / kProvenanceName)) return;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (!IsWritersOwn(name)) {
      Fail("{} is not the directory of an unfinished run; move it elsewhere", path);
    }
  }
}

// Throws unless OUT is a checkpoint, which --force may replace.
void RequireCheckpoint(const std::string& output) {
  if (!fs::is_directory(output)) Fail("{} exists and is not a directory", output);
  if (!fs::exists(fs::path(output) / kProvenanceName)) {
    Fail("{} exists and was not made by nibble quantize; --force does not remove it", output);
  }
  RefuseUnknownFiles(output, IsCheckpointFile);
}

bool IsFiniteF32(const Tensor& tensor) {
  if (tensor.dtype != DType::kF32) return false;
  return std::ranges::all_of(tensor.Copy<float>(), [](float v) { return std::isfinite(v); });
}

}  // namespace

std::string DifferingFields(const Json& ours, const Json& theirs) {
  const Json a = ours.flatten(), b = theirs.flatten();
  std::set<std::string> fields;
  for (const auto& [one, other] : {std::pair(&a, &b), std::pair(&b, &a)}) {
    for (const auto& [pointer, value] : one->items()) {
      if (!other->contains(pointer) || (*other)[pointer] != value) fields.insert(pointer.substr(1));
    }
  }
  return fmt::format("{}", fmt::join(fields, ", "));
}

std::string OutputPath(const std::string& output, const std::string& source) {
  const fs::path resolved = fs::weakly_canonical(fs::absolute(output));
  const fs::path out = resolved.has_filename() ? resolved : resolved.parent_path();
  if (out == out.root_path()) Fail("{}: cannot be replaced by a checkpoint", output);
  const fs::path model = fs::weakly_canonical(fs::absolute(source));
  for (const fs::path& path : {out, fs::path(PartialPath(out.string()))}) {
    if (LiesWithin(path, model) || LiesWithin(model, path)) {
      Fail("{}: is, contains or lies within the model {}; choose another -o", output, source);
    }
  }
  const fs::path plain = fs::path(output).lexically_normal();
  const bool as_given = plain.has_filename() && fs::absolute(plain) == out;
  return as_given ? plain.string() : out.string();
}

std::string PartialPath(const std::string& output) {
  return output + ".partial";
}

double FilesBytes(const std::string& directory) {
  double bytes = 0;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    bytes += static_cast<double>(entry.file_size(ignored));
  }
  return bytes;
}

WorkDirectory::WorkDirectory(const std::string& output, const Json& identity, bool resume,
                             bool force)
    : output_(output), path_(PartialPath(output)) {
  FinishPublishing(path_, output_, IsCheckpointFile);  // what a killed run with --force left
  if (fs::exists(fs::symlink_status(output_))) {
    if (!force) Fail("{} exists already; choose another -o or pass --force", output_);
    RequireCheckpoint(output_);
  }
  const bool exists = fs::exists(fs::symlink_status(path_));
  if (exists) {
    if (fs::is_symlink(path_) || !fs::is_directory(path_)) {
      Fail("{} is not the directory of an unfinished run; move it elsewhere", path_);
    }
    RequireWork(path_);
  }
  CreateDirectories(path_);
  const std::string identity_file = File(kProvenanceName);
  if (fs::exists(identity_file)) {
    if (!resume) {
      Fail("{} holds an unfinished run; pass --resume to continue it, or remove it", path_);
    }
    const Json begun = ReadJsonFile(identity_file);
    if (!begun.is_object()) FailDamaged(kProvenanceName);
    const std::string differing = DifferingFields(identity, begun);
    if (!differing.empty()) {
      Fail("{} was started with other settings ({}); repeat them or remove it", path_, differing);
    }
    lock_ = std::make_unique<DirectoryLock>(path_);
    return;
  }
  lock_ = std::make_unique<DirectoryLock>(path_);
  WriteFileAtomic(identity_file, identity.dump(2) + "\n");
}

WorkDirectory::~WorkDirectory() {
  if (!lock_) return;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    if (entry.path().extension() == kShardSuffix) return;
  }
  RemoveKnownFiles(path_, IsWorkFile);
}

void WorkDirectory::FailDamaged(const std::string& name) const {
  Fail("{}: is not what was saved there; remove {} and begin again", File(name), path_);
}

std::string WorkDirectory::File(const std::string& name) const {
  return (fs::path(path_) / name).string();
}

void WorkDirectory::SaveLayer(int64_t index, const SavedLayer& saved, const Plan& plan) const {
  const LayerWeights weights = Planned(saved.layer, plan, index);
  Json error_json = Json::object();
  for (const auto& [role, linear] : weights.linears) {
    ValidateLinear(linear, LinearName(index, role));
    const auto error = saved.errors.find(role);
    if (error != saved.errors.end()) error_json[RoleName(role)] = error->second;
  }
  std::map<std::string, std::string> metadata = {{kPlanDigestKey, PlanDigest(plan)},
                                                 {kErrorsKey, error_json.dump()}};
  if (saved.scaled) metadata[kScaledKey] = "learned";
  WriteShard(File(LayerShardName(index)), LayerTensors(index, weights), metadata);
}

std::optional<WorkDirectory::SavedLayer> WorkDirectory::FindLayer(int64_t index, const Plan& plan,
                                                                  const ModelConfig& config) const {
  const std::string path = File(LayerShardName(index));
  auto opened = OpenWholeShard(path);
  if (!opened) return std::nullopt;
  const auto file = std::make_shared<const SafetensorsFile>(std::move(*opened));
  std::map<std::string, Tensor> tensors = file->tensors();
  for (auto& [name, tensor] : tensors) tensor.owner = file;
  std::set<std::string> used;
  const auto find = [&](const std::string& name) -> const Tensor* {
    const auto it = tensors.find(name);
    if (it == tensors.end()) return nullptr;
    used.insert(name);
    return &it->second;
  };
  SavedLayer saved = {.layer = ReadPackedLayer(find, plan, config, index, path)};
  if (used.size() < tensors.size()) FailDamaged(LayerShardName(index));
  saved.scaled = file->metadata().contains(kScaledKey);
  const auto text = file->metadata().find(kErrorsKey);
  if (text == file->metadata().end()) FailDamaged(LayerShardName(index));
  const Json errors = ParseJson(text->second, path);
  if (!errors.is_object()) FailDamaged(LayerShardName(index));
  for (const auto& [role, linear] : saved.layer.linears) {
    if (const auto e = JsonFind<double>(errors, RoleName(role), path)) saved.errors[role] = *e;
  }
  return saved;
}

void WorkDirectory::SaveRotation(const Matrix<double>& rotation) const {
  const Tensor view = {DType::kF64,
                       {rotation.rows, rotation.cols},
                       reinterpret_cast<const std::byte*>(rotation.data.data())};
  WriteShard(File(kRotationFile), {{kRotationName, view}}, {});
}

std::optional<Matrix<double>> WorkDirectory::FindRotation(int64_t hidden) const {
  const auto file = OpenWholeShard(File(kRotationFile));
  if (!file) return std::nullopt;
  const auto found = file->tensors().find(kRotationName);
  const bool fits = found != file->tensors().end() && found->second.dtype == DType::kF64 &&
                    found->second.shape == std::vector<int64_t>{hidden, hidden};
  if (!fits) FailDamaged(kRotationFile);
  Matrix<double> rotation(hidden, hidden);
  rotation.data = found->second.Copy<double>();
  if (!IsOrthogonal(rotation)) FailDamaged(kRotationFile);
  return rotation;
}

void WorkDirectory::SaveLearning(LearningState state) const {
  std::vector<NamedTensor> tensors;
  for (auto& [name, values] : state) {
    const auto count = static_cast<int64_t>(values.size());
    tensors.push_back({name, Tensor::Of(DType::kF32, {count}, std::move(values))});
  }
  WriteShard(File(kLearningFile), tensors, {});
}

LearningState WorkDirectory::FindLearning() const {
  LearningState state;
  if (const auto file = OpenWholeShard(File(kLearningFile))) {
    for (const auto& [name, tensor] : file->tensors()) {
      if (!IsFiniteF32(tensor)) FailDamaged(kLearningFile);
      state[name] = tensor.Copy<float>();
    }
  }
  return state;
}

void WorkDirectory::SaveLearned(const Learned& learned) const {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < learned.factors.size(); ++i) {
    const auto add = [&](const ByRole<std::vector<float>>& vectors, const char* suffix) {
      for (const auto& [role, values] : vectors) {
        tensors.push_back({LinearName(static_cast<int64_t>(i), role) + suffix,
                           Tensor::Of(DType::kF32, {static_cast<int64_t>(values.size())}, values)});
      }
    };
    add(learned.factors[i].rows, kOfRows);
    add(learned.factors[i].inputs, kOfInputs);
  }
  const Matrix<float>& head = learned.head;
  if (!head.data.empty()) tensors.push_back({kLearnedHead, Borrow(head)});
  WriteShard(File(kFactorsFile), tensors, {});
}

std::optional<Learned> WorkDirectory::FindLearned(const ModelConfig& config) const {
  const auto file = OpenWholeShard(File(kFactorsFile));
  if (!file) return std::nullopt;
  for (const auto& [name, tensor] : file->tensors()) {
    if (!IsFiniteF32(tensor)) FailDamaged(kFactorsFile);
  }
  Learned learned = {.factors = ScaleFactors(static_cast<size_t>(config.layers))};
  if (const auto head = file->tensors().find(kLearnedHead); head != file->tensors().end()) {
    const std::vector<int64_t> shape = {config.vocab_size, config.hidden_size};
    if (head->second.shape != shape) FailDamaged(kFactorsFile);
    learned.head = ToF32(head->second);
  }
  for (int64_t i = 0; i < config.layers; ++i) {
    LayerScales& layer = learned.factors[static_cast<size_t>(i)];
    for (const Role role : kLayerRoles) {
      const auto find = [&](const char* suffix, ByRole<std::vector<float>>& vectors) {
        const auto it = file->tensors().find(LinearName(i, role) + suffix);
        if (it != file->tensors().end()) vectors[role] = it->second.Copy<float>();
      };
      find(kOfRows, layer.rows);
      find(kOfInputs, layer.inputs);
    }
  }
  return learned;
}

void WorkDirectory::Publish(bool force) {
  for (const char* name : kLearnedFiles) RemoveFile(File(name));
  WriteManifest(path_, DigestFiles(path_));
  PublishDirectory(path_, output_, force, IsCheckpointFile);
  lock_.reset();
}

}  // namespace nibble
