// SPDX-License-Identifier: Apache-2.0
// tokenizer.json of a GGUF file: byte-level BPE ("gpt2") with one of the known pre-tokenizers, and
// SentencePiece's BPE ("llama"), whose merges follow from the scores of its tokens.
#include <algorithm>
#include <unordered_map>

#include "source/gguf_source.h"

namespace nibble {
namespace {

// Of cutting every token in two everywhere: the bytes looked at. Llama 2's tokens take 2 million.
constexpr uint64_t kMaxMergeWork = 1 << 30;

enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUser = 4, kByte = 6 };

// How a byte-level tokenizer cuts text into words; from the tokenizer.json of the models.
struct PreTokenizer {
  std::string_view pattern;  // "": GPT-2's
  bool single_digits = false, ignore_merges = false, bos = false;
};

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr std::pair<std::string_view, PreTokenizer> kPreTokenizers[] = {
    {"gpt-2", {}},
    {"phi-2", {}},
    {"smollm", {.single_digits = true}},
    {"starcoder", {.single_digits = true}},
    {"command-r", {.single_digits = true}},
    {"llama-bpe", {.pattern = kLlama3Pattern, .ignore_merges = true, .bos = true}},
    {"dbrx", {.pattern = kLlama3Pattern}},
    {"smaug-bpe", {.pattern = kLlama3Pattern}},
    {"qwen2", {.pattern = kQwen2Pattern}},
};

const PreTokenizer& FindPreTokenizer(const GgufFile& file) {
  const auto name = file.FindString("tokenizer.ggml.pre").value_or("default");
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
  Vocabulary v = {file.Strings("tokenizer.ggml.tokens"),
                  file.Integers("tokenizer.ggml.token_type")};
  if (v.tokens.empty()) Fail("{}: tokenizer.ggml.tokens is missing", file.path());
  if (v.types.empty()) v.types.assign(v.tokens.size(), kNormal);
  if (v.types.size() != v.tokens.size()) {
    Fail("{}: tokenizer.ggml.token_type has {} items for {} tokens", file.path(), v.types.size(),
         v.tokens.size());
  }
  return v;
}

Json AddedTokens(const Vocabulary& v) {
  Json added = Json::array();
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const int64_t type = v.types[i];
    if (type != kUnknown && type != kControl && type != kUser) continue;
    added.push_back({{"id", i},
                     {"content", v.tokens[i]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", type != kUser}});
  }
  return added;
}

// {token: id}, written by hand: an ordered object of so many keys looks through all for each.
std::string VocabularyText(const Vocabulary& v) {
  std::string text = "{";
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    text += fmt::format("{}{}:{}", i == 0 ? "" : ",", Json(v.tokens[i]).dump(), i);
  }
  return text + "}";
}

// Tokens in front of and behind a text.
Json Frame(const GgufFile& file, const Vocabulary& v, bool bos_default) {
  Json items = Json::array(), tokens = Json::object();
  const auto add = [&](const char* name, bool by_default) {
    if (!file.FindBool(fmt::format("tokenizer.ggml.add_{}_token", name)).value_or(by_default)) {
      return;
    }
    const auto key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const int64_t id = file.Integer(key);
    if (id < 0 || id >= static_cast<int64_t>(v.tokens.size())) {
      Fail("{}: {} {} is none of {} tokens", file.path(), key, id, v.tokens.size());
    }
    const std::string token(v.tokens[static_cast<size_t>(id)]);
    items.push_back({{"SpecialToken", {{"id", token}, {"type_id", 0}}}});
    tokens[token] = {{"id", token}, {"ids", {id}}, {"tokens", {token}}};
  };
  add("bos", bos_default);
  items.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  add("eos", false);
  if (tokens.empty()) return nullptr;
  return {{"type", "TemplateProcessing"},
          {"single", items},
          {"pair", Json::array()},
          {"special_tokens", tokens}};
}

Json ByteLevel(bool words) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", words}};
}

// SentencePiece joins the pair whose union has the highest score: ranks of merges in the order of
// scores, then of the lengths of the parts, as Hugging Face converts it.
std::vector<std::pair<std::string_view, std::string_view>> MergesOf(const GgufFile& file,
                                                                    const Vocabulary& v) {
  const std::vector<double> scores = file.Reals("tokenizer.ggml.scores");
  if (scores.size() != v.tokens.size()) {
    Fail("{}: tokenizer.ggml.scores has {} items for {} tokens", file.path(), scores.size(),
         v.tokens.size());
  }
  struct Merge {
    std::string_view left, right;
    double score;
  };
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t i = 0; i < v.tokens.size(); ++i) ids.emplace(v.tokens[i], i);
  std::vector<Merge> merges;
  uint64_t work = 0;
  for (const std::string_view token : v.tokens) work += token.size() * token.size();
  if (work > kMaxMergeWork) Fail("{}: the tokens are too long", file.path());
  for (size_t i = 0; i < v.tokens.size(); ++i) {
    const std::string_view token = v.tokens[i];
    if (v.types[i] != kNormal) continue;
    const size_t first = merges.size();
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = ids.find(token.substr(0, cut)), right = ids.find(token.substr(cut));
      if (left == ids.end() || right == ids.end()) continue;
      merges.push_back({left->first, right->first, scores[i]});
    }
    std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(),
              [&](const Merge& a, const Merge& b) {
                return std::pair(ids[a.left], ids[a.right]) < std::pair(ids[b.left], ids[b.right]);
              });
  }
  std::ranges::stable_sort(merges, [](const Merge& a, const Merge& b) {
    return std::tuple(a.score, a.left.size(), a.right.size()) >
           std::tuple(b.score, b.left.size(), b.right.size());
  });
  std::vector<std::pair<std::string_view, std::string_view>> pairs;
  for (const Merge& m : merges) pairs.emplace_back(m.left, m.right);
  return pairs;
}

// The parts of tokenizer.json apart from the vocabulary.
struct Parts {
  Json model = Json::object(), merges = Json::array(), normalizer, pre_tokenizer, decoder;
  bool bos = false;
};

Parts ByteLevelParts(const GgufFile& file) {
  const PreTokenizer& pre = FindPreTokenizer(file);
  Parts parts;
  Json steps = Json::array();
  if (pre.single_digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!pre.pattern.empty()) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pre.pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(ByteLevel(pre.pattern.empty()));
  parts.pre_tokenizer = {{"type", "Sequence"}, {"pretokenizers", steps}};
  parts.decoder = ByteLevel(true);
  parts.model["ignore_merges"] = pre.ignore_merges;
  for (const std::string_view merge : file.Strings("tokenizer.ggml.merges")) {
    parts.merges.push_back(merge);
  }
  parts.bos = pre.bos;
  return parts;
}

Parts SentencePieceParts(const GgufFile& file, const Vocabulary& v) {
  constexpr const char* kSpace = "\xE2\x96\x81";  // U+2581
  Parts parts;
  const bool prefix = file.FindBool("tokenizer.ggml.add_space_prefix").value_or(true);
  const auto replace = [](const char* from, const char* to) -> Json {
    return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  Json before = Json::array();
  Json after = {replace(kSpace, " "), {{"type", "ByteFallback"}}, {{"type", "Fuse"}}};
  if (prefix) {
    before.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    after.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  before.push_back(replace(" ", kSpace));
  parts.normalizer = {{"type", "Sequence"}, {"normalizers", before}};
  parts.decoder = {{"type", "Sequence"}, {"decoders", after}};
  const bool bytes = std::ranges::find(v.types, kByte) != v.types.end();
  parts.model = {{"byte_fallback", bytes}, {"fuse_unk", true}};
  const auto unknown = std::ranges::find(v.types, kUnknown);
  if (unknown != v.types.end()) {
    parts.model["unk_token"] = v.tokens[static_cast<size_t>(unknown - v.types.begin())];
  }
  for (const auto& [left, right] : MergesOf(file, v)) parts.merges.push_back({left, right});
  parts.bos = true;
  return parts;
}

}  // namespace

std::string GgufTokenizer(const GgufFile& file) {
  const Vocabulary v = ReadVocabulary(file);
  const auto kind = file.FindString("tokenizer.ggml.model").value_or("");
  if (kind != "gpt2" && kind != "llama") {
    Fail("{}: tokenizer.ggml.model \"{}\" is not read; this build reads gpt2, llama", file.path(),
         kind);
  }
  Parts parts = kind == "gpt2" ? ByteLevelParts(file) : SentencePieceParts(file, v);
  const Json outer = {{"version", "1.0"},
                      {"added_tokens", AddedTokens(v)},
                      {"normalizer", parts.normalizer},
                      {"pre_tokenizer", parts.pre_tokenizer},
                      {"post_processor", Frame(file, v, parts.bos)},
                      {"decoder", parts.decoder}};
  parts.model["type"] = "BPE";
  std::string text = outer.dump(), model = parts.model.dump();
  text.pop_back(), model.pop_back();
  return text + ",\"model\":" + model + ",\"vocab\":" + VocabularyText(v) +
         ",\"merges\":" + parts.merges.dump() + "}}\n";
}

}  // namespace nibble
