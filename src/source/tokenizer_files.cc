// SPDX-License-Identifier: Apache-2.0
#include "source/tokenizer_files.h"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/file.h"
#include "source/model_source.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVocabulary = "vocab.json";

// A token is a text, or an object with its "content".
std::optional<std::string> FindToken(const Json& json, const std::string& key,
                                     const std::string& where) {
  const auto value = JsonFind<Json>(json, key, where);
  if (!value) return std::nullopt;
  if (!value->is_object()) return JsonAs<std::string>(*value, where + ": " + key);
  return JsonGet<std::string>(*value, "content", where + ": " + key);
}

// "added_tokens_decoder": {"32000": {"content": "<|end|>", ...}}.
Json AddedTokensOf(const Json& json, const std::string& where) {
  Json added = Json::array();
  const auto list = JsonFind<Json>(json, "added_tokens_decoder", where);
  if (!list) return added;
  const std::string here = where + ": added_tokens_decoder";
  if (!list->is_object()) Fail("{} must be an object", here);
  for (const auto& [key, item] : list->items()) {
    int64_t id = -1;
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size() || id < 0) {
      Fail("{}: \"{}\" is no id", here, key);
    }
    const std::string name = here + "." + key;
    Json token = AddedToken(id, JsonGet<std::string>(item, "content", name),
                            JsonFind<bool>(item, "special", name).value_or(true));
    for (const char* flag : {"single_word", "lstrip", "rstrip"}) {
      token[flag] = JsonFind<bool>(item, flag, name).value_or(false);
    }
    added.push_back(std::move(token));
  }
  return added;
}

}  // namespace

TokenizerConfig TokenizerConfig::Read(const std::string& directory) {
  constexpr const char* kName = "tokenizer_config.json";
  TokenizerConfig config;
  const auto text = FindDocument(directory, kName, kMaxJsonBytes);
  if (!text) return config;
  const std::string where = DocumentPath(directory, kName);
  const Json json = ParseJson(*text, where);
  config.add_bos = JsonFind<bool>(json, "add_bos_token", where);
  config.add_eos = JsonFind<bool>(json, "add_eos_token", where);
  constexpr std::string_view kClasses[] = {"LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer",
                                           "CohereTokenizer"};
  auto name = JsonFind<std::string>(json, "tokenizer_class", where).value_or("");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  config.frames = std::ranges::count(kClasses, name) > 0;
  config.bos = FindToken(json, "bos_token", where);
  config.eos = FindToken(json, "eos_token", where);
  config.unk = FindToken(json, "unk_token", where);
  config.pad = FindToken(json, "pad_token", where);
  config.added_tokens = AddedTokensOf(json, where);
  return config;
}

std::optional<std::string> FindTokenizerFile(const std::string& directory) {
  const fs::path model = fs::path(directory) / "tokenizer.model";
  if (fs::exists(model)) return model;
  std::optional<std::string> first;  // in the order of names, so that the result is always the same
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".tiktoken") continue;
    if (!first || entry.path().string() < *first) first = entry.path();
  }
  if (first) return first;
  const fs::path vocabulary = fs::path(directory) / kVocabulary;
  if (!fs::exists(vocabulary) || !fs::exists(fs::path(directory) / "merges.txt")) return first;
  return vocabulary;
}

std::string TokenizerFileDocument(const std::string& directory, const std::string& path) {
  const std::string bytes = ReadFile(path, kMaxDocumentBytes);
  const TokenizerConfig config = TokenizerConfig::Read(directory);
  const bool merges = fs::path(path).filename() == kVocabulary;
  if (!merges && !IsRankFile(bytes)) return SentencePieceFileDocument(bytes, path, config);
  const auto model = FindDocument(directory, "config.json", kMaxJsonBytes);
  const std::string where = DocumentPath(directory, "config.json");
  const auto family =
      model ? JsonFind<std::string>(ParseJson(*model, where), "model_type", where) : std::nullopt;
  return merges ? MergesFileDocument(bytes, path, family.value_or(""), config)
                : RankFileDocument(bytes, path, family.value_or(""), config);
}

}  // namespace nibble
