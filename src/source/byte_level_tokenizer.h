// SPDX-License-Identifier: Apache-2.0
// How byte-level tokenizers cut text into words, where their files only name a family.
#pragma once

#include <string_view>

#include "base/json.h"

namespace nibble {

struct WordPattern {
  std::string_view pattern;  // "": GPT-2's
  bool single_digits = false, ignore_merges = false, bos = false;
};

inline constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

// The pre_tokenizer of a tokenizer.json.
Json ByteLevelWords(const WordPattern& words);

}  // namespace nibble
