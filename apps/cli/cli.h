// SPDX-License-Identifier: Apache-2.0
// Declarations that the verbs share. Each verb is one file with one Add function that declares its
// options and leaves its work in `run`; program.cc parses, runs and makes exceptions exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "base/json.h"
#include "engine/model.h"
#include "models/import/open_network.h"

namespace nibble::cli {

// Options of every verb.
struct Common {
  int threads = 0;
  std::string device = "cpu";
  bool json = false;
};

using Run = std::function<void()>;

void AddQuantize(CLI::App& app, Common& common, Run& run);
void AddEval(CLI::App& app, Common& common, Run& run);
void AddEvalTasks(CLI::App& eval, Common& common, Run& run);  // verbs of eval
void AddGenerate(CLI::App& app, Common& common, Run& run);
void AddChat(CLI::App& app, Common& common, Run& run);
void AddServe(CLI::App& app, Common& common, Run& run);
void AddTokenize(CLI::App& app, Common& common, Run& run);
void AddInspect(CLI::App& app, Common& common, Run& run);
void AddRepack(CLI::App& app, Common& common, Run& run);
void AddReport(CLI::App& app, Common& common, Run& run);

// A subcommand with the common options; `example` is shown below its --help.
CLI::App* AddVerb(CLI::App& app, Common& common, const std::string& name,
                  const std::string& description, const std::string& example);

// Names of models, as ResolveModel understands them.
CLI::Validator ModelName();
CLI::Option* AddModel(CLI::App& verb, std::string& model,
                      const std::string& kind = "Model directory, GGUF file or checkpoint");
// Options for the weights of a float model while it is loaded.
struct Loading {
  int bits = 8;
  bool keep = true;  // for the next start (quantize/run/rounded_cache.h)
};
// Adds `--load-bits`.
void AddLoadBits(CLI::App& verb, int& bits);
// Adds `--load-bits` and `--no-keep`.
void AddLoading(CLI::App& verb, Loading& loading);

// The network on the backend of `common`, with a line on standard error if a tile plane is there
// that cannot be used, or if weights that were not quantized are rounded.
std::unique_ptr<Model> Load(Network network, const Common& common, bool decoded,
                            const Loading& loading);
inline std::unique_ptr<Model> Load(const std::string& model, const Common& common, bool decoded,
                                   const Loading& loading = {.bits = 32}) {
  return Load(OpenNetwork(model), common, decoded, loading);
}

// A CLI::Range that refuses NaN, which CLI::Range itself lets pass.
CLI::Validator NumberBetween(double min, double max);

inline const CLI::Validator kNotNegative(
    [](std::string& value) {
      return value.starts_with('-') ? "must be 0 or more, not " + value : std::string();
    },
    "0 or more");

void FlushOutput();                // throws if standard output could not be written
void PrintJson(const Json& json);  // one line on standard output

// A file's text, or that of standard input for "-"; at most 1 GiB.
std::string ReadText(const std::string& path);
// The JSON value in each line that is not empty; `where` is "path:3".
void ForEachLine(const std::string& path,
                 const std::function<void(const Json& line, const std::string& where)>& use);

// Columns padded to their widest cell; the first row is the header. Numbers are right-aligned.
// Cells may hold texts from files.
std::string Table(std::vector<std::vector<std::string>> rows);

}  // namespace nibble::cli
