// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/quantize_loss.h"

#include <algorithm>
#include <chrono>
#include <new>

#include "base/interrupt.h"
#include "base/progress.h"
#include "engine/window_bos.h"
#include "models/import/open_network.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/estimate.h"
#include "quantize/run/round_network.h"
#include "quantize/walk/windows.h"
#include "source/model_source.h"

namespace nibble::cli {
namespace {

constexpr double kMuch = 0.1;  // of perplexity, or nats: answers begin to differ

bool IsMuch(const KlResult& r) {
  return r.perplexity / r.reference_perplexity - 1 > kMuch || r.kl_mean > kMuch;
}

// The finer formats of weights that a recipe has not got yet.
std::string_view WeightAdvice(const QuantizeReport& report) {
  const FormatSpec& weights = report.plan.at(0, report.config.first(0, Role::kDown)).weights;
  if (weights.bits <= 4 && weights.group == 0) {
    if (!weights.lattice()) return "--w-group 64 --two-level";
    if (weights.bits < 4) return "--w-bits 4";
  }
  if (report.plan.provenance.value("rounding", "rtn") == "rtn") return "--rounding gptq";
  return "--calib FILE with text like what the model will read, or --w-bits 8";
}

// "rounded inputs cost 0.1200 of it, the cache 0.0100, weights 0.0200; try --a-bits 8": the cost of
// a part is by how much less is lost without rounding it, which noise may make negative.
std::string PartsText(const KlResult& result, const LossParts& parts,
                      const QuantizeReport& report) {
  const double inputs = std::max(0.0, result.kl_mean - parts.float_inputs);
  const double cache = std::max(0.0, result.kl_mean - parts.float_cache);
  const double weights = std::max(0.0, result.kl_mean - inputs - cache);
  const int input_bits = report.plan.at(0, report.config.first(0, Role::kDown)).activations.bits;
  std::string_view advice = WeightAdvice(report);
  if (inputs > std::max(weights, cache)) advice = input_bits < 8 ? "--a-bits 8" : "--a-bits 16";
  if (cache > std::max(weights, inputs)) {
    const bool few = std::min(report.plan.k.bits, report.plan.v.bits) < 8;
    const bool recent = report.plan.recent_bits > 0;
    if (report.cache) {
      advice = "a smaller --cache-loss";
    } else {
      advice = !few ? "--kv-bits 16" : recent ? "--kv-bits 8" : "--recent";
    }
  }
  return fmt::format("rounded inputs cost {:.4f} of it, the cache {:.4f}, weights {:.4f}; try {}",
                     inputs, cache, weights, advice);
}

// The checkpoint's model with one part not rounded: inputs of linears, or the cache.
std::unique_ptr<Model> WithFloatInputs(const QuantizeOptions& options,
                                       const QuantizeReport& report) {
  Network network = OpenNetwork(report.output);
  const auto release = [](PackedLinear& linear) {
    linear.input.activations = linear.input.tail_activations = {.bits = 16};
  };
  for (LayerWeights& layer : network.layers) {
    for (auto& [role, linear] : layer.linears) release(linear);
  }
  release(network.head);
  return std::make_unique<Model>(std::move(network), MakeBackend(options.device, false));
}
std::unique_ptr<Model> WithFloatCache(const QuantizeOptions& options,
                                      const QuantizeReport& report) {
  std::unique_ptr<Model> model = LoadModel(report.output, options.device, false);
  std::vector<KvSpec> caches = model->network().caches;
  for (KvSpec& cache : caches) cache.k = cache.v = {.bits = 16}, cache.recent_bits = 0;
  model->UseCaches(caches);
  return model;
}

// Returns nothing where models with one part not rounded do not run here.
std::optional<LossParts> MeasureParts(const QuantizeOptions& options, const QuantizeReport& report,
                                      Model& reference, const Windows& windows) {
  try {
    const auto inputs = WithFloatInputs(options, report), cache = WithFloatCache(options, report);
    Model* const models[] = {inputs.get(), cache.get()};
    const auto results = KlDivergences(models, reference, windows);
    return LossParts{results[0].kl_mean, results[1].kl_mean};
  } catch (const std::exception&) {  // also out of memory: the loss itself is measured
    if (Interrupted()) throw;
    return std::nullopt;
  }
}

// The source rounded to nearest in the recipe's formats; null where the recipe does just that,
// keeps codes, or has rules for parts that PlainRecipe takes out.
std::unique_ptr<Model> PlainModel(const QuantizeOptions& options, const QuantizeReport& report) {
  const Recipe& recipe = report.recipe;
  if (recipe.rounding == Rounding::kStored) return nullptr;
  if (!recipe.maps() && recipe.rounding == Rounding::kNearest) return nullptr;
  Network source = OpenNetwork(options.model);
  const Recipe plain = PlainRecipe(recipe);
  try {
    MakePlan(source, plain);
  } catch (const Error&) {
    return nullptr;
  }
  Network network = RoundNetwork(source, plain);
  const std::vector<KvSpec> planned = LayerCaches(report.config, report.plan);
  for (size_t i = 0; i < planned.size(); ++i) {
    network.caches[i].k = planned[i].k, network.caches[i].v = planned[i].v;
    network.caches[i].recent_bits = planned[i].recent_bits;
  }
  return std::make_unique<Model>(std::move(network), MakeBackend(options.device, false));
}

// Measures the loss; throws the reason where it cannot be measured.
Loss MeasuredLoss(const QuantizeOptions& options, const QuantizeReport& report, int64_t wanted) {
  const auto start = std::chrono::steady_clock::now();
  Loss loss;
  loss.context = std::min(kLossContext, report.config.context);
  const double needed = LossBytes(report.estimate);
  if (needed > MemoryLimit(options)) Fail("the float model takes {} of memory", BytesText(needed));
  if (!FindDocument(options.model, "tokenizer.json")) Fail("the model has no tokenizer.json");
  const Tokenizer tokenizer = Tokenizer::Load(options.model);
  Windows windows =
      UnseenWindows(tokenizer.Encode(CalibrationText(options)), report.calibration_windows,
                    report.context, options.seed, wanted, loss.context);
  loss.windows = static_cast<int64_t>(windows.size());
  if (windows.empty()) Fail("the windows of calibration leave nothing of the text");
  if (const std::optional<int32_t> bos = WindowBos(tokenizer, report.config)) {
    for (std::vector<int32_t>& window : windows) window[0] = *bos;
  }
  auto quantized = LoadModel(report.output, options.device, false);
  const auto reference = LoadModel(options.model, options.device, false);
  auto plain = PlainModel(options, report);
  Model* const models[] = {quantized.get(), plain.get()};
  const auto results = KlDivergences(std::span(models).first(plain ? 2 : 1), *reference, windows);
  loss.result = results[0];
  if (plain) loss.plain = results[1];
  quantized.reset(), plain.reset();  // makes room for two other models
  if (IsMuch(loss.result)) loss.parts = MeasureParts(options, report, *reference, windows);
  loss.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return loss;
}

}  // namespace

double LossBytes(const QuantizeEstimate& estimate) {
  return kProgramBytes + 6.0 * static_cast<double>(estimate.parameters);
}

// The checkpoint exists whatever happens here, so that errors, also out of memory, become
// `unmeasured`.
Loss MeasureLoss(const QuantizeOptions& options, const QuantizeReport& report, int64_t wanted) {
  Loss none;
  try {
    return MeasuredLoss(options, report, wanted);
  } catch (const std::bad_alloc&) {
    none.unmeasured = "out of memory";
  } catch (const std::exception& error) {
    none.unmeasured = Printable(error.what());
  }
  return none;
}

namespace {

// The plain rounding must be better by more than a tenth: few windows prove no smaller difference.
// Both figures are printed.
bool DoesHarm(const Loss& loss) {
  return loss.plain && loss.plain->kl_mean < 0.9 * loss.result.kl_mean;
}

}  // namespace

Json LossJson(const Loss& loss) {
  if (!loss.unmeasured.empty()) return {{"unmeasured", loss.unmeasured}};
  Json json = {{"perplexity", loss.result.perplexity},
               {"reference_perplexity", loss.result.reference_perplexity},
               {"kl_mean", loss.result.kl_mean},
               {"windows", loss.windows},
               {"context", loss.context},
               {"seconds", loss.seconds}};
  if (loss.plain) {
    json["plain"] = {{"perplexity", loss.plain->perplexity}, {"kl_mean", loss.plain->kl_mean}};
  }
  if (loss.parts) {
    json["parts"] = {{"kl_mean_float_inputs", loss.parts->float_inputs},
                     {"kl_mean_float_cache", loss.parts->float_cache}};
  }
  return json;
}

std::string LossText(const Loss& loss, const QuantizeReport& report) {
  if (!loss.unmeasured.empty()) {
    return fmt::format("not measured: {}; nibble eval kl does it with a text", loss.unmeasured);
  }
  const KlResult& r = loss.result;
  const double share = r.perplexity / r.reference_perplexity - 1;
  std::string text = fmt::format(
      "perplexity {:.3f} to {:.3f} ({:+.1f} %), KL {:.4f} nats, on {} windows of {} tokens that "
      "were not calibrated on ({:.0f} s)",
      r.reference_perplexity, r.perplexity, 100 * share, r.kl_mean, loss.windows, loss.context,
      loss.seconds);
  if (IsMuch(r)) {
    text += "\nthat is much    ";
    text += loss.parts ? PartsText(r, *loss.parts, report)
                       : fmt::format("try {}, or quantize --compare", WeightAdvice(report));
  }
  if (loss.plain) {
    text +=
        fmt::format("\nbeside          {:.3f}, KL {:.4f}, rounded to nearest in the same formats",
                    loss.plain->perplexity, loss.plain->kl_mean);
  }
  if (DoesHarm(loss)) {
    text +=
        "\n                so this recipe does harm here; try --rotation none --rounding rtn, and "
        "please report it";
  }
  return text;
}

}  // namespace nibble::cli
