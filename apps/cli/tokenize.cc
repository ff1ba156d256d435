// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "apps/cli/cli.h"
#include "base/file.h"
#include "text/tokenizer.h"

namespace nibble::cli {
namespace {

struct Arguments {
  std::string model;
  std::optional<std::string> text, file;
  std::vector<int32_t> ids;
  bool no_special = false;
};

void RunTokenize(const Arguments& a, const Common& common) {
  if (a.text.has_value() == a.file.has_value()) FailUsage("pass either --text T or --file F");
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  const std::string text = a.text ? *a.text : ReadFile(*a.file, uint64_t{1} << 30);
  const std::vector<int32_t> ids = tokenizer.Encode(text, !a.no_special);
  if (common.json) {
    PrintJson({{"ids", ids}});
    return;
  }
  fmt::print("{}\n", fmt::join(ids, ","));
}

void RunDetokenize(const Arguments& a, const Common& common) {
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  for (int32_t id : a.ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      FailUsage("id {} is outside the vocabulary of {}", id, tokenizer.vocab_size());
    }
  }
  const std::string text = tokenizer.Decode(a.ids, a.no_special);
  if (common.json) {
    PrintJson({{"text", text}});
  } else {
    fmt::print("{}\n", text);
  }
}

}  // namespace

void AddTokenize(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<Arguments>();
  CLI::App* tokenize = AddVerb(app, common, "tokenize", "Text to token ids",
                               "nibble tokenize llama --text \"Hello\"");
  AddModel(*tokenize, a->model)->required();
  tokenize->add_option("--text", a->text, "Text");
  tokenize->add_option("--file", a->file, "Text file");
  tokenize->add_flag("--no-special", a->no_special, "Do not add BOS and the like");
  tokenize->callback([a, &common, &run] { run = [a, &common] { RunTokenize(*a, common); }; });
  CLI::App* detokenize = AddVerb(app, common, "detokenize", "Token ids to text",
                                 "nibble detokenize llama --ids 1,15043");
  AddModel(*detokenize, a->model)->required();
  detokenize->add_option("--ids", a->ids, "Ids, separated by commas")->delimiter(',')->required();
  detokenize->add_flag("--no-special", a->no_special, "Leave special tokens out");
  detokenize->callback([a, &common, &run] { run = [a, &common] { RunDetokenize(*a, common); }; });
}

}  // namespace nibble::cli
