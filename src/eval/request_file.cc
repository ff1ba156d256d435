// SPDX-License-Identifier: Apache-2.0
#include "eval/request_file.h"

#include <algorithm>
#include <optional>

#include "base/interrupt.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "eval/json_lines.h"

namespace nibble {
namespace {

struct Line {
  Json context, continuation;  // strings or arrays of ids
  std::string where;
};

std::vector<Line> ReadLines(const std::string& path) {
  std::vector<Line> lines;
  ReadJsonLines(path, [&](const Json& object, const std::string& where) {
    lines.push_back({JsonGet<Json>(object, "context", where),
                     JsonGet<Json>(object, "continuation", where), where});
    return true;
  });
  if (lines.empty()) Fail("{}: no requests", path);
  return lines;
}

// tokenizer: without, the line has ids.
Request Encode(const std::optional<Tokenizer>& tokenizer, const Line& line, bool special,
               const ModelLimits& limits) {
  const std::string first = line.where + ": context", second = line.where + ": continuation";
  if (line.context.is_array()) {
    return JoinPair(JsonAs<std::vector<int32_t>>(line.context, first),
                    JsonAs<std::vector<int32_t>>(line.continuation, second), limits, line.where);
  }
  return EncodePair(*tokenizer, JsonAs<std::string>(line.context, first),
                    JsonAs<std::string>(line.continuation, second), special, limits, line.where);
}

}  // namespace

std::vector<Likelihood> EvaluateRequests(Model& model, const std::string& source,
                                         const std::string& path, bool special) {
  const std::vector<Line> lines = ReadLines(path);
  std::optional<Tokenizer> tokenizer;
  if (!std::ranges::all_of(lines, [](const Line& line) { return line.context.is_array(); })) {
    tokenizer = Tokenizer::Load(source);
  }
  std::vector<Request> requests(lines.size());
  ParallelFor(lines.size(), [&](size_t i) {
    requests[i] = Encode(tokenizer, lines[i], special, ModelLimits(model));
  });
  std::vector<Question> questions;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i == 0 || lines[i].context != lines[i - 1].context) questions.emplace_back();
    questions.back().push_back(std::move(requests[i]));
  }
  LikelihoodRunner runner(model);
  Progress progress("requests", "requests", static_cast<double>(lines.size()));
  std::vector<Likelihood> results;
  for (std::span<const Question> rest = questions; !rest.empty();) {
    if (Interrupted()) Fail("interrupted");
    progress.Update(static_cast<double>(results.size()));
    const size_t count = BatchSize(rest);
    for (const auto& answers : runner.Run(rest.first(count))) {
      RequireFinite(model, answers, lines[results.size()].where);
      results.insert(results.end(), answers.begin(), answers.end());
    }
    rest = rest.subspan(count);
  }
  return results;
}

}  // namespace nibble
