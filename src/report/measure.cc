// SPDX-License-Identifier: Apache-2.0
#include "report/measure.h"

#include "base/interrupt.h"
#include "base/progress.h"
#include "quantize/map/channel_scales.h"
#include "quantize/plan/make_plan.h"

namespace nibble {
namespace {

void UpdateOrStop(Progress& progress, double done) {
  if (Interrupted()) throw Error(ErrorCode::kFailed, "interrupted; nothing was written");
  progress.Update(done);
}

std::vector<LayerStatistics> Collect(const char* title, Backend& backend, const Network& source,
                                     const Plan& plan, const Rotator& rotator,
                                     std::span<const int32_t> ids, int64_t context,
                                     bool with_keys) {
  const auto tokens = static_cast<double>(ids.size());
  Progress progress(title, "tokens", tokens);
  return CollectStatistics(
      backend, source.config, plan, rotator, ids, context, with_keys,
      [&](double share, std::string_view) { UpdateOrStop(progress, share * tokens); });
}

std::string ResidualText(const ModelConfig& config, const Recipe& recipe) {
  if (!TurnsResidual(config, recipe)) {
    return config.rotates_residual() ? "the residual stream stays as it is"
                                     : "the norms behind o and down let no rotation pass, so the "
                                       "residual stream stays as it is";
  }
  const char* matrix = recipe.rotation == Rotation::kRandom    ? "a random orthogonal matrix"
                       : recipe.rotation == Rotation::kFourier ? "a randomized Fourier transform"
                       : recipe.rotation == Rotation::kKronecker
                           ? "a product of two random matrices with random signs"
                           : "a Hadamard matrix with random signs";
  return fmt::format("the residual stream is turned by {}, which is folded into the weights",
                     matrix);
}

// "q, o and down": the first linears of the sets whose inputs have a transform online.
std::string OnlineRoles(const ModelConfig& config, const Plan& plan, int64_t layer) {
  std::vector<std::string> roles;
  for (const LinearSet set : LinearSets(config, layer)) {
    if (set.expert > 0) continue;
    for (const Role role : RolesOf(set)) {
      if (plan.at(layer, role).input_transform.identity()) continue;
      roles.push_back(RoleName(KindOf(role)));
    }
  }
  if (roles.empty()) return "";
  const std::string last = roles.back();
  roles.pop_back();
  return roles.empty() ? last : fmt::format("{} and {}", fmt::join(roles, ", "), last);
}

std::string TransformsText(const ModelConfig& config, const Recipe& recipe, const Plan& plan,
                           int64_t layer) {
  std::string text = "After: " + ResidualText(config, recipe);
  const std::string roles = OnlineRoles(config, plan, layer);
  if (!roles.empty()) {
    text += fmt::format("; inputs of {} have a Hadamard transform online", roles);
  }
  text += ".";
  if (recipe.reads_source()) text += " Channels are scaled in front of it.";
  if (recipe.learns_rotation()) text += " The rotation that the recipe learns is not in it.";
  if (recipe.falls_back()) {
    text += " Calibration may leave online transforms out where they do harm; here all are on.";
  }
  return text;
}

}  // namespace

Recipe RotatedRecipe(const ModelConfig& config, const Recipe& recipe) {
  if (recipe.rotation != Rotation::kNone) return FittedTo(config, recipe);
  Recipe rotated = PlainRecipe(recipe);
  rotated.rotation = Rotation::kHadamard;
  return FittedTo(config, rotated);
}

void MeasureRotation(Backend& backend, const Network& source, const Recipe& recipe,
                     std::span<const int32_t> ids, int64_t context, ModelReport& report) {
  const ModelConfig& config = source.config;
  const Plan plan = MakePlan(source, recipe), plain = SourcePlan(plan);
  report.transforms = TransformsText(config, recipe, plan, report.layer);
  const Rotator as_it_is(source, Recipe{}, plain, 0);
  const auto before =
      Collect(kBeforeTitle, backend, source, plain, as_it_is, ids, context, recipe.reads_keys());
  report.before = MeasureSizes(config, as_it_is, before);
  Rotator rotator(source, recipe, plan, 0);
  if (recipe.reads_source()) rotator.Scale(ScalesOf(before, as_it_is, config, recipe));
  const auto after = Collect(kAfterTitle, backend, source, plan, rotator, ids, context, false);
  report.after = MeasureSizes(config, rotator, after);
}

void MeasureStreams(Backend& backend, const Network& source, const Recipe& recipe,
                    std::span<const Network> checkpoints, std::span<const int32_t> ids,
                    int64_t context, ModelReport& report) {
  const auto tokens = static_cast<double>(ids.size());
  Progress progress(kStreamsTitle, "tokens", tokens);
  std::vector<StreamQuality> streams =
      CompareStreams(backend, source, SourcePlan(MakePlan(source, recipe)), checkpoints, ids,
                     context, [&](double share) { UpdateOrStop(progress, share * tokens); });
  for (size_t i = 0; i < streams.size(); ++i) report.checkpoints[i].stream = std::move(streams[i]);
}

}  // namespace nibble
