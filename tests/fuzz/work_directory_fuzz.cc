// SPDX-License-Identifier: Apache-2.0
// A changed file of an unfinished run: the first byte chooses it, the first line is a merge patch
// of its tensors and metadata, the rest edits the tensors' bytes. The digest is computed again, so
// that the file counts as whole. A run that goes on finds finite values that fit, or else names the
// file.
#include <cmath>

#include "fuzz_input.h"
#include "models/families/family.h"
#include "packed_model.h"
#include "quantize/run/work_directory.h"

namespace nibble {
namespace {

struct Run {
  Run() {
    const Json json = SmallModel();
    config = ParseConfig(json, "model");
    plan = PlanFromJson(json["quantization_config"], config, "model");
    const Json all = PlaneList(plan, config).json();
    for (const auto& [name, plane] : all.items()) {
      if (name.starts_with("layers.0.")) layer[name] = plane;
    }
    layer["__metadata__"] = {{kPlanDigestKey, PlanDigest(plan)}, {"relative_errors", "{}"}};
    work = std::make_unique<WorkDirectory>(directory.path() + "/out", Json::object(), false, false);
    Save(LayerShardName(0), layer, "");
    sound = work->FindLayer(0, plan, config)->layer;
  }
  // Saves a whole file of these tensors.
  void Save(const std::string& name, const Json& tensors, std::string_view edits) const {
    const SafetensorsFile file(directory.Write("changed", ShardOf(tensors, edits)));
    std::vector<NamedTensor> named;
    for (const auto& [tensor, view] : file.tensors()) named.push_back({tensor, view});
    WriteShard(work->File(name), named, file.metadata());
  }

  ScratchDirectory directory;
  ModelConfig config;
  Plan plan;
  Json layer = Json::object();
  std::unique_ptr<WorkDirectory> work;
  LayerWeights sound;
};

void CheckFinite(std::span<const float> values) {
  for (const float value : values) NIBBLE_CHECK(std::isfinite(value), "{}", value);
}

void UseRotation(const Run& run) {
  const int64_t n = run.config.hidden_size;
  if (const auto q = run.work->FindRotation(n)) NIBBLE_CHECK(q->rows == n && q->cols == n);
}

void UseLearning(const Run& run) {
  for (const auto& [name, values] : run.work->FindLearning()) CheckFinite(values);
}

void UseFactors(const Run& run) {
  const auto learned = run.work->FindLearned(run.config);
  if (!learned) return;
  const Matrix<float>& head = learned->head;
  NIBBLE_CHECK(head.data.empty() ||
               (head.rows == run.config.vocab_size && head.cols == run.config.hidden_size));
  CheckFinite(head.data);
  for (const LayerScales& factors : learned->factors) {
    if (!Fits(factors, run.sound)) continue;
    LayerWeights scaled = run.sound;
    ApplyScales(factors, scaled);
  }
}

void UseLayer(const Run& run) {
  const auto saved = run.work->FindLayer(0, run.plan, run.config);
  if (!saved) return;
  for (const auto& [role, linear] : saved->layer.linears) {
    NIBBLE_CHECK(linear.weights.rows == run.config.outputs(0, role));
    CheckFinite(Decode(linear.weights).data);
  }
  run.work->SaveLayer(0, *saved, run.plan);
}

struct File {
  std::string name;
  Json tensors;
  void (*use)(const Run& run);
};

// The files that a run saves; with factors of only one linear, so that inputs stay small.
std::vector<File> FilesOf(const Run& run) {
  const auto floats = [](int64_t count) { return Json{{"dtype", "F32"}, {"shape", {count}}}; };
  const int64_t n = run.config.hidden_size;
  const std::string q = LinearName(0, Role::kQ);
  return {
      {kRotationFile, {{"rotation", {{"dtype", "F64"}, {"shape", {n, n}}}}}, UseRotation},
      {kLearningFile, {{"progress", floats(3)}}, UseLearning},
      {kFactorsFile,
       {{q + kOfRows, floats(run.config.outputs(0, Role::kQ))}, {q + kOfInputs, floats(n)}},
       UseFactors},
      {LayerShardName(0), run.layer, UseLayer},
  };
}

void Use(std::string_view input) {
  static const Run run;
  static const std::vector<File> files = FilesOf(run);
  if (input.empty()) return;
  const File& file = files[static_cast<unsigned char>(input[0]) % files.size()];
  input.remove_prefix(1);
  Json tensors = file.tensors;
  tensors.merge_patch(ParseJson(TakeLine(&input), "tensors"));
  if (!tensors.is_object()) return;
  run.Save(file.name, tensors, input);
  try {
    file.use(run);
  } catch (const Error& error) {
    NIBBLE_CHECK(std::string(error.what()).find(file.name) != std::string::npos, "{}",
                 error.what());
    throw;
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
