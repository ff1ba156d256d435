// SPDX-License-Identifier: Apache-2.0
#include "eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <span>

#include "base/interrupt.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "engine/log_sum_exp.h"

namespace nibble {
namespace {

void StopIfInterrupted() {
  if (Interrupted()) throw Error(ErrorCode::kFailed, "interrupted");
}

class WindowRunner {
 public:
  explicit WindowRunner(Model& model) : model_(model), cache_(model.MakeCache()) {}

  const float* Hidden(const std::vector<int32_t>& ids) {
    for (int32_t id : ids) {
      if (id >= model_.config().vocab_size) {
        Fail("the tokenizer gives id {}, the model knows {} tokens", id,
             model_.config().vocab_size);
      }
    }
    cache_.Clear();
    const Model::Sequence sequence = {ids, &cache_};
    return model_.Forward({&sequence, 1});
  }

  const float* Logits(const float* hidden, int64_t first, int64_t rows) {
    return model_.Logits(hidden + first * model_.config().hidden_size, rows);
  }

 private:
  Model& model_;
  KvCache cache_;
};

// Throws unless the mean loss of the window at `index` has a finite exponential, which is what
// people read.
void RequireUsable(const Model& model, double loss, size_t index, const Windows& windows) {
  if (std::isfinite(std::exp(loss))) return;
  model.FailNotFinite(fmt::format("window {} of {}", index + 1, windows.size()));
}

size_t Top(std::span<const float> row) {
  return static_cast<size_t>(std::max_element(row.begin(), row.end()) - row.begin());
}

// Calls visit(row, target) for the predictions of tokens 1..T-1 inside a block, in parallel.
void ForPredictions(const std::vector<int32_t>& ids, int64_t first, int64_t rows,
                    const std::function<void(int64_t row, int32_t target)>& visit) {
  const int64_t last = static_cast<int64_t>(ids.size()) - 1;
  const int64_t count = std::min(rows, last - first);
  ParallelFor(static_cast<size_t>(std::max<int64_t>(count, 0)), [&](size_t row) {
    visit(static_cast<int64_t>(row), ids[static_cast<size_t>(first) + row + 1]);
  });
}

double Mean(std::span<const double> values) {
  double sum = 0;
  for (double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

// The standard error of the mean, from the scatter of independent values.
double StandardError(const std::vector<double>& values) {
  if (values.size() < 2) return 0;
  const double mean = Mean(values), count = static_cast<double>(values.size());
  double squares = 0;
  for (double value : values) squares += (value - mean) * (value - mean);
  return std::sqrt(squares / (count - 1) / count);
}

}  // namespace

PerplexityResult Perplexity(Model& model, const Windows& windows) {
  const auto start = std::chrono::steady_clock::now();
  const int64_t context = static_cast<int64_t>(windows.at(0).size());
  const size_t vocab = static_cast<size_t>(model.config().vocab_size);
  PerplexityResult result = {.windows = static_cast<int64_t>(windows.size()), .context = context};
  WindowRunner runner(model);
  Progress progress("perplexity", "tokens", static_cast<double>(result.windows * context));
  std::vector<double> loss(static_cast<size_t>(context - 1));
  for (const auto& ids : windows) {
    StopIfInterrupted();
    const float* hidden = runner.Hidden(ids);
    for (int64_t first = 0; first < context; first += kLogitRows) {
      const int64_t rows = std::min(kLogitRows, context - first);
      const float* logits = runner.Logits(hidden, first, rows);
      ForPredictions(ids, first, rows, [&](int64_t row, int32_t target) {
        const std::span<const float> l(logits + static_cast<size_t>(row) * vocab, vocab);
        loss[static_cast<size_t>(first + row)] =
            LogSumExp(l) - static_cast<double>(l[static_cast<size_t>(target)]);
      });
    }
    result.window_nll.push_back(Mean(loss));
    RequireUsable(model, result.window_nll.back(), result.window_nll.size() - 1, windows);
    progress.Update(static_cast<double>(result.window_nll.size()) * static_cast<double>(context),
                    fmt::format("so far {:.3f}", std::exp(Mean(result.window_nll))));
  }
  result.nll = Mean(result.window_nll);
  result.perplexity = std::exp(result.nll);
  result.tokens = result.windows * (context - 1);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

namespace {

// Divergence and losses of one model's predictions beside the reference's.
class ModelDivergence {
 public:
  ModelDivergence(Model& model, const Windows& windows)
      : model_(model),
        runner_(model),
        windows_(windows),
        per_window_(windows.at(0).size() - 1),
        kl_(windows.size() * per_window_),
        loss_(kl_),
        reference_loss_(kl_),
        agree_(kl_) {}

  void Begin(size_t window) { window_ = window, hidden_ = runner_.Hidden(windows_[window]); }
  // reference: logits [rows, vocab] of the window's tokens from `first` on.
  void Compare(int64_t first, int64_t rows, const float* reference) {
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    const float* const logits = runner_.Logits(hidden_, first, rows);
    ForPredictions(windows_[window_], first, rows, [&](int64_t row, int32_t target) {
      const size_t offset = static_cast<size_t>(row) * vocab;
      const std::span<const float> q(logits + offset, vocab), p(reference + offset, vocab);
      const size_t i = window_ * per_window_ + static_cast<size_t>(first + row);
      const size_t t = static_cast<size_t>(target);
      kl_[i] = Divergence(p, q);
      loss_[i] = LogSumExp(q) - static_cast<double>(q[t]);
      reference_loss_[i] = LogSumExp(p) - static_cast<double>(p[t]);
      agree_[i] = Top(p) == Top(q) ? 1 : 0;
    });
  }
  void End(const Model& reference) {
    const auto mean = [&](const std::vector<double>& losses) {
      return Mean(std::span(losses).subspan(window_ * per_window_, per_window_));
    };
    RequireUsable(model_, mean(loss_), window_, windows_);
    RequireUsable(reference, mean(reference_loss_), window_, windows_);
    differences_.push_back(mean(loss_) - mean(reference_loss_));
  }
  KlResult Result() {
    KlResult result = {.kl_mean = Mean(kl_),
                       .top1_agreement = Mean(agree_),
                       .perplexity = std::exp(Mean(loss_)),
                       .reference_perplexity = std::exp(Mean(reference_loss_)),
                       .loss_difference = Mean(differences_),
                       .loss_difference_stderr = StandardError(differences_),
                       .tokens = static_cast<int64_t>(kl_.size())};
    const auto p99 = kl_.begin() + static_cast<int64_t>(kl_.size() * 99 / 100);
    std::nth_element(kl_.begin(), p99, kl_.end());
    result.kl_p99 = *p99;
    return result;
  }

 private:
  Model& model_;
  WindowRunner runner_;
  const Windows& windows_;
  size_t per_window_, window_ = 0;
  const float* hidden_ = nullptr;
  std::vector<double> kl_, loss_, reference_loss_, agree_;  // of predictions
  std::vector<double> differences_;                         // of windows
};

}  // namespace

std::vector<KlResult> KlDivergences(std::span<Model* const> models, Model& reference,
                                    const Windows& windows) {
  const int64_t context = static_cast<int64_t>(windows.at(0).size());
  std::vector<ModelDivergence> divergences;
  for (Model* model : models) {
    if (model->config().vocab_size != reference.config().vocab_size) {
      FailUsage("the models have vocabularies of {} and {} tokens", model->config().vocab_size,
                reference.config().vocab_size);
    }
    divergences.emplace_back(*model, windows);
  }
  WindowRunner runner(reference);
  Progress progress("divergence", "tokens",
                    static_cast<double>(windows.size()) * static_cast<double>(context));
  for (size_t w = 0; w < windows.size(); ++w) {
    StopIfInterrupted();
    const float* const hidden = runner.Hidden(windows[w]);
    for (ModelDivergence& divergence : divergences) divergence.Begin(w);
    for (int64_t first = 0; first < context; first += kLogitRows) {
      const int64_t rows = std::min(kLogitRows, context - first);
      const float* const logits = runner.Logits(hidden, first, rows);
      for (ModelDivergence& divergence : divergences) divergence.Compare(first, rows, logits);
    }
    for (ModelDivergence& divergence : divergences) divergence.End(reference);
    progress.Update(static_cast<double>(w + 1) * static_cast<double>(context));
  }
  std::vector<KlResult> results;
  for (ModelDivergence& divergence : divergences) results.push_back(divergence.Result());
  return results;
}

KlResult KlDivergence(Model& model, Model& reference, const Windows& windows) {
  Model* const one = &model;
  return KlDivergences({&one, 1}, reference, windows)[0];
}

}  // namespace nibble
