// SPDX-License-Identifier: Apache-2.0
// The first byte chooses a task, the rest are its JSON Lines. Questions that come out have their
// right answer among the choices, and a choice can be made whatever the model answers.
#include "eval/tasks.h"
#include "fuzz_input.h"

namespace nibble {
namespace {

void Use(std::string_view input) {
  static const ScratchDirectory directory;
  if (input.empty()) return;
  const TaskSpec& task = TaskTable()[static_cast<uint8_t>(input[0]) % TaskTable().size()];
  const auto questions = LoadTask(task, directory.Write("task.jsonl", input.substr(1)), 0);
  NIBBLE_CHECK(!questions.empty());
  std::vector<std::vector<Likelihood>> answers;
  for (const TaskQuestion& question : questions) {
    const auto choices = static_cast<int64_t>(question.pairs.size());
    NIBBLE_CHECK(choices >= 1 && question.lengths.size() == question.pairs.size());
    NIBBLE_CHECK(question.gold >= 0 && question.gold < choices, "{}", question.gold);
    auto& answer = answers.emplace_back(question.pairs.size());
    for (size_t i = 0; i < answer.size(); ++i) answer[i].log_likelihood = -double(i * 7 % 5);
    NIBBLE_CHECK(NormalizedChoice(answer, question) < choices);
  }
  for (const Metric& metric : Metrics(task, questions, answers)) {
    NIBBLE_CHECK(metric.name == "perplexity" || (metric.value >= 0 && metric.value <= 1));
  }
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
