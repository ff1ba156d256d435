// SPDX-License-Identifier: Apache-2.0
// The tokens of a model: text to id and back. Filled while a file is loaded, immutable afterwards;
// what it lays out is made for look-ups, since encoding does one or more for each word.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "text/secret_hash.h"
#include "text/tokenizer_json.h"

namespace nibble {

// Ids at or above this are refused: tables of this many entries are made from a file's word.
inline constexpr int64_t kMaxTokenId = 1 << 21;
// Longer tokens are refused: a few ids would become a text without bounds. Real ones have 1,024.
inline constexpr size_t kMaxTokenBytes = 8 << 10;
void CheckTokenSize(std::string_view token, const JsonNode& node);

class Vocabulary {
 public:
  Vocabulary() : Vocabulary(0) {}
  explicit Vocabulary(size_t tokens);  // at most so many will be added

  // A token or an id that is there already, or is out of range, is an Error; `node` names the list.
  void Add(std::string_view token, int64_t id, const JsonNode& node);

  std::optional<int32_t> Find(std::string_view token) const;
  bool Has(int64_t id) const {
    return id >= 0 && id < end() && entries_[static_cast<size_t>(id)].present;
  }
  std::string_view Text(int32_t id) const {  // of a token that is there
    const Entry& entry = entries_[static_cast<size_t>(id)];
    return {bytes_.data() + entry.begin, entry.size};
  }
  int64_t end() const { return static_cast<int64_t>(entries_.size()); }  // the largest id + 1
  size_t longest() const { return longest_; }                            // bytes of a token

 private:
  struct Entry {
    size_t begin = 0;
    uint32_t size = 0;
    bool present = false;
  };
  struct Slot {
    uint32_t tag = 0;  // other bits of the hash than those that chose the slot
    int32_t id = -1;   // -1: empty
  };

  std::vector<char> bytes_;     // of all tokens
  std::vector<Entry> entries_;  // by id
  std::vector<Slot> slots_;     // open addressing, at most half full
  size_t longest_ = 0;
};

// The ids of the byte tokens <0x00> to <0xFF> in a vocabulary with byte_fallback; a missing one is
// an Error.
std::array<int32_t, 256> ByteTokens(const Vocabulary& vocabulary, const JsonNode& model);

// Ids of single characters, by code point.
class CharacterIds {
 public:
  explicit CharacterIds(const Vocabulary& vocabulary);
  CharacterIds() = default;
  // -1: no token. `character` is one character of UTF-8.
  int32_t Find(std::string_view character) const {
    const uint32_t code_point = CodePoint(character);
    return pages_[page_of_[code_point / 256]][code_point % 256];
  }

 private:
  std::vector<uint16_t> page_of_;                // of a code point's upper bits
  std::vector<std::array<int32_t, 256>> pages_;  // the first has nothing
};

// Remembers which tokens are what their own text is encoded to: most are, and then a word that is a
// token needs no work. The answer for a token is found when it is first asked for; threads may do
// so at once.
class WholeTokens {
 public:
  explicit WholeTokens(size_t ids) : known_(std::make_unique<std::atomic<Answer>[]>(ids)) {}
  WholeTokens() : WholeTokens(0) {}

  std::optional<bool> Find(int32_t id) const {
    const Answer answer = known_[static_cast<size_t>(id)].load(std::memory_order_relaxed);
    return answer == Answer::kUnknown ? std::nullopt : std::optional(answer == Answer::kYes);
  }
  void Set(int32_t id, bool whole) const {
    known_[static_cast<size_t>(id)].store(whole ? Answer::kYes : Answer::kNo,
                                          std::memory_order_relaxed);
  }

 private:
  enum class Answer : uint8_t { kUnknown, kYes, kNo };
  std::unique_ptr<std::atomic<Answer>[]> known_;
};

}  // namespace nibble
