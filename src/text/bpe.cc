// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <utility>

#include "text/utf8.h"

namespace nibble {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return (static_cast<uint64_t>(left) << 32) | static_cast<uint32_t>(right);
}

// "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> SplitMerge(simdjson::dom::element merge,
                                                         const std::string& where, size_t rank) {
  std::string_view text, left, right;
  simdjson::dom::array pair;
  if (merge.get(text) == simdjson::SUCCESS) {
    const size_t space = text.find(' ');
    if (space != text.npos && text.find(' ', space + 1) == text.npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  } else if (merge.get(pair) == simdjson::SUCCESS && pair.size() == 2 &&
             pair.at(0).get(left) == simdjson::SUCCESS &&
             pair.at(1).get(right) == simdjson::SUCCESS) {
    return {left, right};
  }
  Fail("{}[{}] must be \"left right\" or [\"left\", \"right\"]", where, rank);
}

}  // namespace

uint64_t SecretHash::Random() {
  std::random_device random;
  return (uint64_t{random()} << 32 | random()) | 1;
}

size_t SecretHash::operator()(std::string_view text) const {
  uint64_t hash = text.size();
  for (; text.size() >= 8; text.remove_prefix(8)) {
    uint64_t word = 0;
    std::memcpy(&word, text.data(), 8);
    hash = Mix(hash ^ word);
  }
  uint64_t rest = 0;
  for (const char c : text) rest = rest << 8 | static_cast<unsigned char>(c);
  return Mix(hash ^ rest);
}

void CheckTokenSize(std::string_view token, const JsonNode& node) {
  if (token.size() <= kMaxTokenBytes) return;
  Fail("{}: a token has {} bytes, at most {} are accepted", node.where(), token.size(),
       kMaxTokenBytes);
}

Bpe Bpe::FromJson(const JsonNode& model) {
  // roberta-style files carry no type; only BPE has merges.
  const bool untyped_bpe = !model.Find("type") && model.Find("merges");
  if (!untyped_bpe && model.Get<std::string_view>("type") != "BPE") {
    model.Unsupported(fmt::format("type {} (only BPE is)", model.Get<std::string_view>("type")));
  }
  model.AllowKeys({"type", "vocab", "merges", "dropout", "unk_token", "continuing_subword_prefix",
                   "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges"});
  if (model.Find("dropout")) model.Unsupported("dropout");
  for (const std::string_view key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.GetOr<std::string_view>(key, "").empty()) model.Unsupported(key);
  }
  Bpe bpe;
  bpe.LoadVocab(model.Get("vocab"));
  bpe.LoadMerges(model.Get("merges"));
  bpe.fuse_unk_ = model.GetOr("fuse_unk", false);
  bpe.ignore_merges_ = model.GetOr("ignore_merges", false);
  if (const auto unk = model.Find("unk_token")) {
    bpe.unk_id_ = bpe.Id(unk->As<std::string_view>());
    if (!bpe.unk_id_) Fail("{} is not in the vocabulary", unk->where());
  }
  if (model.GetOr("byte_fallback", false)) {
    std::array<int32_t, 256>& byte_ids = bpe.byte_ids_.emplace();
    for (int byte = 0; byte < 256; ++byte) {
      const std::string token = fmt::format("<0x{:02X}>", byte);
      const auto id = bpe.Id(token);
      if (!id) Fail("{}: byte_fallback needs the token {}, which is missing", model.where(), token);
      byte_ids[byte] = *id;
    }
  }
  return bpe;
}

void Bpe::LoadVocab(const JsonNode& node) {
  const auto object = node.As<simdjson::dom::object>();
  vocab_.reserve(object.size());
  std::vector<bool> used;
  for (const auto& field : object) {
    int64_t id = 0;
    CheckTokenSize(field.key, node);
    if (field.value.get(id) != simdjson::SUCCESS || id < 0 || id >= kMaxTokenId) {
      Fail("{}: the id of token \"{}\" must be an integer from 0 to {}", node.where(), field.key,
           kMaxTokenId - 1);
    }
    if (used.size() <= static_cast<size_t>(id)) used.resize(id + 1);
    if (used[id]) Fail("{}: id {} belongs to two tokens", node.where(), id);
    used[id] = true;
    if (!vocab_.emplace(field.key, static_cast<int32_t>(id)).second) {
      Fail("{}: token \"{}\" stands twice", node.where(), field.key);
    }
  }
}

void Bpe::LoadMerges(const JsonNode& node) {
  const auto list = node.As<simdjson::dom::array>();
  merges_.reserve(list.size());
  uint32_t rank = 0;
  std::string joined;
  for (const simdjson::dom::element merge : list) {
    const auto [left, right] = SplitMerge(merge, node.where(), rank);
    joined.assign(left).append(right);
    const auto left_id = Id(left), right_id = Id(right), id = Id(joined);
    if (!left_id || !right_id || !id) {
      Fail("{}[{}]: token \"{}\" is not in the vocabulary", node.where(), rank,
           !left_id ? left : (!right_id ? right : std::string_view(joined)));
    }
    // Of a pair that stands twice the later one counts.
    merges_.insert_or_assign(PairKey(*left_id, *right_id), Merge{.rank = rank, .id = *id});
    AddJoint(left, right);
    ++rank;
  }
}

// The last character of `left` meets the first of `right`.
void Bpe::AddJoint(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty()) return;
  size_t last = left.size() - 1;
  while (IsUtf8Continuation(left[last])) --last;
  const auto left_id = Id(left.substr(last));
  const auto right_id = Id(right.substr(0, Utf8Length(right[0])));
  if (left_id && right_id) joints_.insert(PairKey(*left_id, *right_id));
}

std::optional<int32_t> Bpe::Id(std::string_view token) const {
  const auto it = vocab_.find(token);
  if (it == vocab_.end()) return std::nullopt;
  return it->second;
}

const Bpe::Merge* Bpe::FindMerge(int32_t left, int32_t right) const {
  const auto it = merges_.find(PairKey(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

std::vector<Bpe::Symbol> Bpe::Symbols(std::string_view piece) const {
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  std::optional<int32_t> previous;  // id of the character before, if it was in the vocabulary
  const auto push = [&](int32_t id, bool linked) {
    const auto index = static_cast<int32_t>(symbols.size());
    linked = linked && index > 0;
    if (linked) symbols.back().next = index;
    symbols.push_back({.id = id, .prev = linked ? index - 1 : -1, .next = -1});
  };
  bool after_unk = false;
  for (size_t at = 0; at < piece.size();) {
    const std::string_view character = piece.substr(at, Utf8Length(piece[at]));
    at += character.size();
    const auto id = Id(character);
    if (id) {
      push(*id, !previous || joints_.contains(PairKey(*previous, *id)));
    } else if (byte_ids_) {
      for (const char byte : character) push((*byte_ids_)[static_cast<unsigned char>(byte)], true);
    } else if (unk_id_ && !(after_unk && fuse_unk_)) {
      push(*unk_id_, true);
    }
    after_unk = !id && !byte_ids_;
    // A character that leaves nothing behind does not part its neighbours.
    if (id || byte_ids_ || unk_id_) previous = id;
  }
  return symbols;
}

void Bpe::Encode(std::string_view piece, std::vector<int32_t>* ids) const {
  if (piece.size() > std::numeric_limits<int32_t>::max()) {
    FailUsage("a text of {} bytes is too long for the tokenizer; split it", piece.size());
  }
  if (ignore_merges_) {
    if (const auto id = Id(piece)) return ids->push_back(*id);
  }
  std::vector<Symbol> symbols = Symbols(piece);
  std::vector<Candidate> heap;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i].next >= 0) {
      AddCandidate(symbols, static_cast<int32_t>(i), &heap);
    } else if (!heap.empty()) {  // the end of a run
      std::make_heap(heap.begin(), heap.end());
      MergeRun(&symbols, &heap);
    }
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) ids->push_back(symbol.id);
  }
}

bool Bpe::AddCandidate(const std::vector<Symbol>& symbols, int32_t left,
                       std::vector<Candidate>* heap) const {
  if (left < 0 || symbols[left].next < 0) return false;
  const int32_t left_id = symbols[left].id, right_id = symbols[symbols[left].next].id;
  const Merge* merge = FindMerge(left_id, right_id);
  if (merge == nullptr) return false;
  heap->push_back({.rank = merge->rank, .left = left, .left_id = left_id, .right_id = right_id});
  return true;
}

void Bpe::MergeRun(std::vector<Symbol>* run, std::vector<Candidate>* heap) const {
  std::vector<Symbol>& symbols = *run;
  while (!heap->empty()) {
    std::pop_heap(heap->begin(), heap->end());
    const Candidate top = heap->back();
    heap->pop_back();
    Symbol& left = symbols[top.left];
    if (left.id != top.left_id || left.next < 0 || symbols[left.next].id != top.right_id) continue;
    Symbol& right = symbols[left.next];
    left.id = FindMerge(top.left_id, top.right_id)->id;
    left.next = right.next;
    if (right.next >= 0) symbols[right.next].prev = top.left;
    right.id = -1;
    for (const int32_t changed : {left.prev, top.left}) {
      if (AddCandidate(symbols, changed, heap)) std::push_heap(heap->begin(), heap->end());
    }
  }
}

}  // namespace nibble
