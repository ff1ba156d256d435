// SPDX-License-Identifier: Apache-2.0
// The text of a tokenizer.json for tokenizers that come in another form: GGUF's keys, SentencePiece
// models, rank files. Its "model" may have a list of [token, score] and "piece_types", and its
// normalizer may be "SentencePiece" (text/bpe.h, text/normalizer_steps.h): so that ids are those of
// the original's own library, which a conversion to merges would not always give.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace nibble {

enum PieceType : int64_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

struct SentencePieceModel {
  std::string where;  // names it in messages
  bool unigram = false, byte_fallback = false;
  std::vector<std::string_view> pieces;
  std::vector<double> scores;
  std::vector<int64_t> types;
  std::string_view charsmap;  // empty: texts stay as they are
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Parts of a document around the model.
struct TokenizerSurroundings {
  Json added_tokens = Json::array();
  Json frame;  // post_processor
};

Json AddedToken(int64_t id, std::string_view content, bool special);
// Pieces that are tokens in any text, but not text: unknown and control.
Json AddedPieces(const SentencePieceModel& model);

struct NamedToken {
  int64_t id;
  std::string content;
};
// The post_processor that puts tokens in front of and behind a text; null if there are none.
Json TemplateFrame(const std::vector<NamedToken>& before, const std::vector<NamedToken>& after);

Json ByteLevelComponent(bool words);
// Written without a Json object: an ordered one looks through all keys for each.
std::string ScoredVocabularyText(const std::vector<std::string_view>& tokens,
                                 const std::vector<double>& scores);
// A document from its parts: `model` is an object, to which `vocabulary` and other large parts are
// appended as text.
std::string DocumentText(const TokenizerSurroundings& around, const Json& normalizer,
                         const Json& pre_tokenizer, const Json& decoder, const Json& model,
                         std::string_view vocabulary);

std::string SentencePieceDocument(const SentencePieceModel& model,
                                  const TokenizerSurroundings& around);

}  // namespace nibble
