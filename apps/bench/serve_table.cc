// SPDX-License-Identifier: Apache-2.0
// Atom's serving measurements (Zhao et al. 2023): the same requests on formats side by side, whose
// weights and caches share one budget of memory. Smaller ones leave room for more requests at once.
#include <optional>

#include "apps/bench/bench.h"
#include "apps/bench/serve_load.h"
#include "apps/bench/serve_rows.h"
#include "base/progress.h"
#include "measure/random_network.h"
#include "quantize/plan/make_plan.h"

namespace nibble::cli {
namespace {

class ServeTable {
 public:
  ServeTable(const BenchArguments& a, const Common& common)
      : a_(a),
        common_(common),
        config_(BenchShape(a)),
        backend_(MakeBackend(common.device, false)->Name()) {
    for (const std::string& text : a.formats.empty() ? DefaultFormats() : a.formats) {
      formats_.push_back(FindFormat(text, a_.changes));
      MakePlan(config_, formats_.back().recipe);  // what does not fit together fails before any run
    }
    // Ratios to 16 bits stand in rows as they come.
    std::ranges::stable_partition(formats_, &ServedFormat::wide);
    errands_ = DrawErrands(*std::ranges::max_element(a.streams) * a.repeats,
                           {a.longest_prompt, a.longest_answer}, config_.context);
  }

  void Run() {
    ProgressJob job;
    job.Expect(Stages());
    ServedRows rows(formats_, common_.json);
    rows.PrintHeader(
        fmt::format("{}, {} layers on {}, {} for weights and cache; prompts up to {} tokens, "
                    "answers up to {}; {} "
                    "requests a stream or {:g} s",
                    a_.shape, config_.layers, backend_, BytesText(a_.memory), a_.longest_prompt,
                    a_.longest_answer, a_.repeats, a_.seconds));
    for (const ServedFormat& format : formats_) MeasureFormat(format, rows);
    common_.json ? PrintJson(Report(rows)) : rows.PrintSummary();
    if (failed_ > 0) Fail("{} rows failed; they say why", failed_);
  }

 private:
  static std::string Title(const ServedFormat& format, int64_t streams) {
    return fmt::format("{} on {}", format.name, streams);
  }

  std::vector<ProgressJob::Stage> Stages() const {
    std::vector<ProgressJob::Stage> stages;
    for (const ServedFormat& format : formats_) {
      for (const int64_t streams : a_.streams) {
        stages.push_back({Title(format, streams), a_.seconds});
      }
    }
    return stages;
  }

  // The row as `work` leaves it; what that throws is the row's problem, and others go on.
  template <typename Work>
  ServedRow Tried(ServedRow row, Work&& work) {
    try {
      work(row);
    } catch (const std::exception& error) {
      row.problem = error.what();
      ++failed_;
    }
    return row;
  }

  void MeasureFormat(const ServedFormat& format, ServedRows& rows) {
    std::optional<Model> model;
    const ServedRow row = Tried({.format = &format}, [&](ServedRow& r) {
      Network network = RandomNetwork(config_, format.recipe, 1);
      r.weight_bytes = StoredBytes(network);
      if (r.weight_bytes > a_.memory) {
        r.problem = fmt::format("weights of {} do not fit into {}", BytesText(r.weight_bytes),
                                BytesText(a_.memory));
        return;
      }
      model.emplace(std::move(network), MakeBackend(common_.device, false));
    });
    if (!row.problem.empty()) return rows.Add(row);
    for (const int64_t streams : a_.streams) {
      rows.Add(Tried(row, [&](ServedRow& r) {
        r.streams = streams;
        const std::vector<Errand> errands(errands_.begin(),
                                          errands_.begin() + streams * a_.repeats);
        if (const auto options = Options(*model, errands, r)) {
          Measure(*model, errands, *options, r);
        }
      }));
    }
  }

  // Pages for what the weights leave, and for no more than all streams could come to need; nullopt,
  // and the row's problem, where not even one text fits.
  std::optional<SchedulerOptions> Options(Model& model, const std::vector<Errand>& errands,
                                          ServedRow& row) const {
    SchedulerOptions options = {
        .max_batch = row.streams, .max_waiting = 1 << 20, .prompt_tokens = a_.tokens};
    const KvGroups& groups = model.kv_groups();
    const auto page = static_cast<double>(groups.page_bytes());
    const int64_t longest = LongestText(errands);
    const int64_t one = groups.MaxPages(PagesOf(longest), options.MaxStep(model));
    const double left = a_.memory - row.weight_bytes;
    options.pages = std::min(static_cast<int64_t>(left / page), row.streams * one);
    row.cache_bytes = page * static_cast<double>(options.pages);
    if (options.pages >= one) return options;
    row.problem = fmt::format("a text of {} tokens takes {} of cache, weights leave {}", longest,
                              BytesText(page * static_cast<double>(one)), BytesText(left));
    return std::nullopt;
  }

  void Measure(Model& model, const std::vector<Errand>& errands, const SchedulerOptions& options,
               ServedRow& row) const {
    // Short requests first, so that kernels are loaded and buffers have grown.
    RunLoad(model,
            {.streams = row.streams,
             .errands = std::vector<Errand>(static_cast<size_t>(row.streams), {32, 4}),
             .seconds = a_.seconds / 10},
            options);
    const auto count = static_cast<double>(errands.size());
    Progress progress(Title(*row.format, row.streams), "answers", count);
    const LoadOutcome o = RunLoad(
        model, {.streams = row.streams, .errands = errands, .endless = true, .seconds = a_.seconds},
        options, [&](const LoadOutcome& so_far) {
          const double by_time = std::min(so_far.seconds / a_.seconds, 1.0);
          progress.Update(std::max(static_cast<double>(so_far.answered), by_time * count));
        });
    row.seconds = o.seconds;
    row.tokens_per_second = o.written_per_second();
    row.read_per_second = o.read_per_second();
    row.between_ms = 1e3 * Quantile(o.between_tokens, 0.5);
    row.between_99_ms = 1e3 * Quantile(o.between_tokens, 0.99);
    row.first_ms = 1e3 * Quantile(o.first_token, 0.5);
    row.first_99_ms = 1e3 * Quantile(o.first_token, 0.99);
    row.answered = o.answered;
    row.most_running = o.most_running;
    row.most_cache_bytes = static_cast<double>(o.most_pages * model.kv_groups().page_bytes());
    row.preemptions = o.preemptions;
  }

  Json Report(const ServedRows& rows) const {
    return {{"shape", a_.shape},
            {"layers", config_.layers},
            {"backend", backend_},
            {"memory", a_.memory},
            {"longest_prompt", a_.longest_prompt},
            {"longest_answer", a_.longest_answer},
            {"requests_per_stream", a_.repeats},
            {"rows", rows.RowsJson()},
            {"summary", rows.SummaryJson()}};
  }

  const BenchArguments& a_;
  const Common& common_;
  const ModelConfig config_;
  const std::string backend_;
  int64_t failed_ = 0;
  std::vector<ServedFormat> formats_;
  std::vector<Errand> errands_;
};

}  // namespace

void RunServeTable(const BenchArguments& a, const Common& common) {
  ServeTable(a, common).Run();
}

}  // namespace nibble::cli
