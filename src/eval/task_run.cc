// SPDX-License-Identifier: Apache-2.0
#include "eval/task_run.h"

#include <filesystem>

#include "base/interrupt.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "eval/results_file.h"
#include "io/sha256.h"
#include "models/checkpoint/manifest.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

std::string DataFile(const TaskOptions& options, const std::string& task) {
  return (fs::path(options.data) / (task + ".jsonl")).string();
}

// One digest of all files of a model; a checkpoint has the files' own in its manifest.
std::string ModelDigest(const Network& network) {
  const Manifest files =
      network.packed ? ReadManifest(network.directory) : DigestFiles(network.directory);
  std::string text;
  for (const auto& [name, file] : files) text += fmt::format("{} {}\n", name, file.sha256);
  return Sha256Text(text);
}

// Everything that decides the answers, byte for byte.
Json Identity(Model& model, const TaskOptions& options) {
  Json identity = {{"model", ModelDigest(model.network())},
                   {"backend", model.backend().Name()},
                   {"decoded", options.decoded},
                   {"special_tokens", options.special},
                   {"limit", options.limit}};
  for (const std::string& task : options.tasks) {
    identity[task + ".jsonl"] = Sha256File(DataFile(options, task));
  }
  return identity;
}

std::vector<Question> Encode(const Tokenizer& tokenizer, const std::vector<TaskQuestion>& questions,
                             bool special, const ModelLimits& limits) {
  std::vector<Question> encoded(questions.size());
  ParallelFor(questions.size(), [&](size_t i) {
    const TaskQuestion& q = questions[i];
    for (const auto& [text, continuation] : q.pairs) {
      encoded[i].push_back(EncodePair(tokenizer, text, continuation, special, limits, q.where));
    }
  });
  return encoded;
}

// Takes a whole batch's answers from those of an earlier run; false if one is missing.
bool Recall(const ResultsFile::Answers& known, const std::string& task,
            std::span<const Question> batch, int64_t first,
            std::span<std::vector<Likelihood>> answers) {
  for (size_t i = 0; i < batch.size(); ++i) {
    const auto found = known.find({task, first + static_cast<int64_t>(i)});
    if (found == known.end() || found->second.size() != batch[i].size()) return false;
    answers[i] = found->second;
  }
  return true;
}

struct LoadedTask {
  const TaskSpec& spec;
  std::vector<TaskQuestion> questions;
};

std::vector<LoadedTask> LoadTasks(const TaskOptions& options) {
  std::vector<LoadedTask> tasks;
  for (const std::string& name : options.tasks) {
    const TaskSpec& spec = FindTask(name);
    tasks.push_back({spec, LoadTask(spec, DataFile(options, name), options.limit)});
  }
  return tasks;
}

}  // namespace

std::vector<TaskResult> EvaluateTasks(Model& model, const Tokenizer& tokenizer,
                                      const TaskOptions& options) {
  const std::vector<LoadedTask> tasks = LoadTasks(options);
  size_t total = 0, done = 0;
  for (const LoadedTask& task : tasks) total += task.questions.size();
  std::unique_ptr<ResultsFile> kept;
  if (!options.results.empty()) {
    kept = std::make_unique<ResultsFile>(options.results, Identity(model, options), options.resume);
  }
  LikelihoodRunner runner(model);
  Progress progress("tasks", "questions", static_cast<double>(total));
  std::vector<TaskResult> results;
  for (const auto& [spec, questions] : tasks) {
    const std::string name(spec.name);
    const auto encoded = Encode(tokenizer, questions, options.special, ModelLimits(model));
    std::vector<std::vector<Likelihood>> answers(questions.size());
    // Batches are the same in every run and kept as a whole: what they hold never decides a bit.
    for (size_t first = 0, count = 0; first < encoded.size(); first += count, done += count) {
      const auto rest = std::span(encoded).subspan(first);
      count = BatchSize(rest);
      const auto index = static_cast<int64_t>(first);
      const auto batch_answers = std::span(answers).subspan(first, count);
      if (kept && Recall(kept->answers(), name, rest.first(count), index, batch_answers)) continue;
      if (Interrupted()) {  // looked at once: it may come at any time
        if (!kept) Fail("interrupted");
        throw Error(ErrorCode::kInterrupted,
                    fmt::format("stopped after {} of {} questions; --resume continues {}", done,
                                total, options.results));
      }
      progress.Update(static_cast<double>(done), name);
      auto fresh = runner.Run(rest.first(count));
      for (size_t i = 0; i < count; ++i) {
        RequireFinite(model, fresh[i], questions[first + i].where);
      }
      if (kept) kept->Append(name, index, fresh);
      std::move(fresh.begin(), fresh.end(), batch_answers.begin());
    }
    results.push_back(
        {name, static_cast<int64_t>(questions.size()), Metrics(spec, questions, answers)});
  }
  return results;
}

}  // namespace nibble
