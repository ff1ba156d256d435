// SPDX-License-Identifier: Apache-2.0
#include "source/tokenizer_document.h"

#include <algorithm>
#include <cmath>

#include "io/base64.h"

namespace nibble {
namespace {

constexpr int64_t kAllSpaces = 1'000'000'000;         // no text begins with more
constexpr const char* kSpaceSymbol = "\xE2\x96\x81";  // U+2581

void Check(const SentencePieceModel& m) {
  if (m.pieces.empty()) Fail("{}: there are no pieces", m.where);
  for (size_t i = 0; i < m.pieces.size(); ++i) {
    if (m.types[i] < kNormal || m.types[i] > kByte) {
      Fail("{}: type {} of piece {} is not known", m.where, m.types[i], i);
    }
    if (!std::isfinite(m.scores[i])) Fail("{}: the score of piece {} is not finite", m.where, i);
  }
  const auto unknown = std::ranges::count(m.types, int64_t{kUnknown});
  if (unknown > 1) Fail("{}: {} pieces are the unknown one", m.where, unknown);
}

}  // namespace

Json AddedToken(int64_t id, std::string_view content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

Json AddedPieces(const SentencePieceModel& m) {
  Json added = Json::array();
  for (size_t i = 0; i < m.pieces.size(); ++i) {
    if (m.types[i] != kUnknown && m.types[i] != kControl) continue;
    added.push_back(AddedToken(static_cast<int64_t>(i), m.pieces[i], true));
  }
  return added;
}

Json TemplateFrame(const std::vector<NamedToken>& before, const std::vector<NamedToken>& after) {
  if (before.empty() && after.empty()) return nullptr;
  Json items = Json::array(), tokens = Json::object();
  const auto add = [&](const NamedToken& token) {
    items.push_back({{"SpecialToken", {{"id", token.content}, {"type_id", 0}}}});
    tokens[token.content] = {
        {"id", token.content}, {"ids", {token.id}}, {"tokens", {token.content}}};
  };
  for (const NamedToken& token : before) add(token);
  items.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  for (const NamedToken& token : after) add(token);
  return {{"type", "TemplateProcessing"},
          {"single", items},
          {"pair", Json::array()},
          {"special_tokens", tokens}};
}

Json ByteLevelComponent(bool words) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", words}};
}

std::string ScoredVocabularyText(const std::vector<std::string_view>& tokens,
                                 const std::vector<double>& scores) {
  std::string text = "[";
  for (size_t i = 0; i < tokens.size(); ++i) {
    fmt::format_to(std::back_inserter(text), "{}[{},{}]", i == 0 ? "" : ",", Json(tokens[i]).dump(),
                   scores[i]);
  }
  return text + "]";
}

std::string DocumentText(const TokenizerSurroundings& around, const Json& normalizer,
                         const Json& pre_tokenizer, const Json& decoder, const Json& model,
                         std::string_view vocabulary) {
  const Json outer = {{"version", "1.0"},
                      {"added_tokens", around.added_tokens},
                      {"normalizer", normalizer},
                      {"pre_tokenizer", pre_tokenizer},
                      {"post_processor", around.frame},
                      {"decoder", decoder}};
  std::string text = outer.dump(), inner = model.dump();
  text.pop_back(), inner.pop_back();
  return fmt::format("{},\"model\":{},\"vocab\":{}}}}}\n", text, inner, vocabulary);
}

std::string SentencePieceDocument(const SentencePieceModel& m,
                                  const TokenizerSurroundings& around) {
  Check(m);
  Json user_defined = Json::array();
  for (size_t i = 0; i < m.pieces.size(); ++i) {
    if (m.types[i] == kUserDefined) user_defined.push_back(m.pieces[i]);
  }
  Json normalizer = {{"type", "SentencePiece"},
                     {"user_defined", user_defined},
                     {"add_dummy_prefix", m.add_dummy_prefix},
                     {"remove_extra_whitespaces", m.remove_extra_whitespaces},
                     {"escape_whitespaces", m.escape_whitespaces}};
  if (!m.charsmap.empty()) normalizer["precompiled_charsmap"] = EncodeBase64(m.charsmap);
  Json decoders = Json::array();
  if (m.escape_whitespaces) {
    decoders.push_back(
        {{"type", "Replace"}, {"pattern", {{"String", kSpaceSymbol}}}, {"content", " "}});
  }
  if (m.byte_fallback) decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  const int64_t strip = m.remove_extra_whitespaces ? kAllSpaces : m.add_dummy_prefix ? 1 : 0;
  if (strip > 0) {
    decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", strip}, {"stop", 0}});
  }
  Json model = {{"type", m.unigram ? "Unigram" : "BPE"}, {"byte_fallback", m.byte_fallback}};
  const auto unknown = std::ranges::find(m.types, int64_t{kUnknown});
  if (unknown != m.types.end()) {
    const auto id = unknown - m.types.begin();
    if (m.unigram) {
      model["unk_id"] = id;
    } else {
      model["unk_token"] = m.pieces[static_cast<size_t>(id)];
      model["fuse_unk"] = true;
    }
  }
  model["piece_types"] = m.types;
  return DocumentText(around, normalizer, nullptr, {{"type", "Sequence"}, {"decoders", decoders}},
                      model, ScoredVocabularyText(m.pieces, m.scores));
}

}  // namespace nibble
