// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/job.h"

#include <cblas.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "compute/backend.h"
#include "engine/window_bos.h"
#include "io/sha256.h"
#include "models/import/open_network.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/plan/make_plan.h"
#include "quantize/recipes/recipe_fields.h"
#include "quantize/run/estimate.h"
#include "quantize/run/work_directory.h"
#include "quantize/walk/sample_text.h"
#include "quantize/walk/windows.h"
#include "source/model_source.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

bool ScalesFit(const Job& job) {
  const QuantizeOptions& o = job.options;
  const ModelConfig& c = job.source.config;
  if (o.device == "cpu") {
    return EstimateQuantization(c, job.plan, o).peak_memory_bytes <= MemoryLimit(o);
  }
  const auto backend = MakeBackend(o.device, false);
  const double bytes = ScaleLearningBytes(o.recipe, c, o.calibration_windows * o.context);
  try {
    backend->Allocate(static_cast<size_t>(bytes));
  } catch (const Error&) {
    return false;
  }
  return true;
}

// Why this job's scales are not learned; empty: they are.
std::string WhyScaleTuningIsSkipped(const Job& job) {
  const Recipe& recipe = job.options.recipe;
  const ModelConfig& c = job.source.config;
  const int64_t tokens = job.options.calibration_windows * job.options.context;
  if (const auto why = WhyScaleTuningIsSkipped(recipe); !why.empty()) return std::string(why);
  if (tokens < ScaleLearningMin(recipe, c)) {
    return fmt::format("{} tokens of calibration are too few, {} are enough (--quality best)",
                       tokens, ScaleLearningMin(recipe, c));
  }
  if (!LearnsScales(recipe, c, tokens)) {
    return "only layers that run one gated FFN behind attention learn them";
  }
  return ScalesFit(job) ? "" : "they take more memory than there is";
}

// Asked for, scales must be learned; of a recipe that has them anyway, where it is possible.
void DecideOnScales(Job& job) {
  Recipe& recipe = job.options.recipe;
  if (!recipe.learned_scales) return;
  job.scale_tuning_skipped = WhyScaleTuningIsSkipped(job);
  recipe.learned_scales = job.scale_tuning_skipped.empty();
  if (!recipe.learned_scales && Asks(recipe, "learned-scales")) {
    FailUsage("--learned-scales: {}", job.scale_tuning_skipped);
  }
  job.plan.provenance["learned-scales"] = recipe.learned_scales;
}

// What is behind norms has scales where something learns them.
void PlanScales(Job& job) {
  const Recipe& recipe = job.options.recipe;
  if (recipe.learned_scales || recipe.tune_epochs > 0) {
    PlanInputScales(job.source.config, job.plan);
  }
}

}  // namespace

Job PrepareJob(const QuantizeOptions& options) {
  PrepareBlas();
  Job job = {.options = options};
  QuantizeOptions& o = job.options;
  if (!o.output.empty()) o.output = OutputPath(o.output, o.model);
  job.source = OpenNetwork(o.model);
  const ModelConfig& c = job.source.config;
  if (job.source.packed) FailUsage("{} is quantized already", options.model);
  if (o.context == 0) o.context = std::min(o.effort.context, c.context);
  if (o.context < 1 || o.context > c.context) {
    FailUsage("--context {}: the model's context is {}", o.context, c.context);
  }
  if (o.calibration_windows < 0) FailUsage("--calib-windows must be at least 1");
  if (o.calibration_windows == 0) o.calibration_windows = o.effort.WindowsFor(c, o.context);
  if (o.recipe.tune_epochs > 0 && o.calibration_windows < 2) {
    FailUsage("--tune-blocks: one window is held out; use --calib-windows 2 or more");
  }
  o.recipe = FittedTo(c, o.recipe);
  job.plan = MakePlan(job.source, o.recipe);
  // Weights that stay at 16 bits leave nothing to calibrate.
  if (!RoundsLayers(job.plan)) o.recipe.rounding = Rounding::kNearest, o.recipe.tune_epochs = 0;
  Json& provenance = job.plan.provenance;
  provenance["recipe"] = o.recipe.name;
  provenance["seed"] = o.seed;
  for (const Rule& rule : o.recipe.rules) {
    provenance["rules"].push_back(fmt::format("{}:{}", rule.pattern, rule.fields));
  }
  DecideOnScales(job);
  PlanScales(job);
  if (!o.recipe.calibrates()) return job;
  if (o.recipe.searches_clips()) provenance["activation_clips"] = "searched";
  provenance["calibration_windows"] = o.calibration_windows;
  provenance["calibration_context"] = o.context;
  return job;
}

void TokenizeCalibration(Job& job) {
  const QuantizeOptions& o = job.options;
  if (!o.recipe.calibrates()) return;
  const std::string text = CalibrationText(o);
  job.calibration_digest = Sha256Text(text);
  const std::string name = o.calibration_text.empty() ? "the sample text" : o.calibration_text;
  const Tokenizer tokenizer = Tokenizer::Load(o.model);
  job.calibration =
      RandomWindows(tokenizer.Encode(text), o.calibration_windows, o.context, o.seed, name);
  if (const std::optional<int32_t> bos = WindowBos(tokenizer, job.source.config)) {
    const auto context = static_cast<size_t>(o.context);
    for (size_t i = 0; i < job.calibration.size(); i += context) job.calibration[i] = *bos;
    job.plan.provenance["calibration_bos"] = true;
  }
  for (int32_t id : job.calibration) {
    if (id >= job.source.config.vocab_size) {
      Fail("{}: tokenizer.json gives id {}, the model knows {} tokens", o.model, id,
           job.source.config.vocab_size);
    }
  }
}

Json Identity(const Job& job, const std::string& backend) {
  Json files = Json::object();
  for (const std::string& path : job.source.store->paths()) {
    files[std::filesystem::path(path).filename().string()] = Sha256FileOnce(path);
  }
  for (const char* name : kCompanions) {
    if (const auto text = FindDocument(job.options.model, name)) files[name] = Sha256Text(*text);
  }
  return {{"nibble_version", NIBBLE_VERSION},
          {"backend", backend},
          {"host_blas", openblas_get_config()},
          {"source_config", Sha256Text(job.source.config_json.dump())},
          {"source_files", files},
          {"plan", PlanDigest(job.plan)},
          {"settings", job.plan.provenance},
          {"calibration_text", job.calibration_digest}};
}

std::string CalibrationText(const QuantizeOptions& options) {
  if (options.calibration_text.empty()) return std::string(SampleCalibrationText());
  return ReadFile(options.calibration_text, uint64_t{1} << 30);
}

}  // namespace nibble
