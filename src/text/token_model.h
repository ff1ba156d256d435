// SPDX-License-Identifier: Apache-2.0
// The "model" of a tokenizer.json: what turns a pre-tokenized piece into ids. Everything around it
// (normalizer, splits, added tokens, decoder) is the same for all kinds. Immutable after loading.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "text/bpe.h"
#include "text/tokenizer_json.h"
#include "text/unigram.h"
#include "text/vocabulary.h"
#include "text/work.h"

namespace nibble {

class TokenModel {
 public:
  // Memory that the pieces of one text share.
  struct Scratch {
    Bpe::Scratch bpe;
    Unigram::Scratch unigram;
  };

  static TokenModel FromJson(const JsonNode& node);

  // Appends the ids of one piece of valid UTF-8.
  void Encode(std::string_view piece, Work* work, Scratch* scratch,
              std::vector<int32_t>* ids) const;
  const Vocabulary& vocabulary() const;

 private:
  std::variant<Bpe, Unigram> model_;
};

}  // namespace nibble
