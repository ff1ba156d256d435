// SPDX-License-Identifier: Apache-2.0
#include "apps/bench/quality_results.h"

#include <filesystem>

#include "io/atomic_file.h"
#include "quantize/run/work_directory.h"

namespace nibble::cli {
namespace {

Json ToJson(const std::string& arguments, const QualityResult& r) {
  return {{"arguments", arguments},
          {"section", r.section},
          {"name", r.name},
          {"formats", r.formats},
          {"bits_per_weight", r.bits_per_weight},
          {"quantize_seconds", r.quantize_seconds},
          {"perplexity", r.perplexity},
          {"eval_seconds", r.eval_seconds},
          {"accuracies", r.accuracies},
          {"questions", r.questions}};
}

QualityResult FromJson(const Json& json, const std::string& where) {
  std::map<std::string, double> accuracies;
  const Json stored = JsonGet<Json>(json, "accuracies", where);
  for (const auto& [task, value] : stored.items()) {
    accuracies[task] = JsonAs<double>(value, where + ": " + task);
  }
  return {.section = JsonGet<std::string>(json, "section", where),
          .name = JsonGet<std::string>(json, "name", where),
          .formats = JsonGet<std::string>(json, "formats", where),
          .bits_per_weight = JsonGet<double>(json, "bits_per_weight", where),
          .quantize_seconds = JsonGet<double>(json, "quantize_seconds", where),
          .perplexity = JsonGet<double>(json, "perplexity", where),
          .eval_seconds = JsonGet<double>(json, "eval_seconds", where),
          .accuracies = accuracies,
          .questions = JsonGet<std::string>(json, "questions", where)};
}

}  // namespace

QualityResults::QualityResults(const std::string& directory, const std::function<Json()>& identity,
                               bool read_only)
    : directory_(directory), file_(directory + "/results.json") {
  if (read_only && !std::filesystem::exists(file_)) return;
  identity_ = identity();
  if (!read_only) {
    std::error_code ec;
    std::filesystem::create_directories(directory, ec);
    if (ec) Fail("{}: cannot be created ({})", directory, ec.message());
    lock_.emplace(directory);
  }
  if (std::filesystem::exists(file_)) Read();
}

void QualityResults::Read() {
  const Json json = ReadJsonFile(file_);
  const std::string differing = DifferingFields(identity_, JsonGet<Json>(json, "identity", file_));
  if (!differing.empty()) {
    Fail("{} was begun with other settings ({}); repeat them, choose another --work or remove it",
         directory_, differing);
  }
  for (const Json& result : JsonGet<std::vector<Json>>(json, "results", file_)) {
    results_[JsonGet<std::string>(result, "arguments", file_)] = FromJson(result, file_);
  }
}

const QualityResult* QualityResults::Find(const std::string& arguments) const {
  const auto it = results_.find(arguments);
  return it == results_.end() ? nullptr : &it->second;
}

void QualityResults::Set(const std::string& arguments, const QualityResult& result) {
  results_[arguments] = result;
  Json list = Json::array();
  for (const auto& [key, value] : results_) list.push_back(ToJson(key, value));
  const Json json = {{"identity", identity_}, {"results", list}};
  WriteFileAtomic(file_, json.dump(2) + "\n");
}

}  // namespace nibble::cli
