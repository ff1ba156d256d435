// SPDX-License-Identifier: Apache-2.0
// The components of a normalizer, as functions from valid UTF-8 to valid UTF-8.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "text/charsmap.h"
#include "text/token_trie.h"
#include "text/work.h"

namespace nibble {

// `form`: options of utf8proc, UTF8PROC_COMPOSE and the like.
std::string UnicodeNormalize(std::string text, int form, Work* work);
std::string Lowercase(std::string_view text, Work* work);
std::string StripSpace(std::string_view text, bool left, bool right);
// Removes combining marks; an accent that is part of a composed character stays.
std::string StripMarks(std::string_view text);
// Cleans white space and control characters as translation models do.
std::string CleanForTranslation(std::string_view text);

struct BertSteps {
  bool clean_text, chinese_chars, strip_accents, lowercase;
};
std::string NormalizeForBert(std::string text, const BertSteps& steps, Work* work);

// "Precompiled", as the library `tokenizers` reads a charsmap: it replaces whole grapheme clusters
// of up to 5 bytes, if they only begin with a sequence of the map, and characters.
std::string ReplaceGraphemes(const Charsmap& map, std::string_view text, Work* work);

// The normalizer_spec of a SentencePiece model, as that library reads it: the longest sequence of
// the map at each place. User-defined pieces stay as they are.
struct SentencePieceSteps {
  std::optional<Charsmap> map;  // none: identity
  TokenTrie user_defined;
  bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
};
std::string NormalizeForSentencePiece(const SentencePieceSteps& steps, std::string_view text,
                                      Work* work);

}  // namespace nibble
