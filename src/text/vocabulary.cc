// SPDX-License-Identifier: Apache-2.0
#include "text/vocabulary.h"

#include <algorithm>
#include <bit>

#include "base/utf8.h"

namespace nibble {

void CheckTokenSize(std::string_view token, const JsonNode& node) {
  if (token.size() <= kMaxTokenBytes) return;
  Fail("{}: a token has {} bytes, at most {} are accepted", node.where(), token.size(),
       kMaxTokenBytes);
}

Vocabulary::Vocabulary(size_t tokens) : slots_(std::bit_ceil(2 * tokens + 1)) {}

void Vocabulary::Add(std::string_view token, int64_t id, const JsonNode& node) {
  CheckTokenSize(token, node);
  if (id < 0 || id >= kMaxTokenId) {
    Fail("{}: the id of token \"{}\" must be an integer from 0 to {}", node.where(), token,
         kMaxTokenId - 1);
  }
  const auto index = static_cast<size_t>(id);
  if (entries_.size() <= index) entries_.resize(index + 1);
  if (entries_[index].present) Fail("{}: id {} belongs to two tokens", node.where(), id);
  if (Find(token)) Fail("{}: token \"{}\" stands twice", node.where(), token);
  entries_[index] = {bytes_.size(), static_cast<uint32_t>(token.size()), true};
  bytes_.insert(bytes_.end(), token.begin(), token.end());
  longest_ = std::max(longest_, token.size());
  const size_t hash = SecretHash()(token);
  size_t at = hash & (slots_.size() - 1);
  while (slots_[at].id >= 0) at = (at + 1) & (slots_.size() - 1);
  slots_[at] = {static_cast<uint32_t>(hash >> 32), static_cast<int32_t>(id)};
}

std::optional<int32_t> Vocabulary::Find(std::string_view token) const {
  const size_t hash = SecretHash()(token);
  for (size_t at = hash & (slots_.size() - 1); slots_[at].id >= 0;
       at = (at + 1) & (slots_.size() - 1)) {
    const Slot& slot = slots_[at];
    if (slot.tag == static_cast<uint32_t>(hash >> 32) && Text(slot.id) == token) return slot.id;
  }
  return std::nullopt;
}

std::array<int32_t, 256> ByteTokens(const Vocabulary& vocabulary, const JsonNode& model) {
  std::array<int32_t, 256> ids{};
  for (int byte = 0; byte < 256; ++byte) {
    const std::string token = fmt::format("<0x{:02X}>", byte);
    const auto id = vocabulary.Find(token);
    if (!id) Fail("{}: byte_fallback needs the token {}, which is missing", model.where(), token);
    ids[byte] = *id;
  }
  return ids;
}

CharacterIds::CharacterIds(const Vocabulary& vocabulary) : page_of_(0x110000 / 256), pages_(1) {
  pages_[0].fill(-1);
  for (int32_t id = 0; id < vocabulary.end(); ++id) {
    if (!vocabulary.Has(id)) continue;
    const std::string_view token = vocabulary.Text(id);
    if (token.empty() || token.size() != Utf8Length(token[0])) continue;
    const uint32_t code_point = CodePoint(token);
    uint16_t& page = page_of_[code_point / 256];
    if (page == 0) {
      page = static_cast<uint16_t>(pages_.size());
      pages_.push_back(pages_[0]);
    }
    pages_[page][code_point % 256] = id;
  }
}

}  // namespace nibble
