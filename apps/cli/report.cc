// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>

#include "apps/cli/cli.h"
#include "apps/cli/linear_rows.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "engine/window_bos.h"
#include "io/atomic_file.h"
#include "quantize/run/quantize.h"
#include "quantize/walk/windows.h"
#include "report/measure.h"
#include "transforms/blas.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;

struct ReportArguments {
  std::string model, out, recipe = "w4a8", text;
  std::vector<std::string> checkpoints;
  std::optional<int64_t> layer;
  int64_t windows = kStatisticsWindows, context = 0;
};

// Throws where the page would replace a file that is none: a model, say.
void RequireReplaceable(const std::string& path) {
  std::error_code ignored;
  if (!fs::exists(path, ignored) || fs::is_directory(path, ignored)) return;  // AtomicFile refuses
  std::string begin(kPageBegin.size(), '\0');
  std::ifstream file(path, std::ios::binary);
  if (fs::is_regular_file(path, ignored) &&
      file.read(begin.data(), static_cast<std::streamsize>(begin.size())) && begin == kPageBegin) {
    return;
  }
  FailUsage("{}: exists and is no report; remove it or choose another name", path);
}

std::vector<Network> OpenCheckpoints(const ReportArguments& a, const Network& source) {
  std::vector<Network> checkpoints;
  for (const std::string& path : a.checkpoints) {
    checkpoints.push_back(OpenNetwork(path));
    RequireCheckpointOf(source, checkpoints.back());
  }
  return checkpoints;
}

// What a checkpoint was calibrated on.
struct Calibrated {
  int64_t windows = 0, context = 0;
  uint64_t seed = 0;
};
// That of the checkpoint which read most, by the records that quantize leaves. One seed draws the
// same windows for all, those that read less the first of them.
Calibrated MostCalibrated(const std::vector<Network>& checkpoints) {
  Calibrated most;
  for (const Network& checkpoint : checkpoints) {
    const Json& plan = checkpoint.config_json.at("quantization_config");
    const Json record = JsonFind<Json>(plan, "provenance", checkpoint.directory).value_or(Json());
    if (!record.is_object()) continue;
    const auto find = [&](const char* key, int64_t max) {
      return JsonFindIn<int64_t>(record, key, 0, max, checkpoint.directory).value_or(0);
    };
    // Of more windows than these nothing of a text is left, and each takes time to mark.
    const Calibrated one = {std::min<int64_t>(find("calibration_windows", 1 << 20), 1 << 14),
                            find("calibration_context", 1 << 24),
                            JsonFind<uint64_t>(record, "seed", checkpoint.directory).value_or(0)};
    if (one.windows * one.context > most.windows * most.context) most = one;
  }
  return most;
}

// Windows of the text spread over all of it; of the sample text those that no checkpoint was
// calibrated on, if there are some. `described` says what they are.
Windows DrawWindows(const ReportArguments& a, const ModelConfig& config,
                    const std::vector<Network>& checkpoints, std::string& described) {
  const int64_t context = a.context > 0 ? a.context : std::min<int64_t>(512, config.context);
  if (context < 2 || context > config.context) {
    FailUsage("--context {}: use 2 to {}, the model's context", a.context, config.context);
  }
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  const std::vector<int32_t> ids = tokenizer.Encode(CalibrationText({.calibration_text = a.text}));
  const Calibrated seen = a.text.empty() ? MostCalibrated(checkpoints) : Calibrated();
  Windows windows = UnseenWindows(ids, seen.windows, seen.context, seen.seed, a.windows, context);
  const bool unseen = !windows.empty();
  if (!unseen) windows = UnseenWindows(ids, 0, 0, 0, a.windows, context);
  const std::string name = a.text.empty() ? "the sample text for calibration" : a.text;
  if (windows.empty()) {
    Fail("{}: {} tokens are less than one window of {}", name, ids.size(), context);
  }
  const std::optional<int32_t> bos = WindowBos(tokenizer, config);
  for (std::vector<int32_t>& window : windows) {
    if (bos) window[0] = *bos;
    const int32_t largest = *std::ranges::max_element(window);
    if (largest < config.vocab_size) continue;
    Fail("{}: its tokenizer gives id {}, the model knows {} tokens", a.model, largest,
         config.vocab_size);
  }
  described = fmt::format("{} windows of {} tokens of {}{}", windows.size(), context, name,
                          seen.windows == 0 ? ""
                          : unseen          ? ", which were not calibrated on"
                                            : ", of which checkpoints were calibrated on some");
  return windows;
}

// Rough seconds of each stage; progress scales them by what earlier ones took.
void ExpectStages(const Network& source, int64_t tokens, int64_t checkpoints) {
  constexpr double kRate = 4e10;  // operations a core does in a second
  const double pass = 2 * static_cast<double>(source.config.parameters()) *
                      static_cast<double>(tokens) / kRate / static_cast<double>(Threads());
  std::vector<ProgressJob::Stage> stages = {{kBeforeTitle, pass}, {kAfterTitle, 1.5 * pass}};
  if (checkpoints > 0) {
    const double others = static_cast<double>(checkpoints);
    stages.push_back({kStreamsTitle, (1 + others) * pass});
    stages.push_back({"divergence", (1 + others) * pass});
  }
  ProgressJob::Current()->Expect(std::move(stages));
}

// The last part of a path, as legends have room for it.
std::string ShortName(const std::string& path) {
  const fs::path whole = fs::path(path).lexically_normal();
  const fs::path last = whole.has_filename() ? whole.filename() : whole.parent_path().filename();
  return last.empty() ? path : last.string();
}

void DescribeCheckpoints(const std::vector<Network>& checkpoints, ModelReport& report) {
  for (const Network& checkpoint : checkpoints) {
    const auto named_alike = std::ranges::count_if(checkpoints, [&](const Network& other) {
      return ShortName(other.directory) == ShortName(checkpoint.directory);
    });
    report.checkpoints.push_back(
        {.name = named_alike == 1 ? ShortName(checkpoint.directory) : checkpoint.directory,
         .cache_keys = CacheText(checkpoint.caches, &KvSpec::k),
         .cache_values = CacheText(checkpoint.caches, &KvSpec::v),
         .sizes = SizesByRole(checkpoint)});
  }
}

void MeasureLosses(const ReportArguments& a, const Common& common, const Windows& windows,
                   ModelReport& report) {
  std::vector<std::unique_ptr<Model>> models;
  std::vector<Model*> pointers;
  for (const std::string& path : a.checkpoints) {
    models.push_back(Load(path, common, false));
    pointers.push_back(models.back().get());
  }
  const auto reference = Load(a.model, common, false);
  const std::vector<KlResult> results = KlDivergences(pointers, *reference, windows);
  for (size_t i = 0; i < results.size(); ++i) report.checkpoints[i].loss = results[i];
}

std::string ModelText(const ModelConfig& c) {
  return fmt::format("{}, {:.1f} M parameters, {} layers, hidden {}, ffn {}, {} heads of {}",
                     c.family, static_cast<double>(c.parameters()) / 1e6, c.layers, c.hidden_size,
                     c.ffn_size(), c.heads, c.head_dim);
}

// The page's figures. Networks are closed before models are loaded, which takes as much memory
// again.
ModelReport Measure(const ReportArguments& a, const Common& common) {
  PrepareBlas();
  const Network source = OpenNetwork(a.model);
  const ModelConfig& config = source.config;
  if (source.packed) FailUsage("{} is quantized already; name its source first", a.model);
  const int64_t layer = a.layer.value_or(config.layers / 2);
  if (layer < 0 || layer >= config.layers) {
    FailUsage("--layer {}: the model has layers 0 to {}", layer, config.layers - 1);
  }
  const Recipe recipe = RotatedRecipe(config, FindRecipe(a.recipe));
  ModelReport report = {
      .name = ShortName(a.model), .shape = ModelText(config), .recipe = a.recipe, .layer = layer};
  if (FindRecipe(a.recipe).rotation == Rotation::kNone) {
    report.recipe += ", which has no rotation, with a Hadamard rotation";
  }
  std::vector<Network> checkpoints = OpenCheckpoints(a, source);
  DescribeCheckpoints(checkpoints, report);
  const Windows windows = DrawWindows(a, config, checkpoints, report.text);
  std::vector<int32_t> ids;
  for (const auto& window : windows) ids.insert(ids.end(), window.begin(), window.end());
  const auto context = std::ssize(windows[0]);
  ExpectStages(source, std::ssize(ids), std::ssize(checkpoints));
  const auto backend = MakeBackend(common.device, false);
  MeasureRotation(*backend, source, recipe, ids, context, report);
  if (checkpoints.empty()) return report;
  MeasureStreams(*backend, source, recipe, checkpoints, ids, context, report);
  checkpoints.clear();
  MeasureLosses(a, common, windows, report);
  return report;
}

void RunReport(const ReportArguments& a, const Common& common) {
  const auto start = std::chrono::steady_clock::now();
  RequireReplaceable(a.out);
  AtomicFile file(a.out);  // opened first: minutes of work end in no error of a wrong name
  const ProgressJob job;
  const ModelReport report = Measure(a, common);
  const std::string page = ReportPage(report);
  file.Write(page);
  file.Commit();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (common.json) {
    PrintJson({{"file", a.out},
               {"bytes", page.size()},
               {"layer", report.layer},
               {"seconds", seconds.count()}});
    return;
  }
  fmt::print("{}  {}, {}\n", Printable(a.out), BytesText(static_cast<double>(page.size())),
             DurationText(seconds.count()));
}

}  // namespace

void AddReport(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<ReportArguments>();
  CLI::App* verb =
      AddVerb(app, common, "report",
              "Draw what rotations do to a model and what its checkpoints lost, as one HTML page",
              "nibble report llama --out llama.html\n"
              "  nibble report llama llama-w4a8 llama-w4a4 --out llama.html --text test.txt");
  AddModel(*verb, a->model, "Hugging Face directory or GGUF file")->required();
  verb->add_option("checkpoints", a->checkpoints, "What nibble quantize made of it")
      ->transform(ModelName());
  verb->add_option("-o,--out", a->out, "HTML file to write; an earlier report is replaced")
      ->required();
  std::vector<std::string> recipes;
  for (const Recipe* r : Recipes()) recipes.emplace_back(r->name);
  verb->add_option("--recipe", a->recipe,
                   fmt::format("Whose rotations and transforms are drawn: {}; those without "
                               "rotations with a Hadamard rotation",
                               fmt::join(recipes, ", ")))
      ->capture_default_str();
  verb->add_option("--layer", a->layer, "Layer whose channels are drawn (default: the middle one)");
  verb->add_option("--text", a->text, "Text to measure on (default: quantize's sample)");
  verb->add_option("--windows", a->windows, "Windows of it")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--context", a->context,
                   "Tokens of a window (default: 512, at most the model's)")
      ->check(kNotNegative);
  verb->callback([a, &common, &run] { run = [a, &common] { RunReport(*a, common); }; });
}

}  // namespace nibble::cli
