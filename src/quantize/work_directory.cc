// SPDX-License-Identifier: Apache-2.0
#include "quantize/work_directory.h"

#include <filesystem>

#include "base/half.h"
#include "io/sha256.h"
#include "models/manifest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIdentity = "provenance.json";
constexpr const char* kIdentityDigestKey = "provenance_sha256";
constexpr const char* kScaledKey = "scales";
constexpr const char* kFactorsFile = "factors.safetensors";

QuantizedWeights OwnCodes(const PackedWeights& w) {
  QuantizedWeights codes = {.format = w.format, .rows = w.rows, .cols = w.cols};
  codes.codes = w.codes.Copy<uint8_t>();
  if (w.format.sparse) codes.places = w.places.Copy<uint8_t>();
  codes.scales = ToF32(w.scales).data;
  if (!w.format.row_scales()) codes.scales_f16 = w.scales.Copy<uint16_t>();
  if (w.format.second_level) codes.group_scales = w.group_scales.Copy<uint8_t>();
  if (!w.format.symmetric) codes.zeros = w.zeros.Copy<int8_t>();
  return codes;
}

// Copies the planes of a mapped linear, so that a resumed layer and a fresh one look the same.
StoredLinear Own(const PackedLinear& linear) {
  StoredLinear stored;
  const PackedWeights &w = linear.weights, &tail = linear.tail;
  if (w.format.quantized()) {
    stored.codes = OwnCodes(w);
  } else {
    stored.values = ToF32(w.values);
  }
  if (tail.format.quantized()) {
    stored.tail = OwnCodes(tail);
  } else if (tail.cols > 0) {
    stored.tail = {.format = tail.format, .rows = tail.rows, .cols = tail.cols};
    for (const float value : ToF32(tail.values).data) {
      stored.tail.values_f16.push_back(F16FromF32(value));
    }
  }
  stored.gather = linear.input.gather;
  if (linear.bias.data != nullptr) stored.bias = ToF32(linear.bias).data;
  return stored;
}

}  // namespace

std::string DifferingFields(const Json& ours, const Json& theirs) {
  const Json a = ours.flatten(), b = theirs.flatten();
  std::string fields;
  for (const auto& [pointer, value] : a.items()) {
    if (b.contains(pointer) && b[pointer] == value) continue;
    fields += (fields.empty() ? "" : ", ") + pointer.substr(1);
  }
  return fields;
}

WorkDirectory::WorkDirectory(const std::string& output, const Json& identity, bool resume,
                             bool force)
    : output_(fs::path(output).lexically_normal().string()) {
  const std::string text = identity.dump(2) + "\n";
  identity_digest_ = Sha256(std::as_bytes(std::span(text)));
  while (output_.size() > 1 && output_.ends_with('/')) output_.pop_back();
  path_ = output_ + ".partial";
  if (fs::exists(output_)) {
    if (!force) Fail("{} exists already; choose another -o or pass --force", output_);
    if (!fs::exists(fs::path(output_) / "config.json")) {
      Fail("{} exists and is not a checkpoint; --force does not remove it", output_);
    }
  }
  const std::string identity_file = File(kIdentity);
  if (fs::exists(path_) && fs::exists(identity_file)) {
    if (!resume) {
      Fail("{} holds an unfinished run; pass --resume to continue it, or remove it", path_);
    }
    const std::string differing = DifferingFields(identity, ReadJsonFile(identity_file));
    if (!differing.empty()) {
      Fail("{} was started with other settings ({}); repeat them or remove it", path_, differing);
    }
    lock_ = std::make_unique<DirectoryLock>(path_);
    return;
  }
  std::error_code ec;
  fs::create_directories(path_, ec);
  if (ec) Fail("{}: cannot be created ({})", path_, ec.message());
  lock_ = std::make_unique<DirectoryLock>(path_);
  WriteFileAtomic(identity_file, text);
}

WorkDirectory::~WorkDirectory() {
  if (!lock_) return;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(path_, ignored)) {
    if (entry.path().extension() == ".safetensors") return;
  }
  fs::remove_all(path_, ignored);
}

std::string WorkDirectory::File(const std::string& name) const {
  return (fs::path(path_) / name).string();
}

void WorkDirectory::SaveLayer(int64_t index, const SavedLayer& saved, const Plan& plan) const {
  const LayerWeights weights = saved.layer.View(plan, index, true);
  Json error_json = Json::object();
  for (const auto& [role, error] : saved.errors) error_json[RoleName(role)] = error;
  std::map<std::string, std::string> metadata = {{kPlanDigestKey, PlanDigest(plan)},
                                                 {kIdentityDigestKey, identity_digest_},
                                                 {"relative_errors", error_json.dump()}};
  if (saved.scaled) metadata[kScaledKey] = "learned";
  WriteShard(File(LayerShardName(index)), LayerTensors(index, weights), metadata);
}

std::optional<WorkDirectory::SavedLayer> WorkDirectory::FindLayer(int64_t index, const Plan& plan,
                                                                  const ModelConfig& config) const {
  const std::string path = File(LayerShardName(index));
  if (!fs::exists(path)) return std::nullopt;
  try {
    const SafetensorsFile file(path);
    if (file.metadata().at(kIdentityDigestKey) != identity_digest_) return std::nullopt;
    const LayerWeights weights = ReadPackedLayer(
        [&](const std::string& name) -> const TensorView* {
          const auto it = file.tensors().find(name);
          return it == file.tensors().end() ? nullptr : &it->second;
        },
        plan, config, index, path);
    SavedLayer saved;
    for (const auto& [role, linear] : weights.linears) saved.layer[role] = Own(linear);
    if (weights.attention_norm.data != nullptr) {
      saved.layer.attention_norm = ToF32(weights.attention_norm).data;
      saved.layer.mlp_norm = ToF32(weights.mlp_norm).data;
    }
    saved.scaled = file.metadata().contains(kScaledKey);
    const Json errors = ParseJson(file.metadata().at("relative_errors"), path);
    for (const auto& [role, linear] : weights.linears) {
      if (const auto e = JsonFind<double>(errors, RoleName(role), path)) {
        saved.errors[role] = *e;
      }
    }
    return saved;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

void WorkDirectory::SaveScaleFactors(const ScaleFactors& factors) const {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < factors.size(); ++i) {
    for (const auto& [role, rows] : factors[i]) {
      tensors.push_back({LinearName(static_cast<int64_t>(i), role),
                         FloatView(rows, {static_cast<int64_t>(rows.size())})});
    }
  }
  WriteShard(File(kFactorsFile), tensors, {{kIdentityDigestKey, identity_digest_}});
}

std::optional<ScaleFactors> WorkDirectory::FindScaleFactors(int64_t layers) const {
  if (!fs::exists(File(kFactorsFile))) return std::nullopt;
  const SafetensorsFile file(File(kFactorsFile));
  ScaleFactors factors(static_cast<size_t>(layers));
  for (int64_t i = 0; i < layers; ++i) {
    for (const Role role : kLayerRoles) {
      const auto it = file.tensors().find(LinearName(i, role));
      if (it == file.tensors().end()) continue;
      factors[static_cast<size_t>(i)][role] = ToF32(it->second).data;
    }
  }
  return factors;
}

void WorkDirectory::Publish(bool force) {
  fs::remove(File(kFactorsFile));
  WriteManifest(path_, DigestFiles(path_));
  PublishDirectory(path_, output_, force);
  lock_.reset();
}

}  // namespace nibble
