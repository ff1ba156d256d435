// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/quantize.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <new>

#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "compute/exact_backend.h"
#include "compute/math_services.h"
#include "models/import/open_network.h"
#include "quantize/learn/learn_rotation.h"
#include "quantize/learn/learn_scales.h"
#include "quantize/learn/train_block.h"
#include "quantize/learn/tune_block.h"
#include "quantize/map/channel_scales.h"
#include "quantize/map/search_scales.h"
#include "quantize/plan/choose_clips.h"
#include "quantize/plan/choose_outliers.h"
#include "quantize/plan/choose_transforms.h"
#include "quantize/plan/make_plan.h"
#include "quantize/round/host_math.h"
#include "quantize/run/estimate.h"
#include "quantize/run/expected_stages.h"
#include "quantize/run/job.h"
#include "quantize/run/rest_tensors.h"
#include "quantize/run/work_directory.h"
#include "quantize/walk/calibrate.h"
#include "quantize/walk/output_clips.h"
#include "source/model_source.h"

namespace nibble {
namespace {

void WriteRest(const WorkDirectory& work, const Rotator& rotator, const Job& job,
               const Matrix<float>& head) {
  WriteShard(work.File(kRestShardName), RestTensors(rotator, job.source, job.plan, head),
             {{kPlanDigestKey, PlanDigest(job.plan)}});
}

void WriteDocuments(const WorkDirectory& work, const Job& job) {
  Json config = job.source.config_json;
  config["quantization_config"] = ToJson(job.plan);
  WriteFileAtomic(work.File("config.json"), config.dump(2) + "\n");
  for (const char* name : kCompanions) {
    if (const auto text = FindDocument(job.options.model, name)) {
      WriteFileAtomic(work.File(name), *text);
    }
  }
}

void StopIfInterrupted(std::string_view after) {
  if (!Interrupted()) return;
  throw Error(ErrorCode::kInterrupted,
              fmt::format("stopped {}; the same command with --resume goes on", after));
}

// Reports progress before the layers, or stops where a user interrupts. With --resume statistics
// and clips are made again, a learned rotation is kept.
void UpdateOrStop(Progress& progress, double done, const std::string& detail = "") {
  StopIfInterrupted("before the first layer");
  progress.Update(done, detail);
}

// The text of passes whose findings more windows do not change.
std::span<const int32_t> TextOfStatistics(const Job& job) {
  const auto most = static_cast<size_t>(kStatisticsWindows * job.options.context);
  return std::span(job.calibration).first(std::min(job.calibration.size(), most));
}

std::vector<LayerStatistics> CollectStatistics(const Job& job, const Plan& plan,
                                               const Rotator& rotator, Backend& backend,
                                               bool with_keys) {
  const int64_t context = job.options.context;
  const std::span<const int32_t> ids = TextOfStatistics(job);
  const auto tokens = static_cast<double>(ids.size());
  Progress progress("statistics", "tokens", tokens);
  return CollectStatistics(backend, job.source.config, plan, rotator, ids, context, with_keys,
                           [&](double share, std::string_view what) {
                             UpdateOrStop(progress, share * tokens, std::string(what));
                           });
}

// Statistics of channels for a recipe that orders them. Without rotation and scales they do not
// depend on the recipe, and several recipes share them.
std::vector<LayerStatistics> Statistics(const Job& job, const Rotator& rotator, Backend& backend,
                                        std::vector<LayerStatistics>* unrotated) {
  const Recipe& recipe = job.options.recipe;
  if (!recipe.arranges_channels()) return {};
  std::vector<LayerStatistics> own;
  const bool shared =
      unrotated != nullptr && recipe.rotation == Rotation::kNone && !recipe.scales_channels();
  auto& statistics = shared ? *unrotated : own;
  if (statistics.empty()) statistics = CollectStatistics(job, job.plan, rotator, backend, false);
  return statistics;
}

// Scales of the channels of all layers, by statistics of the source.
std::vector<ChannelScales> ScalesOfChannels(const Job& job, Backend& backend,
                                            std::vector<LayerStatistics>* unrotated) {
  const Recipe& recipe = job.options.recipe;
  const Plan plan = SourcePlan(job.plan);
  const Rotator source(job.source, Recipe{}, plan, 0);
  std::vector<LayerStatistics> own;
  auto& statistics = unrotated != nullptr && !recipe.reads_keys() ? *unrotated : own;
  if (statistics.empty()) {
    statistics = CollectStatistics(job, plan, source, backend, recipe.reads_keys());
  }
  return ScalesOf(statistics, source, job.source.config, recipe);
}

// Scales that are searched, beside those of keys that the rotator may have.
void SearchScales(const Job& job, Rotator& rotator, Backend& backend) {
  const ModelConfig& c = job.source.config;
  const Plan plan = SourcePlan(job.plan);
  const Rotator source(job.source, Recipe{}, plan, 0);
  Progress progress("search", "layers", static_cast<double>(c.layers));
  std::vector<ChannelScales> found =
      SearchScales(backend,
                   {c, job.plan, job.options.recipe.scale_steps, source, TextOfStatistics(job),
                    job.options.context},
                   [&](double done) { UpdateOrStop(progress, done); });
  std::vector<ChannelScales> scales = rotator.scales();
  scales.resize(found.size());
  for (size_t i = 0; i < found.size(); ++i) {
    scales[i].norms = std::move(found[i].norms);
    scales[i].outputs = std::move(found[i].outputs);
  }
  rotator.Scale(std::move(scales));
}

// The plan as the statistics of its inputs change it.
void ChooseOutliers(Job& job, const std::vector<LayerStatistics>& statistics) {
  if (!job.options.recipe.chooses_outliers()) return;
  Recipe recipe = job.options.recipe;
  const auto rules = RulesOfOutliers(statistics, job.source.config, recipe, job.plan);
  recipe.rules.insert(recipe.rules.end(), rules.begin(), rules.end());
  job.plan.linears = MakePlan(job.source, recipe).linears;
}

// Layers as they are rounded: folded, rotated, their channels scaled and in order.
FloatLayers MappedLayers(const Job& job, const Rotator& rotator,
                         const std::vector<LayerStatistics>& statistics) {
  const Recipe& recipe = job.options.recipe;
  if (!recipe.arranges_channels()) return [&](int64_t i) { return rotator.Layer(i); };
  return [&, statistics](int64_t i) {
    FloatLayer layer = rotator.Layer(i);
    ArrangeChannels(statistics[static_cast<size_t>(i)], job.source.config, recipe, job.plan, i,
                    layer);
    return layer;
  };
}

std::unique_ptr<DenseMath> LearningMath(Backend& backend) {
  std::unique_ptr<DenseMath> math = backend.services().MakeDense();
  return math ? std::move(math) : std::make_unique<HostMath>();
}

void TurnResidual(const Job& job, const WorkDirectory& work, Rotator& rotator, Backend& backend) {
  const ModelConfig& c = job.source.config;
  std::optional<Matrix<double>> rotation = work.FindRotation(c.hidden_size);
  if (!rotation) {
    // Finished layers are of use only with the rotation that they were made for.
    if (OpenWholeShard(work.File(LayerShardName(0)))) work.FailDamaged(kRotationFile);
    Progress progress("rotation", "steps", kRotationSteps);
    const auto rows = CollectPeakedRows(
        backend, c, job.plan, rotator, job.calibration, job.options.context, [&](int64_t layer) {
          UpdateOrStop(progress, 0, fmt::format("inputs of layer {}", layer + 1));
        });
    if (rows.empty()) return;  // nothing behind a norm is quantized
    rotation = LearnRotation(rows, *LearningMath(backend), [&](int64_t steps) {
      UpdateOrStop(progress, static_cast<double>(steps));
    });
    work.SaveRotation(*rotation);
  }
  rotator.Follow(*rotation);
}

void LeaveOutTransforms(Job& job, Rotator& rotator, Backend& backend) {
  const ModelConfig& c = job.source.config;
  Progress progress("transforms", "layers", static_cast<double>(c.layers));
  ChooseTransforms(backend, c, job.options.recipe, rotator, job.calibration, job.options.context,
                   job.plan, [&](double done) { UpdateOrStop(progress, done); });
}

void SearchClips(Job& job, const Rotator& rotator, const FloatLayers& layers, Backend& backend) {
  const ModelConfig& c = job.source.config;
  Progress progress("clips", "layers", static_cast<double>(c.layers));
  ChooseClips(backend, c, rotator.embedding(), layers, job.calibration, job.options.context,
              job.plan, [&](double done) { UpdateOrStop(progress, done); });
}

// Weights of tokens; none where an earlier run has finished all layers.
LossWeights WeightsOfLoss(const Job& job, const Rotator& rotator, const FloatLayers& layers,
                          const WorkDirectory& work, Backend& backend) {
  const Recipe& recipe = job.options.recipe;
  const ModelConfig& c = job.source.config;
  if (recipe.loss_groups == 0 || work.FindLayer(c.layers - 1, job.plan, c)) return {};
  Progress progress("gradients", "tokens", static_cast<double>(job.calibration.size()));
  return FindLossWeights(backend, *LearningMath(backend),
                         {c, job.plan, rotator.Table(Role::kEmbedding), rotator.Table(Role::kHead),
                          rotator.FinalNorm(), layers, job.calibration, recipe.loss_groups},
                         [&](double tokens) { UpdateOrStop(progress, tokens); });
}

// What a recipe does to a layer's weights right before they are rounded, and to those that are left
// while the layer is.
class Preparation {
 public:
  Preparation(const Job& job, const Rotator& rotator, Backend& backend) {
    const ModelConfig& c = job.source.config;
    const Recipe& recipe = job.options.recipe;
    const int64_t context = job.options.context;
    if (recipe.output_clips) {
      clips_.emplace(backend, c, job.plan, rotator.embedding(), TextOfStatistics(job), context);
    }
    if (recipe.block_epochs == 0 && recipe.tune_epochs == 0) return;
    math_ = LearningMath(backend);
    const auto begin = [&](auto& learning) {
      learning.emplace(backend, *math_, c, recipe, job.plan, rotator.embedding(), job.calibration,
                       context);
    };
    if (recipe.block_epochs > 0) begin(training_);
    if (recipe.tune_epochs > 0) begin(tuning_);
  }

  void Prepare(int64_t index, FloatLayer& layer, const Calibration::Progress& progress) {
    if (clips_) clips_->Clip(index, layer);
    if (tuning_) tuning_->Begin(index, layer);
    if (!training_) return;
    training_->Train(index, layer, [&](double share) { progress(share, "learning"); });
  }
  // In place of Prepare, of a layer that an earlier run has finished.
  void Skip(int64_t index, const FloatLayer& layer) {
    if (clips_) clips_->Skip(index, layer);
    if (training_) training_->Skip(index, layer);
    if (tuning_) tuning_->Begin(index, layer);
  }
  // What rounding calls between the sets of a layer; empty: nothing.
  Calibration::Tune tune() {
    if (!tuning_) return {};
    return [this](LinearSet set, FloatLayer& rest, LayerWeights& stored, const auto& progress) {
      tuning_->Tune(set, rest, stored, progress);
    };
  }
  void Pass(int64_t index, const LayerWeights& rounded) {
    if (training_) training_->Pass(index, rounded);
    if (tuning_) tuning_->Pass(rounded);
  }

 private:
  std::optional<OutputClips> clips_;
  std::unique_ptr<DenseMath> math_;
  std::optional<BlockTraining> training_;
  std::optional<BlockTuning> tuning_;
};

// Rounds one layer after the other, with one in memory.
void RoundLayers(const Job& job, const Rotator& rotator, const FloatLayers& layers,
                 const WorkDirectory& work, Backend& backend, QuantizeReport& report) {
  const ModelConfig& c = job.source.config;
  std::optional<SpillFile> file;
  if (report.estimate.spills) file.emplace(work.path());
  std::optional<Calibration> calibration;
  if (job.options.recipe.rounding == Rounding::kGptq) {
    calibration.emplace(backend, c, job.plan, job.options.recipe, rotator.embedding(),
                        job.calibration, job.options.context, file ? &*file : nullptr,
                        WeightsOfLoss(job, rotator, layers, work, backend));
  }
  Preparation preparation(job, rotator, backend);
  const double tokens = calibration ? static_cast<double>(job.calibration.size()) : 1;
  Progress progress("quantize", calibration ? "layer tokens" : "layers",
                    static_cast<double>(c.layers) * tokens);
  for (int64_t i = 0; i < c.layers; ++i) {
    StopIfInterrupted(fmt::format("after layer {} of {}", i, c.layers));
    const auto at = [&](double share, std::string_view what) {
      StopIfInterrupted(fmt::format("in layer {} of {}", i + 1, c.layers));
      progress.Update((static_cast<double>(i) + share) * tokens,
                      fmt::format("layer {}/{} {}", i + 1, c.layers, what));
    };
    FloatLayer layer = layers(i);
    std::map<Role, double> errors;
    if (auto saved = work.FindLayer(i, job.plan, c)) {
      at(0, "resumed");
      preparation.Skip(i, layer);
      preparation.Pass(i, saved->layer);
      if (calibration) calibration->Skip(saved->layer, layer, i);
      errors = saved->errors;
      ++report.resumed_layers;
    } else {
      // Learned factors belong to the layer i that was saved before: another one would not fit
      // them.
      if (work.FindLearned(c)) work.FailDamaged(LayerShardName(i));
      at(0, "rotated");
      preparation.Prepare(i, layer, at);
      LayerWeights stored =
          calibration ? calibration->Round(std::move(layer), i, errors, at, preparation.tune())
                      : RoundLayerNearest(std::move(layer), job.plan, i, errors);
      preparation.Pass(i, stored);
      work.SaveLayer(i, {std::move(stored), errors}, job.plan);
    }
    report.layers.push_back({i, {errors.begin(), errors.end()}});
  }
}

// Returns the head that goes with them, or nothing.
Matrix<float> TuneScales(const Job& job, const Rotator& rotator, const FloatLayers& layers,
                         const WorkDirectory& work, Backend& backend) {
  const ModelConfig& c = job.source.config;
  const auto load = [&](int64_t i) {
    auto saved = work.FindLayer(i, job.plan, c);
    if (!saved) work.FailDamaged(LayerShardName(i));
    return std::move(*saved);
  };
  std::optional<Learned> learned = work.FindLearned(c);
  if (!learned) {
    std::vector<LayerWeights> rounded;
    for (int64_t i = 0; i < c.layers; ++i) {
      auto saved = load(i);
      if (saved.scaled) work.FailDamaged(kFactorsFile);
      rounded.push_back(std::move(saved.layer));
    }
    Progress progress(
        "scales", "tokens",
        ScaleLearningTokens(job.options.recipe, c, static_cast<int64_t>(job.calibration.size())));
    const auto at = [&](double tokens, const std::string& what) {
      StopIfInterrupted("while scales were learned");
      progress.Update(tokens, what);
    };
    std::chrono::steady_clock::time_point next;
    const auto keep = [&](const std::function<LearningState()>& state) {
      const auto now = std::chrono::steady_clock::now();
      if (now < next && !Interrupted()) return;
      work.SaveLearning(state());
      next = now + std::chrono::minutes(1);
    };
    learned = LearnScales(backend, *LearningMath(backend),
                          {c, job.options.recipe, job.plan, rotator.Table(Role::kEmbedding),
                           rotator.Table(Role::kHead), rotator.FinalNorm(), layers,
                           std::move(rounded), job.calibration, work.FindLearning(), keep},
                          at);
    work.SaveLearned(*learned);  // before the first layer is changed
  }
  for (int64_t i = 0; i < c.layers; ++i) {
    WorkDirectory::SavedLayer saved = load(i);
    if (saved.scaled) continue;
    const LayerScales& factors = learned->factors[static_cast<size_t>(i)];
    if (!Fits(factors, saved.layer)) work.FailDamaged(kFactorsFile);
    ApplyScales(factors, saved.layer);
    saved.scaled = true;
    work.SaveLayer(i, saved, job.plan);
  }
  return std::move(learned->head);
}

// Chooses caches of the rounded model in `work`, whose plan is written again. Bits of the cache
// change no tensor, and a run of hours does not end because there is no memory for the choice.
CacheChoice NarrowCaches(Job& job, const WorkDirectory& work) {
  const auto layers = static_cast<double>(job.source.config.layers);
  Progress progress("cache", "layers", layers);
  CacheChoice choice;
  try {
    choice = ChooseCaches(work.path(), job.options.device, job.options.recipe.cache_loss,
                          job.calibration, job.options.context, job.plan, [&](double share) {
                            StopIfInterrupted("while the cache was chosen");
                            progress.Update(share * layers);
                          });
  } catch (const std::bad_alloc&) {
    choice.unchosen = "out of memory";
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInterrupted) throw;
    choice.unchosen = error.what();
  }
  job.plan.provenance["cache_kl"] = choice.loss;
  WriteDocuments(work, job);
  return choice;
}

QuantizeReport StartReport(const Job& job) {
  QuantizeReport report;
  report.output = job.options.output;
  report.config = job.source.config;
  report.plan = job.plan;
  report.recipe = job.options.recipe;
  if (report.recipe.calibrates()) report.calibration_windows = job.options.calibration_windows;
  report.context = job.options.context;
  report.scale_tuning_skipped = job.scale_tuning_skipped;
  report.estimate = EstimateQuantization(job.source.config, job.plan, job.options);
  return report;
}

}  // namespace

QuantizeReport PlanQuantization(const QuantizeOptions& options) {
  const Job job = PrepareJob(options);
  QuantizeReport report = StartReport(job);
  for (const auto& stage : ExpectedStages(report.config, job.plan, job.options)) {
    report.estimate.seconds += stage.seconds;
  }
  return report;
}

QuantizeReport Quantize(const QuantizeOptions& options, std::vector<LayerStatistics>* unrotated) {
  const auto start = std::chrono::steady_clock::now();
  Job job = PrepareJob(options);
  QuantizeReport report = StartReport(job);
  RequireResources(report.estimate, job.options);
  std::optional<ProgressJob> own;  // unless the caller's goes on behind this
  if (ProgressJob::Current() == nullptr) own.emplace();
  ProgressJob::Current()->Expect(ExpectedStages(report.config, job.plan, job.options));
  TokenizeCalibration(job);
  const auto backend = MakeBackend(job.options.device, false);
  const std::string& output = job.options.output;
  WorkDirectory work(output, Identity(job, backend->Name()), options.resume, options.force);
  Rotator rotator(job.source, job.options.recipe, job.plan, options.seed);
  if (job.options.recipe.learns_rotation()) TurnResidual(job, work, rotator, *backend);
  if (job.options.recipe.reads_source()) {
    rotator.Scale(ScalesOfChannels(job, *backend, unrotated));
  }
  if (job.options.recipe.searches_scales()) SearchScales(job, rotator, *backend);
  if (job.options.recipe.falls_back()) LeaveOutTransforms(job, rotator, *backend);
  const auto statistics = Statistics(job, rotator, *backend, unrotated);
  ChooseOutliers(job, statistics);
  const FloatLayers layers =
      KeepLayers(MappedLayers(job, rotator, statistics), LayerPasses(job.options.recipe),
                 KeptBytes(report.estimate, job.options));
  if (report.recipe.maps()) {
    const auto exact = MakeExactBackend();
    report.invariance = CheckInvariance(job.source, rotator, layers, job.plan, *exact);
  }
  if (job.options.recipe.searches_clips()) SearchClips(job, rotator, layers, *backend);
  RoundLayers(job, rotator, layers, work, *backend, report);
  Matrix<float> head;
  if (job.options.recipe.learned_scales) head = TuneScales(job, rotator, layers, work, *backend);
  WriteRest(work, rotator, job, head);
  WriteDocuments(work, job);
  WriteIndex(work.path(), job.source.config.layers);
  if (job.options.recipe.chooses_cache()) report.cache = NarrowCaches(job, work);
  report.plan = job.plan;
  OpenNetwork(work.path());  // what is published can be read
  work.Publish(options.force);
  report.quantized_bits_per_weight =
      EstimateQuantization(job.source.config, job.plan, job.options).bits_per_weight;
  report.output_bytes = FilesBytes(output);
  report.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return report;
}

}  // namespace nibble
