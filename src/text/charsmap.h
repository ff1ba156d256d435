// SPDX-License-Identifier: Apache-2.0
// The "precompiled charsmap" of SentencePiece: which sequences of characters a normalizer replaces
// by which texts. Its bytes, little endian: u32 size of a trie, the trie as u32 units of a double
// array (Darts), then the texts, each ended by a zero. Every step through the trie is checked; bad
// bytes end in an Error. Immutable after loading.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

class Charsmap {
 public:
  // `where` names it in messages.
  Charsmap(std::string_view bytes, std::string where);

  struct Match {
    size_t size = 0;  // bytes of the text that are replaced
    std::string_view replacement;
  };
  // The shortest or the longest of the map's sequences that `text` starts with.
  std::optional<Match> Shortest(std::string_view text) const { return Find(text, true); }
  std::optional<Match> Longest(std::string_view text) const { return Find(text, false); }

  // Returns whether an ASCII character stays as it is where ASCII, or nothing, follows it: most do.
  bool IsPlain(char c) const { return plain_[static_cast<unsigned char>(c)]; }

 private:
  std::optional<Match> Find(std::string_view text, bool first) const;
  std::string_view Replacement(size_t begin) const;
  [[noreturn]] void FailDamaged() const;

  std::vector<uint32_t> units_;
  std::array<bool, 256> plain_{};
  std::string texts_;
  std::string where_;
};

}  // namespace nibble
