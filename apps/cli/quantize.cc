// SPDX-License-Identifier: Apache-2.0
#include "quantize/run/quantize.h"

#include <map>
#include <memory>
#include <numeric>

#include "apps/cli/cli.h"
#include "apps/cli/linear_rows.h"
#include "apps/cli/progress_line.h"
#include "apps/cli/quantize_compare.h"
#include "apps/cli/quantize_loss.h"
#include "apps/cli/recipe_options.h"
#include "base/progress.h"
#include "compute/devices.h"
#include "quantize/plan/make_plan.h"
#include "quantize/recipes/effort.h"
#include "quantize/recipes/recipe_fields.h"
#include "quantize/run/estimate.h"

namespace nibble::cli {
namespace {

struct QuantizeArguments {
  QuantizeOptions options;
  std::string recipe = "w4a8", quality = "balanced", progress = "text";
  bool dry_run = false, compare = false;
  int64_t loss_windows = 4;
  RecipeChanges changes;
};

std::vector<std::vector<std::string>> PlanRows(const QuantizeReport& report) {
  const Plan& plan = report.plan;
  const ModelConfig& config = report.config;
  std::vector<std::vector<std::string>> rows = {
      {"linear", "weights", "activations", "online transform"}};
  const auto cells = [&](int64_t layer, Role role) -> std::vector<std::string> {
    const LinearPlan& p = plan.at(layer, role);
    return {TailedText(p.weights, p.tail.columns, p.tail.weights),
            TailedText(p.activations, p.tail.columns, p.tail.activations),
            OnlineText(p.input_scales, p.input_transform, p.transform_bits, p.gather,
                       p.output_transform)};
  };
  AddLinearRows(config, cells, rows);
  for (Role role : config.model_roles()) {
    rows.push_back({RoleName(role)});
    for (std::string& cell : cells(0, role)) rows.back().push_back(std::move(cell));
  }
  const auto cached = [&](const FormatSpec& format) {
    return FormatText(format) + (report.recipe.narrows(format) ? ", or 4 bits" : "") +
           RecentText(format, plan.recent_bits);
  };
  const std::string keys = cached(plan.k) + (plan.center_keys ? " less their mean" : "");
  rows.push_back({"cache K", keys, "", TransformText(plan.kv_rotation)});
  rows.push_back({"cache V", cached(plan.v), "", ""});
  return rows;
}

// "rotation hadamard, online, rounding gptq": what a plan does not show, if it is on.
std::string SettingsText(const Json& provenance) {
  std::vector<std::string> texts;
  for (const RecipeField& field : RecipeFields()) {
    const Json value = provenance.value(std::string(field.name), Json());
    if (value.is_boolean() && value.get<bool>()) texts.emplace_back(field.name);
    if (value.is_string())
      texts.push_back(fmt::format("{} {}", field.name, value.get<std::string>()));
    if (value.is_number() && value != 0)
      texts.push_back(fmt::format("{} {}", field.name, value.dump()));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void PrintPlan(const QuantizeArguments& a, const QuantizeReport& report) {
  const QuantizeEstimate& e = report.estimate;
  if (!report.recipe.calibrates()) {
    Note("recipe {}, no calibration\n", a.recipe);
  }
  if (a.dry_run) {
    const auto why = WhyTwoTables(report.config, report.recipe, report.plan);
    fmt::print("{}\n", Table(PlanRows(report)));
    fmt::print("method       {}\n", SettingsText(report.plan.provenance));
    if (!report.scale_tuning_skipped.empty())
      fmt::print("scales       not learned: {}\n", report.scale_tuning_skipped);
    fmt::print("tables       {}\n",
               why.empty() ? "one for head and embedding" : fmt::format("two: {}", why));
    fmt::print(
        "parameters   {:.1f} M\nsize         {} ({:.2f} bits per quantized weight)\n"
        "peak memory  {}{}\ndisk         {}{}\ntime         about {}\n",
        static_cast<double>(e.parameters) / 1e6, BytesText(e.output_bytes), e.bits_per_weight,
        BytesText(e.peak_memory_bytes),
        e.device_bytes > 0 ? "\nGPU memory   " + BytesText(e.device_bytes) : "",
        BytesText(e.disk_bytes),
        e.spills ? ", with the windows of calibration, which do not fit into memory" : "",
        DurationText(e.seconds));
  }
}

Json ReportJson(const QuantizeReport& r) {
  Json layers = Json::array();
  for (const LayerReport& layer : r.layers) {
    Json errors = Json::object();
    for (const auto& [role, error] : layer.errors) errors[RoleName(role)] = error;
    layers.push_back({{"layer", layer.layer}, {"relative_errors", errors}});
  }
  Json json = {{"output", r.output},
               {"seconds", r.seconds},
               {"bytes", r.output_bytes},
               {"bits_per_weight", r.quantized_bits_per_weight},
               {"invariance", r.invariance.change},
               {"invariance_limit", r.invariance.limit()},
               {"resumed_layers", r.resumed_layers},
               {"scale_tuning_skipped", r.scale_tuning_skipped},
               {"layers", layers}};
  if (r.cache) {
    json["cache"] = {
        {"parts", r.cache->parts}, {"narrow", r.cache->narrow}, {"kl_mean", r.cache->loss}};
    if (!r.cache->unchosen.empty()) json["cache"]["unchosen"] = r.cache->unchosen;
  }
  return json;
}

// Prints for each kind of linear the mean error and the worst one of all layers and experts; --json
// has each.
void PrintErrors(const QuantizeReport& r) {
  struct Errors {
    double sum = 0, largest = 0;
    int64_t count = 0, layer = 0;
  };
  std::map<Role, Errors> kinds;
  for (const LayerReport& layer : r.layers) {
    for (const auto& [role, error] : layer.errors) {
      Errors& kind = kinds[KindOf(role)];
      kind.sum += error;
      ++kind.count;
      if (error >= kind.largest) kind.layer = layer.layer;
      kind.largest = std::max(kind.largest, error);
    }
  }
  if (kinds.empty()) return;
  std::vector<std::vector<std::string>> rows = {{"", "mean", "largest", "in layer"}};
  for (const auto& [role, e] : kinds) {
    rows.push_back({RoleName(role), fmt::format("{:.2e}", e.sum / static_cast<double>(e.count)),
                    fmt::format("{:.2e}", e.largest), fmt::format("{}", e.layer)});
  }
  fmt::print("squared output error of rounded linears, relative to their output\n{}\n",
             Table(rows));
}

// "o in 7 of 18 layers": the inputs whose online transforms were left out because they did harm.
std::string LeftOutText(const QuantizeReport& r) {
  std::vector<std::string> texts;
  const Json left_out = r.plan.provenance.value("transforms_left_out", Json::object());
  for (const auto& [input, layers] : left_out.items()) {
    texts.push_back(fmt::format("{} in {} of {} layers", input, layers.size(), r.config.layers));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

void PrintReport(const QuantizeReport& r) {
  PrintErrors(r);
  if (const std::string inputs = LeftOutText(r); !inputs.empty()) {
    fmt::print("left out        online transforms that did harm: {}\n", inputs);
  }
  if (r.recipe.maps()) {
    fmt::print("exactness check {} changes by {:.1e} of its outputs (limit {:.1e})\n",
               r.invariance.part, r.invariance.change, r.invariance.limit());
  }
  if (r.cache && !r.cache->unchosen.empty()) {
    fmt::print("cache           as planned in all layers: {}\n", Printable(r.cache->unchosen));
  } else if (r.cache) {
    fmt::print(
        "cache           4 bits in {} of {} parts (keys or values of a layer): KL {:.4f} nats\n",
        r.cache->narrow, r.cache->parts, r.cache->loss);
  }
  if (!r.scale_tuning_skipped.empty())
    fmt::print("scales          not learned: {}\n", r.scale_tuning_skipped);
  fmt::print("size            {} ({:.2f} bits per quantized weight)\n", BytesText(r.output_bytes),
             r.quantized_bits_per_weight);
}

Json DryRunJson(const QuantizeReport& report) {
  const QuantizeEstimate& e = report.estimate;
  return {{"plan", ToJson(report.plan)},
          {"parameters", e.parameters},
          {"bytes", e.output_bytes},
          {"bits_per_weight", e.bits_per_weight},
          {"peak_memory_bytes", e.peak_memory_bytes},
          {"device_bytes", e.device_bytes},
          {"disk_bytes", e.disk_bytes},
          {"spills", e.spills},
          {"scale_tuning_skipped", report.scale_tuning_skipped},
          {"seconds", e.seconds}};
}

// Says what a GPU would do about a time that a user notices.
void HintAtGpu(const QuantizeOptions& options) {
  constexpr double kNoticed = 30;  // seconds
  if (options.device != "cpu" || !HasGpu()) return;
  QuantizeOptions on_gpu = options;
  on_gpu.device = "cuda:0";
  const double here = PlanQuantization(options).estimate.seconds;
  const double there = PlanQuantization(on_gpu).estimate.seconds;
  if (here < kNoticed || there > here / 2) return;
  Note("nibble: about {} on the CPU; --device cuda:0 would take about {}\n", DurationText(here),
       DurationText(there));
}

void RunQuantize(QuantizeArguments& a, const Common& common) {
  a.options.effort = FindEffort(a.quality);
  a.options.recipe = a.changes.Of(WithEffort(FindRecipe(a.recipe), a.options.effort));
  a.options.device = common.device;
  const ProgressReceiver receiver(a.progress == "json" ? ProgressJson() : ProgressLine());
  if (a.compare) return CompareRecipes(a.options, std::max<int64_t>(a.loss_windows, 1), common);
  a.options.loss_tokens = a.loss_windows * kLossContext;
  if (a.dry_run) {
    MakeBackend(a.options.device, false);  // throws where the run would
    QuantizeReport report = PlanQuantization(a.options);
    const double loss = a.loss_windows > 0 ? LossBytes(report.estimate) : 0;
    double& peak = report.estimate.peak_memory_bytes;
    if (loss <= MemoryLimit(a.options)) peak = std::max(peak, loss);  // else not measured
    double& device = report.estimate.device_bytes;
    if (device > 0) device = std::max(device, loss);
    common.json ? PrintJson(DryRunJson(report)) : PrintPlan(a, report);
    return;
  }
  if (a.options.output.empty()) FailUsage("quantize needs -o OUT (or --dry-run)");
  const ProgressJob job;
  HintAtGpu(a.options);
  const QuantizeReport report = Quantize(a.options);
  if (!common.json) PrintReport(report);
  Json json = ReportJson(report);
  double seconds = report.seconds;
  if (a.loss_windows > 0) {
    const Loss loss = MeasureLoss(a.options, report, a.loss_windows);
    json["loss"] = LossJson(loss);
    seconds += loss.seconds;
    if (!common.json) fmt::print("lost            {}\n", LossText(loss, report));
  }
  if (!common.json) {
    fmt::print(
        "time            {0}\nnext            nibble chat {1}; nibble eval ppl {1} --text FILE\n",
        DurationText(seconds), report.output);
  }
  if (a.options.calibration_text.empty() && report.recipe.calibrates()) {
    Note(
        "nibble: calibrated on the embedded sample text; --calib FILE with text that the model "
        "should be good at gives a better one\n");
  }
  if (common.json) PrintJson(json);
}

std::shared_ptr<QuantizeArguments> AddArguments(CLI::App* verb) {
  const auto a = std::make_shared<QuantizeArguments>();
  std::string recipes, efforts;
  for (const Recipe* r : Recipes()) recipes += fmt::format("\n  {}: {}", r->name, r->summary);
  for (const Effort& e : Efforts()) efforts += fmt::format("\n  {}: {}", e.name, e.summary);
  AddModel(*verb, a->options.model, "Hugging Face directory or GGUF file")->required();
  verb->add_option("-o,--output", a->options.output, "Checkpoint directory to write");
  verb->add_option("--recipe", a->recipe, "Method:" + recipes)->capture_default_str();
  verb->add_option("--quality", a->quality, "Time for a better result:" + efforts)
      ->capture_default_str();
  verb->add_option("--calib", a->options.calibration_text, "Calibration text (default: a sample)");
  verb->add_option("--calib-windows", a->options.calibration_windows,
                   "Windows drawn from it (default: as --quality has it)")
      ->check(CLI::Range(1, 1 << 20));
  verb->add_option("--loss-windows", a->loss_windows,
                   "Other windows of it, to measure what was lost at the end; 0 = do not")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  verb->add_option("--context", a->options.context,
                   "Tokens of a window (default: as --quality has it, at most the model's)");
  verb->add_option("--memory", a->options.memory,
                   "Bytes that the run may use (8GiB); windows of calibration that do not fit lie "
                   "in a file (default: what is free)")
      ->type_name("SIZE")
      ->transform(CLI::AsSizeValue(false));
  verb->add_option("--seed", a->options.seed, "Seed of rotation and windows")
      ->check(kNotNegative)
      ->capture_default_str();
  verb->add_flag("--resume", a->options.resume, "Continue OUT.partial");
  verb->add_flag("--force", a->options.force, "Replace OUT");
  verb->add_flag("--dry-run", a->dry_run, "Print plan, size, memory and time; write nothing");
  verb->add_flag(
          "--compare", a->compare,
          "Quantize with a few recipes, print what each one costs on other windows, keep none")
      ->excludes("--output", "--recipe", "--resume", "--force", "--dry-run");
  verb->add_option("--progress", a->progress, "text or json")
      ->check(CLI::IsMember({"text", "json"}));
  AddFields(*verb, a->changes);
  return a;
}

}  // namespace

void AddQuantize(CLI::App& app, Common& common, Run& run) {
  CLI::App* verb = AddVerb(
      app, common, "quantize",
      "Quantize a model directory or GGUF file, or org/name from Hugging Face's cache",
      "nibble quantize llama -o llama-w4a8 --calib text.txt\n"
      "  nibble quantize llama.gguf -o llama-w4a4kv4 --recipe quarot --calib text.txt\n"
      "  nibble quantize llama -o llama-w4a4 --recipe nibble --rule 'down_proj:w-bits=8,a-bits=8' "
      "--rule 'layers.0.*k_proj:w-bits=8'\n"
      "  nibble quantize llama --recipe rtn --dry-run");
  const auto a = AddArguments(verb);
  verb->callback([a, &common, &run] { run = [a, &common] { RunQuantize(*a, common); }; });
}

}  // namespace nibble::cli
