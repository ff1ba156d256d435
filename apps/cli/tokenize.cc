// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <optional>

#include "apps/cli/cli.h"
#include "text/tokenizer.h"

namespace nibble::cli {
namespace {

struct TokenizeArguments {
  std::string model;
  std::optional<std::string> text, file, batch;
  std::vector<int32_t> ids;
  bool no_special = false;
};

void RunTokenize(const TokenizeArguments& a, const Common& common) {
  if (a.text.has_value() + a.file.has_value() + a.batch.has_value() != 1)
    FailUsage("pass one of --text T, --file F and --batch F");
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  if (a.batch) {
    ForEachLine(*a.batch, [&](const Json& line, const std::string& where) {
      const auto text = JsonGet<std::string>(line, "text", where);
      PrintJson({{"ids", tokenizer.Encode(text, !a.no_special)}});
    });
    return;
  }
  const std::string text = a.text ? *a.text : ReadText(*a.file);
  const std::vector<int32_t> ids = tokenizer.Encode(text, !a.no_special);
  if (common.json) {
    PrintJson({{"ids", ids}});
    return;
  }
  fmt::print("{}\n", fmt::join(ids, ","));
}

std::string TextOf(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool no_special) {
  for (int32_t id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      FailUsage("id {} is outside the vocabulary of {}", id, tokenizer.vocab_size());
    }
  }
  return tokenizer.Decode(ids, no_special);
}

void RunDetokenize(const TokenizeArguments& a, const Common& common) {
  if (a.ids.empty() != a.batch.has_value()) FailUsage("pass one of --ids and --batch F");
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  if (a.batch) {
    ForEachLine(*a.batch, [&](const Json& line, const std::string& where) {
      const auto ids = JsonGet<std::vector<int32_t>>(line, "ids", where);
      PrintJson({{"text", TextOf(tokenizer, ids, a.no_special)}});
    });
    return;
  }
  const std::string text = TextOf(tokenizer, a.ids, a.no_special);
  if (common.json) {
    PrintJson({{"text", text}});
  } else {
    fmt::print("{}\n", text);
  }
}

}  // namespace

void AddTokenize(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<TokenizeArguments>();
  CLI::App* tokenize = AddVerb(app, common, "tokenize", "Text to token ids",
                               "nibble tokenize llama --text \"Hello\"");
  AddModel(*tokenize, a->model)->required();
  tokenize->add_option("--text", a->text, "Text");
  tokenize->add_option("--file", a->file, "Text file; -: standard input");
  tokenize->add_option("--batch", a->batch,
                       "A {\"text\": TEXT} in each line of a file (-: standard input); ids are "
                       "lines as of --json");
  tokenize->add_flag("--no-special", a->no_special, "Do not add BOS and the like");
  tokenize->callback([a, &common, &run] { run = [a, &common] { RunTokenize(*a, common); }; });
  CLI::App* detokenize = AddVerb(app, common, "detokenize", "Token ids to text",
                                 "nibble detokenize llama --ids 1,15043");
  AddModel(*detokenize, a->model)->required();
  detokenize->add_option("--ids", a->ids, "Ids, separated by commas")->delimiter(',');
  detokenize->add_option("--batch", a->batch,
                         "An {\"ids\": [1, 15043]} in each line of a file (-: standard input)");
  detokenize->add_flag("--no-special", a->no_special, "Leave special tokens out");
  detokenize->callback([a, &common, &run] { run = [a, &common] { RunDetokenize(*a, common); }; });
}

}  // namespace nibble::cli
