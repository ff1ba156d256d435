// SPDX-License-Identifier: Apache-2.0
// GPT-2's two files: vocab.json, {token: id}, and merges.txt, "a b" a line, the first ones first.
#include <simdjson.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "source/byte_level_tokenizer.h"
#include "source/model_source.h"
#include "source/tokenizer_files.h"

namespace nibble {
namespace {

struct MergesFamily {
  std::string_view model_type;
  WordPattern words;
  bool nfc = false;
};
constexpr MergesFamily kMergesFamilies[] = {{"opt", {.bos = true}},
                                            {"qwen2", {.pattern = kQwen2Pattern}, true}};

const MergesFamily& FindMergesFamily(const std::string& name, const std::string& where) {
  for (const MergesFamily& family : kMergesFamilies) {
    if (family.model_type == name) return family;
  }
  Fail(
      "{}: it does not say how words are cut, and config.json's model_type \"{}\" is none of opt, "
      "qwen2; put the model's tokenizer.json beside it",
      where, name);
}

Json ReadMerges(const std::string& path) {
  const std::string text = ReadFile(path, kMaxDocumentBytes);
  Json merges = Json::array();
  for (std::string_view rest = text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) merges.push_back(line);
  }
  return merges;
}

// The ids of those of these tokens that the vocabulary has.
std::vector<NamedToken> FindTokens(const std::string& vocabulary, const std::string& where,
                                   const std::vector<std::string>& names) {
  simdjson::dom::parser parser;
  simdjson::dom::object object;
  if (parser.parse(vocabulary).get(object) != simdjson::SUCCESS) {
    Fail("{}: it is no JSON object of tokens and ids; get the file again", where);
  }
  std::vector<NamedToken> found;
  for (const std::string& name : names) {
    int64_t id = 0;
    const auto error = object.at_key(name).get(id);
    if (error == simdjson::NO_SUCH_FIELD) continue;
    if (error != simdjson::SUCCESS || id < 0) Fail("{}: {} has no id", where, name);
    found.push_back({id, name});
  }
  return found;
}

std::vector<NamedToken> OfName(const std::vector<NamedToken>& tokens,
                               const std::optional<std::string>& name) {
  for (const NamedToken& token : tokens) {
    if (token.content == name) return {token};
  }
  return {};
}

}  // namespace

std::string MergesFileDocument(const std::string& vocabulary, const std::string& where,
                               const std::string& family_name, const TokenizerConfig& config) {
  const MergesFamily& family = FindMergesFamily(family_name, where);
  std::vector<std::string> names;
  for (const auto& name : {config.bos, config.eos, config.unk, config.pad}) {
    if (name && std::ranges::count(names, *name) == 0) names.push_back(*name);
  }
  const std::vector<NamedToken> special = FindTokens(vocabulary, where, names);
  TokenizerSurroundings around = {.added_tokens = config.added_tokens};
  if (around.added_tokens.empty()) {
    for (const auto& [id, content] : special) {
      around.added_tokens.push_back(AddedToken(id, content, true));
    }
  }
  const bool bos = config.add_bos.value_or(family.words.bos), eos = config.add_eos.value_or(false);
  around.frame = TemplateFrame(bos ? OfName(special, config.bos) : std::vector<NamedToken>(),
                               eos ? OfName(special, config.eos) : std::vector<NamedToken>());
  const std::string merges = std::filesystem::path(where).replace_filename("merges.txt");
  const Json model = {{"type", "BPE"}, {"merges", ReadMerges(merges)}};
  return DocumentText(around, family.nfc ? Json{{"type", "NFC"}} : Json(),
                      ByteLevelWords(family.words), ByteLevelComponent(true), model, vocabulary);
}

}  // namespace nibble
