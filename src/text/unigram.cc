// SPDX-License-Identifier: Apache-2.0
#include "text/unigram.h"

#include <algorithm>
#include <limits>

#include "base/utf8.h"

namespace nibble {
namespace {

constexpr double kUnknownPenalty = 10;
using Type = ScoredVocabulary::Type;

}  // namespace

Unigram Unigram::FromJson(const JsonNode& model) {
  model.AllowKeys({"type", "unk_id", "vocab", "byte_fallback", "piece_types"});
  ScoredVocabulary read = ScoredVocabulary::FromJson(model);
  Unigram unigram;
  std::vector<TokenTrie::Token> tokens;
  double worst = std::numeric_limits<double>::max();
  unigram.best_score_ = std::numeric_limits<float>::min();
  for (int32_t id = 0; id < read.vocabulary.end(); ++id) {
    const Type type = read.type(id);
    if (type != Type::kNormal && type != Type::kUserDefined) continue;
    tokens.push_back({read.vocabulary.Text(id), id});
    if (type != Type::kNormal) continue;
    const double score = read.scores[static_cast<size_t>(id)];
    worst = std::min(worst, score);
    unigram.best_score_ = std::max(unigram.best_score_, static_cast<float>(score));
  }
  unigram.trie_ = TokenTrie(std::move(tokens), model.where());
  const auto unk = model.Find("unk_id");
  if (!unk) Fail("{}: unk_id is missing; name the token of what is unknown", model.where());
  const auto unk_id = unk->As<int64_t>();
  if (!read.vocabulary.Has(unk_id)) Fail("{}: there is no token {}", unk->where(), unk_id);
  unigram.unk_id_ = static_cast<int32_t>(unk_id);
  unigram.unk_score_ = worst - kUnknownPenalty;
  if (!read.types.empty()) unigram.unk_score_ = static_cast<float>(unigram.unk_score_);
  if (model.GetOr("byte_fallback", false)) {
    unigram.byte_ids_ = ByteTokens(read.vocabulary, model);
  }
  unigram.vocabulary_ = std::move(read.vocabulary);
  unigram.wholes_ = WholeTokens(static_cast<size_t>(unigram.vocabulary_.end()));
  unigram.scores_ = std::move(read.scores);
  unigram.types_ = std::move(read.types);
  return unigram;
}

double Unigram::TokenScore(int32_t id, size_t bytes) const {
  const auto index = static_cast<size_t>(id);
  if (!types_.empty() && types_[index] == Type::kUserDefined) {
    return static_cast<float>(bytes) * best_score_ - 0.1;  // better than any cut
  }
  return scores_[index];
}

void Unigram::FindBest(std::string_view piece, Work* work, std::vector<Place>* places) const {
  places->assign(piece.size() + 1, {});
  const auto reach = [&](size_t begin, size_t end, int32_t id, double score) {
    Place& place = (*places)[end];
    score += (*places)[begin].score;
    if (!types_.empty()) score = static_cast<float>(score);
    if (place.begin >= 0 && score <= place.score) return;
    place = {.score = score, .begin = static_cast<int64_t>(begin), .id = id};
  };
  for (size_t at = 0; at < piece.size();) {
    const size_t next = at + Utf8Length(piece[at]);
    bool alone = false;  // the character is a token
    trie_.ForEachPrefix(piece.substr(at), work, [&](size_t bytes, int32_t id) {
      reach(at, at + bytes, id, TokenScore(id, bytes));
      alone = alone || at + bytes == next;
    });
    if (!alone) reach(at, next, unk_id_, unk_score_);
    at = next;
  }
}

void Unigram::PushUnknown(std::string_view text, std::vector<int32_t>* ids) const {
  // The library `tokenizers` looks up the joined unknown characters once more.
  const auto id = types_.empty() ? vocabulary_.Find(text) : std::nullopt;
  if (!id && byte_ids_) {
    for (const char byte : text) ids->push_back((*byte_ids_)[static_cast<unsigned char>(byte)]);
  } else {
    ids->push_back(id.value_or(unk_id_));
  }
}

void Unigram::Encode(std::string_view piece, Work* work, Scratch* scratch,
                     std::vector<int32_t>* ids) const {
  const auto id =
      piece.size() <= vocabulary_.longest() ? vocabulary_.Find(piece) : std::optional<int32_t>();
  if (id && wholes_.Find(*id) == true) return ids->push_back(*id);
  const size_t before = ids->size();
  FindBest(piece, work, &scratch->places);
  std::vector<size_t>& ends = scratch->ends;
  ends.clear();
  for (size_t end = piece.size(); end > 0; end = static_cast<size_t>(scratch->places[end].begin)) {
    ends.push_back(end);
  }
  for (size_t begin = 0; !ends.empty();) {
    size_t end = ends.back();
    ends.pop_back();
    const int32_t token = scratch->places[end].id;
    if (token != unk_id_) {
      ids->push_back(token);
    } else {
      for (; !ends.empty() && scratch->places[ends.back()].id == unk_id_; ends.pop_back()) {
        end = ends.back();
      }
      PushUnknown(piece.substr(begin, end - begin), ids);
    }
    begin = end;
  }
  if (id) wholes_.Set(*id, ids->size() == before + 1 && ids->back() == *id);
}

}  // namespace nibble
