// SPDX-License-Identifier: Apache-2.0
#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "base/utf8.h"
#include "text/unicode_classes.h"
#include "text/vocabulary.h"

namespace nibble {
namespace {

constexpr uint64_t kStepsPerDepth = 8;  // two binary searches, or a look-up of a character

// The character that ends before `at`, or starts at `at`; empty at the ends of the text.
std::string_view CharacterBefore(std::string_view text, size_t at) {
  size_t begin = at;
  while (begin > 0 && IsUtf8Continuation(text[--begin])) {
  }
  return text.substr(begin, at - begin);
}
std::string_view CharacterAt(std::string_view text, size_t at) {
  return text.substr(at, at == text.size() ? 0 : Utf8Length(text[at]));
}

// Both are false at the ends of the text, where `character` is empty.
bool IsSpaceText(std::string_view character) {
  return !character.empty() && nibble::IsSpace(CodePoint(character));
}
bool IsWord(std::string_view character) {
  return !character.empty() && nibble::IsWord(CodePoint(character));
}

}  // namespace

std::vector<AddedToken> AddedTokensFromJson(const JsonNode& list) {
  std::vector<AddedToken> tokens;
  list.ForEach([&](const JsonNode& node) {
    node.AllowKeys({"id", "content", "special", "lstrip", "rstrip", "single_word", "normalized"});
    const auto id = node.Get<int64_t>("id");
    if (id < 0 || id >= kMaxTokenId) {
      Fail("{}: id {} must be from 0 to {}", node.where(), id, kMaxTokenId - 1);
    }
    const auto content = node.Get<std::string_view>("content");
    if (content.empty()) Fail("{}: the content is empty", node.where());
    CheckTokenSize(content, node);
    const bool special = node.GetOr("special", false);
    tokens.push_back({.id = static_cast<int32_t>(id),
                      .content = std::string(content),
                      .special = special,
                      .lstrip = node.GetOr("lstrip", false),
                      .rstrip = node.GetOr("rstrip", false),
                      .single_word = node.GetOr("single_word", false),
                      .normalized = node.GetOr("normalized", !special)});
  });
  return tokens;
}

AddedTokenMatcher::AddedTokenMatcher(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::stable_sort(tokens_.begin(), tokens_.end(),
                   [](const AddedToken& a, const AddedToken& b) { return a.content < b.content; });
  // The normalizer may make several tokens the same; the first of the file counts.
  const auto same = [](const AddedToken& a, const AddedToken& b) { return a.content == b.content; };
  tokens_.erase(std::unique(tokens_.begin(), tokens_.end(), same), tokens_.end());
  for (const AddedToken& token : tokens_) {
    starts_[static_cast<unsigned char>(token.content[0])] = true;
  }
}

// Narrows the sorted tokens to those that share a growing prefix with the text.
const AddedToken* AddedTokenMatcher::LongestAt(std::string_view text, size_t at, Work* work) const {
  const AddedToken* longest = nullptr;
  auto first = tokens_.begin(), last = tokens_.end();
  for (size_t depth = 0; first != last && at + depth < text.size(); ++depth) {
    work->Charge(kStepsPerDepth);
    const auto byte = static_cast<unsigned char>(text[at + depth]);
    const auto byte_of = [depth](const AddedToken& token) {
      return static_cast<unsigned char>(token.content[depth]);
    };
    first = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) < byte; });
    last = std::partition_point(first, last, [&](const auto& t) { return byte_of(t) == byte; });
    // Tokens that end here sort before those that go on.
    if (first != last && first->content.size() == depth + 1) {
      longest = &*first++;
    }
  }
  return longest;
}

void AddedTokenMatcher::Split(std::string_view text, bool plain, Work* work,
                              const Part& part) const {
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const AddedToken* token =
        starts_[static_cast<unsigned char>(text[at])] ? LongestAt(text, at, work) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at, end = at + token->content.size();
    at = end;
    if (plain && token->special) continue;
    if (token->single_word &&
        (IsWord(CharacterBefore(text, begin)) || IsWord(CharacterAt(text, end)))) {
      continue;
    }
    while (token->lstrip && begin > done && IsSpaceText(CharacterBefore(text, begin))) {
      begin -= CharacterBefore(text, begin).size();
    }
    for (; token->rstrip && IsSpaceText(CharacterAt(text, end)); work->Charge(kStepsPerDepth)) {
      end += CharacterAt(text, end).size();
    }
    if (begin > done) part(nullptr, done, begin);
    part(token, begin, end);
    done = end;
  }
  if (done < text.size()) part(nullptr, done, text.size());
}

}  // namespace nibble
