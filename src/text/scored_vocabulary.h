// SPDX-License-Identifier: Apache-2.0
// A vocabulary as a list of [token, score], whose places are the ids: of Unigram models, and of
// what is made from SentencePiece models, rank files and GGUF files, which have scores instead of
// merges.
#pragma once

#include <cstdint>
#include <vector>

#include "text/tokenizer_json.h"
#include "text/vocabulary.h"

namespace nibble {

struct ScoredVocabulary {
  // Numbers of SentencePiece's model, and of GGUF.
  enum Type : uint8_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

  static ScoredVocabulary FromJson(const JsonNode& model);
  Type type(int32_t id) const { return types.empty() ? kNormal : types[static_cast<size_t>(id)]; }

  Vocabulary vocabulary;
  std::vector<double> scores;  // by id
  std::vector<Type> types;     // by id; empty: all are normal
};

}  // namespace nibble
