// SPDX-License-Identifier: Apache-2.0
#include "text/bpe.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "base/utf8.h"

namespace nibble {
namespace {

// Up to so many symbols, a search through all pairs is faster than a heap.
constexpr size_t kFewSymbols = 32;
// The most bytes to look at when every token is cut in two everywhere. Llama 2's take 2 million.
constexpr uint64_t kMaxCutBytes = 1 << 30;

// "a b" or ["a", "b"].
std::pair<std::string_view, std::string_view> SplitMerge(simdjson::dom::element merge,
                                                         const JsonNode& list, size_t rank) {
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
  Fail("{}[{}] must be \"left right\" or [\"left\", \"right\"]", list.where(), rank);
}

}  // namespace

Bpe Bpe::FromJson(const JsonNode& model) {
  model.AllowKeys({"type", "vocab", "merges", "dropout", "unk_token", "continuing_subword_prefix",
                   "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges",
                   "piece_types"});
  if (model.GetOr("dropout", 0.0) != 0) model.Unsupported("dropout");
  Bpe bpe;
  bpe.prefix_ = model.GetOr<std::string_view>("continuing_subword_prefix", "");
  bpe.suffix_ = model.GetOr<std::string_view>("end_of_word_suffix", "");
  CheckTokenSize(bpe.prefix_, model);
  CheckTokenSize(bpe.suffix_, model);
  if (model.Find("merges")) {
    bpe.LoadVocabulary(model.Get("vocab"));
    bpe.LoadMerges(model.Get("merges"));
  } else {
    ScoredVocabulary scored = ScoredVocabulary::FromJson(model);
    bpe.SetVocabulary(std::move(scored.vocabulary));
    bpe.MergesFromScores(scored, model);
  }
  bpe.fuse_unk_ = model.GetOr("fuse_unk", false);
  bpe.ignore_merges_ = model.GetOr("ignore_merges", false);
  if (const auto unk = model.Find("unk_token")) {
    bpe.unk_id_ = bpe.vocabulary_.Find(unk->As<std::string_view>());
    if (!bpe.unk_id_) Fail("{} is not in the vocabulary", unk->where());
  }
  if (model.GetOr("byte_fallback", false)) bpe.byte_ids_ = ByteTokens(bpe.vocabulary_, model);
  return bpe;
}

void Bpe::LoadVocabulary(const JsonNode& node) {
  const auto object = node.As<simdjson::dom::object>();
  Vocabulary vocabulary(object.size());
  for (const auto& field : object) {
    int64_t id = -1;  // refused, as is an id that is no integer
    if (field.value.get(id) != simdjson::SUCCESS) id = -1;
    vocabulary.Add(field.key, id, node);
  }
  SetVocabulary(std::move(vocabulary));
}

void Bpe::SetVocabulary(Vocabulary vocabulary) {
  vocabulary_ = std::move(vocabulary);
  characters_ = CharacterIds(vocabulary_);
  wholes_ = WholeTokens(static_cast<size_t>(vocabulary_.end()));
}

void Bpe::LoadMerges(const JsonNode& node) {
  const auto list = node.As<simdjson::dom::array>();
  merges_.Reserve(list.size());
  uint32_t rank = 0;
  std::string joined;
  for (const simdjson::dom::element merge : list) {
    const auto [left, right] = SplitMerge(merge, node, rank);
    joined.assign(left).append(right, right.starts_with(prefix_) ? prefix_.size() : 0);
    const auto left_id = vocabulary_.Find(left), right_id = vocabulary_.Find(right),
               id = vocabulary_.Find(joined);
    if (!left_id || !right_id || !id) {
      Fail("{}[{}]: token \"{}\" is not in the vocabulary", node.where(), rank,
           !left_id ? left : (!right_id ? right : std::string_view(joined)));
    }
    // If a pair is listed twice, the later entry counts.
    merges_.At(*left_id, *right_id) = {.rank = rank, .id = *id};
    AddJoint(left, right);
    ++rank;
  }
}

void Bpe::MergesFromScores(const ScoredVocabulary& scored, const JsonNode& model) {
  std::vector<int32_t> order;  // normal tokens, the best first
  std::vector<TokenTrie::Token> user_defined;
  uint64_t work = 0;
  for (int32_t id = 0; id < vocabulary_.end(); ++id) {
    const std::string_view token = vocabulary_.Text(id);
    work += token.size() * token.size();
    if (scored.type(id) == ScoredVocabulary::kNormal) order.push_back(id);
    if (scored.type(id) == ScoredVocabulary::kUserDefined) user_defined.push_back({token, id});
  }
  if (work > kMaxCutBytes) Fail("{}: the tokens are too long", model.where());
  user_defined_ = TokenTrie(std::move(user_defined), model.where());
  const auto score = [&](int32_t id) { return scored.scores[static_cast<size_t>(id)]; };
  std::ranges::stable_sort(order, std::greater<>(), score);
  merges_.Reserve(2 * order.size());
  uint32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && score(order[i]) != score(order[i - 1])) ++rank;
    const std::string_view token = vocabulary_.Text(order[i]);
    for (size_t cut = 1; cut < token.size(); ++cut) {
      if (IsUtf8Continuation(token[cut])) continue;
      const auto left = vocabulary_.Find(token.substr(0, cut));
      const auto right = left ? vocabulary_.Find(token.substr(cut)) : std::nullopt;
      if (!right) continue;
      merges_.At(*left, *right) = {.rank = rank, .id = order[i]};
      AddJoint(token.substr(0, cut), token.substr(cut));
    }
  }
}

// The last character of `left` meets the first of `right`.
void Bpe::AddJoint(std::string_view left, std::string_view right) {
  if (left.empty() || right.empty()) return;
  size_t last = left.size() - 1;
  while (IsUtf8Continuation(left[last])) --last;
  const int32_t left_id = characters_.Find(left.substr(last));
  const int32_t right_id = characters_.Find(right.substr(0, Utf8Length(right[0])));
  if (left_id >= 0 && right_id >= 0) merges_.At(left_id, right_id);
}

PairTable::Merge Bpe::FindMerge(int32_t left, int32_t right) const {
  const PairTable::Merge* merge = merges_.Find(left, right);
  return merge == nullptr ? PairTable::Merge{} : *merge;
}

int32_t Bpe::AffixedId(bool first, bool last, Scratch* scratch, std::string_view* written) const {
  scratch->affixed.assign(first ? "" : prefix_).append(*written).append(last ? suffix_ : "");
  *written = scratch->affixed;
  return vocabulary_.Find(*written).value_or(-1);
}

int32_t Bpe::UserDefinedAt(std::string_view text, Work* work, size_t* bytes) const {
  int32_t found = -1;
  user_defined_.ForEachPrefix(text, work, [&](size_t size, int32_t id) {
    *bytes = size;
    found = id;
  });
  return found;
}

void Bpe::Encode(std::string_view piece, Work* work, Scratch* scratch,
                 std::vector<int32_t>* ids) const {
  if (piece.size() > std::numeric_limits<int32_t>::max()) {
    FailUsage("a text of {} bytes is too long for the tokenizer; split it", piece.size());
  }
  const auto id =
      piece.size() <= vocabulary_.longest() ? vocabulary_.Find(piece) : std::optional<int32_t>();
  if (id && (ignore_merges_ || wholes_.Find(*id) == true)) return ids->push_back(*id);
  const size_t before = ids->size();
  EncodeRuns(piece, work, scratch, ids);
  if (id) wholes_.Set(*id, ids->size() == before + 1 && ids->back() == *id);
}

void Bpe::EncodeRuns(std::string_view piece, Work* work, Scratch* scratch,
                     std::vector<int32_t>* ids) const {
  std::vector<Symbol>& run = scratch->run;
  run.clear();
  const bool cuts = prefix_.empty() && suffix_.empty();
  size_t begin = 0;        // of the run
  bool after_unk = false;  // the character before is not in the vocabulary
  const auto push = [&](int32_t id, PairTable::Merge merge) {
    if (!run.empty()) run.back().merge = merge;
    run.push_back({.id = id, .merge = {}});
  };
  const auto find = [&](int32_t id) {
    return run.empty() ? PairTable::Merge{} : FindMerge(run.back().id, id);
  };
  for (size_t at = 0, next = 0; at < piece.size(); at = next) {
    size_t bytes = 0;
    const int32_t whole =
        user_defined_.empty() ? -1 : UserDefinedAt(piece.substr(at), work, &bytes);
    if (whole >= 0) {
      if (!run.empty()) FinishRun(piece.substr(begin, at - begin), false, scratch, ids);
      ids->push_back(whole);
      begin = next = at + bytes;
      after_unk = false;
      continue;
    }
    next = at + Utf8Length(piece[at]);
    std::string_view written = piece.substr(at, next - at);
    const int32_t id = cuts ? characters_.Find(written)
                            : AffixedId(at == 0, next == piece.size(), scratch, &written);
    if (id >= 0) {
      const bool neighbours = cuts && !run.empty() && !after_unk;
      const PairTable::Merge* merge = neighbours ? merges_.Find(run.back().id, id) : nullptr;
      if (neighbours && merge == nullptr) {
        FinishRun(piece.substr(begin, at - begin), false, scratch, ids);
        begin = at;
      }
      push(id, merge != nullptr ? *merge : find(id));
      after_unk = false;
    } else if (byte_ids_) {
      for (const char byte : written) {
        const int32_t byte_id = (*byte_ids_)[static_cast<unsigned char>(byte)];
        push(byte_id, find(byte_id));
      }
      after_unk = true;
    } else if (unk_id_) {  // without one, the character leaves nothing behind and parts nothing
      if (!after_unk || !fuse_unk_) push(*unk_id_, find(*unk_id_));
      after_unk = true;
    }
  }
  if (!run.empty()) FinishRun(piece.substr(begin), begin == 0, scratch, ids);
}

void Bpe::FinishRun(std::string_view text, bool is_piece, Scratch* scratch,
                    std::vector<int32_t>* ids) const {
  std::vector<Symbol>& run = scratch->run;
  std::optional<int32_t> id;
  if (!is_piece && run.size() > 1 && text.size() <= vocabulary_.longest()) {
    id = vocabulary_.Find(text);
  }
  if (id && wholes_.Find(*id) == true) {
    ids->push_back(*id);
  } else {
    run.size() <= kFewSymbols ? MergeFew(&run) : MergeMany(scratch);
    if (id) wholes_.Set(*id, run.size() == 1 && run[0].id == *id);
    for (const Symbol& symbol : run) ids->push_back(symbol.id);
  }
  run.clear();
}

void Bpe::MergeFew(std::vector<Symbol>* run) const {
  std::vector<Symbol>& symbols = *run;
  while (symbols.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < symbols.size(); ++i) {
      if (symbols[i].merge.rank < symbols[best].merge.rank) best = i;
    }
    const PairTable::Merge merge = symbols[best].merge;
    if (merge.rank == PairTable::kNoMerge) return;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    symbols[best].id = merge.id;
    symbols[best].merge =
        best + 1 < symbols.size() ? FindMerge(merge.id, symbols[best + 1].id) : PairTable::Merge{};
    if (best > 0) symbols[best - 1].merge = FindMerge(symbols[best - 1].id, merge.id);
  }
}

void Bpe::MergeMany(Scratch* scratch) const {
  std::vector<Symbol>& symbols = scratch->run;
  std::vector<Link>& links = scratch->links;
  std::vector<Candidate>& heap = scratch->heap;
  const auto count = static_cast<int32_t>(symbols.size());
  const auto add = [&](int32_t left) {
    if (left < 0 || links[left].next < 0 || symbols[left].merge.rank == PairTable::kNoMerge) return;
    heap.push_back(
        {symbols[left].merge.rank, left, symbols[left].id, symbols[links[left].next].id});
  };
  links.clear();
  for (int32_t i = 0; i < count; ++i) links.push_back({i - 1, i + 1 < count ? i + 1 : -1});
  for (int32_t i = 0; i < count; ++i) add(i);
  std::make_heap(heap.begin(), heap.end());
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& left = symbols[top.left];
    Link& link = links[top.left];
    if (left.id != top.left_id || link.next < 0 || symbols[link.next].id != top.right_id) continue;
    left.id = left.merge.id;
    symbols[link.next].id = -1;  // joined to the left
    link.next = links[link.next].next;
    if (link.next >= 0) links[link.next].prev = top.left;
    left.merge = link.next < 0 ? PairTable::Merge{} : FindMerge(left.id, symbols[link.next].id);
    if (link.prev >= 0) symbols[link.prev].merge = FindMerge(symbols[link.prev].id, left.id);
    for (const int32_t changed : {link.prev, top.left}) {
      const size_t size = heap.size();
      add(changed);
      if (heap.size() > size) std::push_heap(heap.begin(), heap.end());
    }
  }
  std::erase_if(symbols, [](const Symbol& symbol) { return symbol.id < 0; });
}

}  // namespace nibble
