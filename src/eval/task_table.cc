// SPDX-License-Identifier: Apache-2.0
#include "eval/hellaswag.h"
#include "eval/tasks.h"

namespace nibble {
namespace {

using Kind = TaskSpec::Kind;

// clang-format off
constexpr TaskSpec kTasks[] = {
    // name            kind                  context            ends with      continuation    acc_norm
    {"piqa",           Kind::kContinuations, "query",           "Answer:",     "choices",      true},
    {"winogrande",     Kind::kContexts,      "context_options", "",            "continuation", false},
    {"arc_easy",       Kind::kContinuations, "query",           "\nAnswer:",   "choices",      true},
    {"arc_challenge",  Kind::kContinuations, "query",           "\nAnswer:",   "choices",      true},
    {"lambada_openai", Kind::kLastWord,      "context",         "",            "continuation", false},
    {"hellaswag",      Kind::kContinuations, "query",           "",            "choices",      true, PrepareHellaSwag},
};
// clang-format on

}  // namespace

std::span<const TaskSpec> TaskTable() {
  return kTasks;
}

const TaskSpec& FindTask(std::string_view name) {
  std::string known;
  for (const TaskSpec& task : kTasks) {
    if (task.name == name) return task;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", task.name);
  }
  FailUsage("unknown task \"{}\"; known: {}", name, known);
}

}  // namespace nibble
