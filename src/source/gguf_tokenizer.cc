// SPDX-License-Identifier: Apache-2.0
// tokenizer.json of a GGUF file: byte-level BPE ("gpt2") with one of the known pre-tokenizers, and
// SentencePiece's BPE ("llama"), whose tokens have scores.
#include <algorithm>

#include "source/byte_level_tokenizer.h"
#include "source/gguf_source.h"
#include "source/tokenizer_document.h"

namespace nibble {
namespace {

constexpr WordPattern kLlama3 = {.pattern = kLlama3Pattern, .ignore_merges = true, .bos = true};
constexpr std::pair<std::string_view, WordPattern> kPreTokenizers[] = {
    {"gpt-2", {}},
    {"phi-2", {}},
    {"smollm", {.single_digits = true}},
    {"starcoder", {.single_digits = true}},
    {"refact", {.single_digits = true}},  // Granite 3
    {"command-r", {.single_digits = true}},
    {"llama-bpe", kLlama3},
    {"llama3", kLlama3},
    {"llama-v3", kLlama3},
    {"falcon3", kLlama3},
    {"dbrx", {.pattern = kLlama3Pattern}},
    {"smaug-bpe", {.pattern = kLlama3Pattern}},
    {"glm4", {.pattern = kLlama3Pattern}},
    {"qwen2", {.pattern = kQwen2Pattern}},
    {"deepseek-r1-qwen", {.pattern = kQwen2Pattern}},
    {"gpt-4o", {.pattern = kO200kPattern}},
    {"tekken", {.pattern = kTekkenPattern, .ignore_merges = true, .bos = true}},
};

// The usual pre-tokenizer of an architecture, for files that name none: those from before May 2024,
// and many since.
constexpr std::pair<std::string_view, std::string_view> kUsual[] = {
    {"llama", "llama-bpe"}, {"qwen2", "qwen2"},    {"qwen3", "qwen2"},
    {"qwen3moe", "qwen2"},  {"granite", "refact"}, {"gpt-oss", "gpt-4o"}};

std::string_view UsualPattern(const GgufFile& file, std::string_view name) {
  const auto architecture = file.FindString("general.architecture").value_or("");
  for (const auto& [key, usual] : kUsual) {
    if (key != architecture) continue;
    Note(
        "nibble: {}: no tokenizer.ggml.pre says how text is cut into words; \"{}\" is assumed, and "
        "if that is wrong answers are worse\n",
        file.path(), usual);
    return usual;
  }
  return name;
}

const WordPattern& FindWordPattern(const GgufFile& file) {
  auto name = file.FindString("tokenizer.ggml.pre").value_or("default");
  if (name == "default") name = UsualPattern(file, name);
  std::vector<std::string_view> known;
  for (const auto& [key, pre] : kPreTokenizers) {
    if (key == name) return pre;
    known.push_back(key);
  }
  Fail("{}: tokenizer.ggml.pre \"{}\" is not known; this build reads {}", file.path(), name,
       fmt::join(known, ", "));
}

struct Vocabulary {
  std::vector<std::string_view> tokens;
  std::vector<int64_t> types;
};

Vocabulary ReadVocabulary(const GgufFile& file) {
  Vocabulary v = {.tokens = file.Strings("tokenizer.ggml.tokens"), .types = {}};
  if (v.tokens.empty()) Fail("{}: tokenizer.ggml.tokens is missing", file.path());
  v.types = file.Integers("tokenizer.ggml.token_type", v.tokens.size());
  if (v.types.empty()) v.types.assign(v.tokens.size(), kNormal);
  const auto empty = std::ranges::find(v.tokens, "");
  if (empty != v.tokens.end()) {
    Note("nibble: {}: token {} of tokenizer.ggml.tokens is empty: no text is written with it\n",
         file.path(), empty - v.tokens.begin());
  }
  return v;
}

Json AddedTokens(const Vocabulary& v) {
  Json added = Json::array();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const int64_t type = v.types[i];
    if (type != kUnknown && type != kControl && type != kUserDefined) continue;
    added.push_back(AddedToken(static_cast<int64_t>(i), v.tokens[i], type != kUserDefined));
  }
  return added;
}

// {token: id}, written without a Json object: an ordered one looks through all keys for each.
std::string VocabularyText(const Vocabulary& v) {
  std::string text = "{";
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ",", Json(v.tokens[i]).dump(), i);
  }
  return text + "}";
}

// The post_processor that puts tokens in front of and behind a text.
Json Frame(const GgufFile& file, const Vocabulary& v, bool bos_default) {
  const auto find = [&](const char* name, bool by_default) {
    std::vector<NamedToken> tokens;
    if (!file.FindBool(fmt::format("tokenizer.ggml.add_{}_token", name)).value_or(by_default)) {
      return tokens;
    }
    const auto key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const int64_t id = file.Integer(key);
    if (id < 0 || id >= static_cast<int64_t>(v.tokens.size())) {
      Fail("{}: {} {} is none of {} tokens", file.path(), key, id, v.tokens.size());
    }
    tokens.push_back({id, std::string(v.tokens[static_cast<size_t>(id)])});
    return tokens;
  };
  return TemplateFrame(find("bos", bos_default), find("eos", false));
}

std::string ByteLevelDocument(const GgufFile& file, const Vocabulary& v) {
  const WordPattern& words = FindWordPattern(file);
  Json merges = Json::array();
  for (const std::string_view merge : file.Strings("tokenizer.ggml.merges")) {
    merges.push_back(merge);
  }
  const Json model = {{"type", "BPE"}, {"ignore_merges", words.ignore_merges}, {"merges", merges}};
  return DocumentText({.added_tokens = AddedTokens(v), .frame = Frame(file, v, words.bos)}, nullptr,
                      ByteLevelWords(words), ByteLevelComponent(true), model, VocabularyText(v));
}

std::string ScoredDocument(const GgufFile& file, const Vocabulary& v) {
  SentencePieceModel model = {.where = file.path(),
                              .byte_fallback = std::ranges::count(v.types, int64_t{kByte}) > 0,
                              .pieces = v.tokens,
                              .scores = file.Reals("tokenizer.ggml.scores", v.tokens.size()),
                              .types = v.types,
                              .remove_extra_whitespaces = false};
  if (model.scores.empty()) Fail("{}: tokenizer.ggml.scores is missing", file.path());
  model.add_dummy_prefix = file.FindBool("tokenizer.ggml.add_space_prefix").value_or(true);
  return SentencePieceDocument(model,
                               {.added_tokens = AddedPieces(model), .frame = Frame(file, v, true)});
}

}  // namespace

std::string GgufTokenizer(const GgufFile& file) {
  const Vocabulary v = ReadVocabulary(file);
  const auto kind = file.FindString("tokenizer.ggml.model").value_or("");
  if (kind == "gpt2") return ByteLevelDocument(file, v);
  if (kind == "llama") return ScoredDocument(file, v);
  Fail("{}: tokenizer.ggml.model \"{}\" is not read; this build reads gpt2, llama", file.path(),
       kind);
}

}  // namespace nibble
