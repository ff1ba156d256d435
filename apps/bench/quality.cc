// SPDX-License-Identifier: Apache-2.0
// The quality tables of the papers in one command: quantize, evaluate, keep the result, remove the
// checkpoint, row by row.
#include <filesystem>
#include <memory>

#include "apps/bench/bench.h"
#include "apps/bench/published.h"
#include "apps/bench/quality_report.h"
#include "apps/bench/quality_tasks.h"
#include "apps/cli/evaluation_text.h"
#include "base/file.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "io/publish.h"
#include "io/sha256.h"
#include "models/checkpoint/packed_checkpoint.h"
#include "models/families/shapes.h"
#include "models/import/open_network.h"
#include "quantize/plan/make_plan.h"
#include "quantize/run/quantize.h"
#include "quantize/walk/sample_text.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;

struct QualityArguments {
  std::string model, suite = "paper", published, work, calibration, markdown, data;
  // Enough to order methods: all rows of a model of 39 M parameters take 40 minutes on two cores.
  EvaluationText text{.window_bos = "none", .windows = {.windows = 12}};
  int64_t calibration_windows = 8, task_limit = 200;
  uint64_t seed = 0;
  bool dry_run = false;
  std::vector<std::string> only;
};

template <typename T>
std::string Digest(const T& values) {
  return Sha256(std::as_bytes(std::span(values)));
}

std::string ModelName(const std::string& model) {
  const fs::path path = fs::absolute(model).lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).filename().string();
}

// The formats of most linears, of the cache, and of down where those differ; the number of outliers
// where it is below the recipe's.
std::string FormatsText(const Plan& plan, const ModelConfig& config, const Recipe& recipe) {
  const auto linear = [&](Role role) {
    const LinearPlan& p = plan.at(0, role);
    const TailPlan& tail = p.tail;
    const std::string formats = fmt::format("W{}A{}", p.weights.bits, p.activations.bits);
    if (tail.columns == 0) return formats;
    return fmt::format("{} + {}{} W{}A{}", formats, tail.columns,
                       tail.columns < recipe.tail ? fmt::format(" for {}", recipe.tail) : "",
                       tail.weights.bits, tail.activations.bits);
  };
  const std::string max = linear(Role::kQ), down = linear(config.first(0, Role::kDown));
  return fmt::format("{} K{}V{}{}", max, plan.k.bits, plan.v.bits,
                     down == max ? "" : ", down " + down);
}

class QualityBench {
 public:
  QualityBench(const QualityArguments& a, const Common& common)
      : a_(a),
        common_(common),
        network_(OpenNetwork(a.model)),
        tasks_(a.data, a.task_limit),
        text_(a.text),
        windows_(LoadWindows(text_, a.model, network_.config)),
        work_(a.work.empty() ? ModelName(a.model) + ".quality" : a.work),
        backend_(MakeBackend(common.device, false)->Name()),
        results_(
            work_, [this] { return Identity(); }, a.dry_run) {}

  void Run() {
    if (network_.packed) FailUsage("{} is quantized already", a_.model);
    PlanRows();
    if (a_.dry_run) pending_.clear();
    int64_t failed = 0;
    for (size_t i = 0; i < pending_.size(); ++i) {
      if (Interrupted()) Stop(i);
      const QualityLine& line = pending_[i];
      PrintProgress(i, line);
      try {
        Measure(line);
      } catch (const Error& error) {
        if (Interrupted()) Stop(i);
        const bool fits = error.code() != ErrorCode::kUsage;
        reasons_[RowArguments(*line.row)] = (fits ? "failed: " : "") + std::string(error.what());
        failed += fits ? 1 : 0;
      }
    }
    Report();
    if (failed > 0) Fail("{} rows failed; the table says why", failed);
  }

 private:
  Json Identity() const {
    Json files = {{"config.json", Digest(network_.config_json.dump())}};
    for (const std::string& path : network_.store->paths()) {
      files[fs::path(path).filename().string()] = Sha256FileOnce(path);
    }
    std::vector<int32_t> ids;
    for (const auto& window : windows_) ids.insert(ids.end(), window.begin(), window.end());
    return {{"nibble_version", NIBBLE_VERSION},
            {"backend", backend_},
            {"model", files},
            {"windows", windows_.size()},
            {"text_tokens", Digest(ids)},
            {"calibration_text",
             Digest(a_.calibration.empty() ? std::string(SampleCalibrationText())
                                           : ReadFile(a_.calibration, uint64_t{1} << 30))},
            {"calibration_windows", a_.calibration_windows},
            {"calibration_context", kBest.context},
            {"seed", a_.seed}};
  }

  std::string Checkpoint(const std::string& arguments) const {
    return fmt::format("{}/row-{}", work_, Digest(arguments).substr(0, 12));
  }

  QuantizeOptions Options(const PaperRow& row) const {
    return {.model = a_.model,
            .output = Checkpoint(RowArguments(row)),
            .recipe = RowRecipe(row),
            .calibration_text = a_.calibration,
            .effort = kBest,
            .calibration_windows = a_.calibration_windows,
            .seed = a_.seed,
            .device = common_.device,
            .resume = true,
            .force = true};
  }

  // Lists all lines of the report, and those of them that are still to be measured.
  void PlanRows() {
    const auto& suite = PaperSuite();
    lines_.push_back({&suite[0], &suite[0].rows[0]});
    for (const PaperSection& section : suite) {
      if (!a_.only.empty() && std::ranges::count(a_.only, section.name) == 0) continue;
      for (const PaperRow& row : section.rows) {
        if (&row == lines_[0].row || !Shows(section, row)) continue;
        lines_.push_back({&section, &row, WhySkipped(section, row)});
      }
    }
    for (const QualityLine& line : lines_) {
      if (line.section->tasks && line.skipped.empty()) asked_.insert(RowArguments(*line.row));
    }
    std::set<std::string> seen;
    for (const QualityLine& line : lines_) {
      if (!line.skipped.empty()) continue;
      const std::string arguments = RowArguments(*line.row);
      if (!seen.insert(arguments).second) continue;
      if (!Measured(arguments)) {
        pending_.push_back(line);
      } else {
        RemoveKnownFiles(Checkpoint(arguments),
                         IsCheckpointFile);  // of a run that was killed while removing it
      }
    }
  }

  // Returns whether the perplexity is measured, and the answers if a line asks for them.
  bool Measured(const std::string& arguments) const {
    const QualityResult* result = results_.Find(arguments);
    return result != nullptr && result->done() &&
           (!asked_.contains(arguments) || result->questions == tasks_.digest());
  }

  // Returns whether there is anything to say of the row: others have no figures of this model.
  bool Shows(const PaperSection& section, const PaperRow& row) const {
    return row.missing != kPublishedOnly ||
           std::ranges::any_of(PublishedFigures(), [&](const PublishedFigure& f) {
             return f.section == section.name && f.row == row.name && f.model == published_;
           });
  }

  std::string WhySkipped(const PaperSection& section, const PaperRow& row) const {
    if (!row.missing.empty()) return std::string(row.missing);
    if (section.tasks && tasks_.names().empty()) return "needs --data DIR";
    try {
      if (!row.recipe.empty()) MakePlan(network_.config, RowRecipe(row));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  void PrintProgress(size_t i, const QualityLine& line) const {
    const size_t left = pending_.size() - i;
    const std::string eta = i == 0
                                ? ""
                                : ", ETA " + DurationText(Seconds(start_) / static_cast<double>(i) *
                                                          static_cast<double>(left));
    Note("row {} of {}: {}: {}{}\n", i + 1, pending_.size(), line.section->name, line.row->name,
         eta);
  }

  [[noreturn]] void Stop(size_t i) const {
    throw Error(ErrorCode::kInterrupted,
                fmt::format("stopped in row {} of {}; the same command continues {}", i + 1,
                            pending_.size(), work_));
  }

  void Measure(const QualityLine& line) {
    const std::string arguments = RowArguments(*line.row), checkpoint = Checkpoint(arguments);
    QualityResult result = {.section = std::string(line.section->name),
                            .name = std::string(line.row->name),
                            .formats = "fp32"};
    const QualityResult* begun = results_.Find(arguments);
    if (begun != nullptr && fs::exists(checkpoint)) {
      result = *begun;
    } else if (!arguments.empty()) {
      const QuantizeReport report = Quantize(Options(*line.row), &unrotated_);
      result.formats = FormatsText(report.plan, report.config, RowRecipe(*line.row));
      result.bits_per_weight = report.quantized_bits_per_weight;
      result.quantize_seconds = report.seconds;
      results_.Set(arguments, result);
    }
    {
      const auto model = Load(arguments.empty() ? a_.model : checkpoint, common_, false);
      const PerplexityResult perplexity = Perplexity(*model, windows_);
      result.perplexity = perplexity.perplexity;
      result.eval_seconds = perplexity.seconds;
      if (asked_.contains(arguments)) {
        result.accuracies = tasks_.Accuracies(*model, a_.model);
        result.questions = tasks_.digest();
      }
    }
    results_.Set(arguments, result);
    RemoveKnownFiles(checkpoint, IsCheckpointFile);
  }

  void Report() {
    for (QualityLine& line : lines_) {
      if (!line.skipped.empty()) continue;
      const std::string arguments = RowArguments(*line.row);
      if (Measured(arguments)) {
        line.result = results_.Find(arguments);
      } else {
        line.skipped = reasons_.contains(arguments) ? reasons_[arguments] : "not measured";
      }
    }
    const QualityResult* fp32 = lines_[0].result;
    const QualityReport report = {.settings = Settings(),
                                  .perplexity = fp32 == nullptr ? 0 : fp32->perplexity,
                                  .published = published_,
                                  .tasks = tasks_.names(),
                                  .lines = lines_};
    const std::string markdown = Markdown(report);
    if (!a_.markdown.empty()) WriteFileAtomic(a_.markdown, markdown);
    common_.json ? PrintJson(ToJson(report)) : fmt::print("{}", markdown);
  }

  // The model whose published figures stand beside the results: the one that was named, or one of
  // the same shape.
  std::string_view Published() const {
    const std::string_view name =
        a_.published.empty() ? ShapeNameOf(network_.config) : std::string_view(a_.published);
    const auto models = PublishedModels();
    return std::ranges::count(models, name) > 0 ? name : std::string_view();
  }

  Json Settings() const {
    const auto count = static_cast<int64_t>(windows_.size());
    return {{"suite", a_.suite},
            {"model", ModelName(a_.model)},
            {"text", fs::path(a_.text.file).filename().string()},
            {"windows", count},
            {"context", windows_[0].size()},
            {"protocol", a_.text.protocol},
            {"BOS in each window", text_.windows.window_bos},
            {"calibration",
             a_.calibration.empty() ? "sample text" : fs::path(a_.calibration).filename().string()},
            {"calibration windows", a_.calibration_windows},
            {"questions of a task", a_.task_limit == 0 ? Json("all") : Json(a_.task_limit)},
            {"seed", a_.seed},
            {"backend", backend_}};
  }

  const QualityArguments& a_;
  const Common& common_;
  const Network network_;
  const QualityTasks tasks_;
  EvaluationText text_;
  const Windows windows_;
  const std::string work_, backend_;
  QualityResults results_;
  std::vector<QualityLine> lines_, pending_;
  const std::string_view published_ = Published();
  std::vector<LayerStatistics> unrotated_;
  std::set<std::string, std::less<>> asked_;    // arguments whose zero-shot accuracy a line shows
  std::map<std::string, std::string> reasons_;  // of rows that did not work, by arguments
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

void CheckSections(const std::vector<std::string>& only) {
  std::vector<std::string_view> known;
  for (const PaperSection& section : PaperSuite()) known.push_back(section.name);
  for (const std::string& name : only) {
    if (std::ranges::count(known, name) == 0) {
      FailUsage("--only {}: no such section; choose among {}", name, fmt::join(known, ", "));
    }
  }
}

}  // namespace

void AddQuality(CLI::App& bench, Common& common, Run& run) {
  const auto a = std::make_shared<QualityArguments>();
  CLI::App* verb = AddVerb(bench, common, "quality", "The papers' quality tables, resumable",
                           "nibble bench quality llama --text wiki.test.raw --calib wiki.train.raw "
                           "--only methods,cache");
  std::string sections;
  for (const PaperSection& s : PaperSuite()) sections += fmt::format("\n  {}: {}", s.name, s.title);
  AddModel(*verb, a->model, "Hugging Face directory or GGUF file")->required();
  verb->add_option("--suite", a->suite, "paper: the tables of QuaRot, QUIK, Atom, QServe, QuIP#")
      ->check(CLI::IsMember({"paper"}))
      ->capture_default_str();
  verb->add_option("--only", a->only, "Sections, separated by commas:" + sections)->delimiter(',');
  const auto models = PublishedModels();
  verb->add_option("--as", a->published,
                   "Print what the papers publish for this model beside (default: for one of the "
                   "same shape)")
      ->check(CLI::IsMember(std::vector<std::string>(models.begin(), models.end())));
  AddEvaluationText(*verb, a->text);
  verb->add_option("--calib", a->calibration, "Calibration text (default: a sample)");
  verb->add_option("--calib-windows", a->calibration_windows, "Windows drawn from it")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  verb->add_option("--data", a->data, "Directory of zero-shot tasks, as in eval tasks");
  verb->add_option("--limit", a->task_limit, "Only the first N questions of each; 0 = all")
      ->check(kNotNegative)
      ->capture_default_str();
  verb->add_option("--seed", a->seed, "Seed of rotations and windows")
      ->check(kNotNegative)
      ->capture_default_str();
  verb->add_option("--work", a->work,
                   "Directory of results.json and of one checkpoint at a time; the same command "
                   "continues it (default: MODEL.quality, here)");
  verb->add_flag("--dry-run", a->dry_run, "Show what is measured and what would be; do nothing");
  verb->add_option("--markdown", a->markdown, "Write the tables to this file too");
  verb->callback([a, &common, &run] {
    CheckSections(a->only);
    run = [a, &common] { QualityBench(*a, common).Run(); };
  });
}

}  // namespace nibble::cli
