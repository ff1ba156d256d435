// SPDX-License-Identifier: Apache-2.0
#include "text/pre_tokenizer.h"

#include <utility>

#include "base/utf8.h"
#include "source/byte_level.h"
#include "text/pattern_json.h"
#include "text/unicode_classes.h"

namespace nibble {
namespace {

// The pattern of GPT-2, which ByteLevel implies.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
// \w+|[^\w\s]+ with \w of UTS #18.
constexpr std::string_view kWordsAndSymbols =
    R"([\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}]+)"
    R"(|[^\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\p{Join_Control}\s]+)";

// About the length of a word in most languages, to estimate the number of pieces.
constexpr size_t kBytesOfAWord = 5;

enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };

Behavior BehaviorFromJson(const JsonNode& node) {
  const auto name = node.As<std::string_view>();
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  node.Unsupported(name);
}

// A stretch of a piece: a match of the pattern, or what lies between two.
struct Stretch {
  Pieces::Range range;
  bool is_match;
};

// Returns whether a piece ends between two neighbours.
bool CutBetween(Behavior behavior, const Stretch& left, const Stretch& right) {
  switch (behavior) {
    case Behavior::kContiguous:
      return left.is_match != right.is_match;
    case Behavior::kMergedWithPrevious:
      return !right.is_match || left.is_match;
    case Behavior::kMergedWithNext:
      return !left.is_match || right.is_match;
    default:
      return true;
  }
}

// Every character of a class is a match. This is much faster than a pattern, which looks at each
// place where a match could start.
struct CharacterClass {
  bool (*contains)(uint32_t);

  template <typename Match>
  void ForEachMatch(std::string_view text, Work*, const Match& match) const {
    ForEachCharacter(text, [&](uint32_t c, size_t begin, size_t end) {
      if (contains(c)) match(begin, end);
    });
  }
};

// Every `length` characters are a match, and so is a shorter rest.
struct CharacterCount {
  size_t length;

  template <typename Match>
  void ForEachMatch(std::string_view text, Work*, const Match& match) const {
    size_t first = 0, count = 0;
    ForEachCharacter(text, [&](uint32_t, size_t, size_t end) {
      if (++count < length && end < text.size()) return;
      match(first, end);
      first = end;
      count = 0;
    });
  }
};

template <typename Pattern>
class SplitStep {
 public:
  SplitStep(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void operator()(Pieces* pieces, Work* work) const {
    std::vector<Pieces::Range> ranges;
    ranges.reserve(pieces->ranges.size() + pieces->text.size() / kBytesOfAWord);
    std::vector<Stretch> stretches;
    for (size_t i = 0; i < pieces->ranges.size(); ++i) {
      const Pieces::Range& piece = pieces->ranges[i];
      stretches.clear();
      size_t done = piece.begin;
      pattern_.ForEachMatch((*pieces)[i], work, [&](size_t begin, size_t end) {
        begin += piece.begin;
        end += piece.begin;
        if (done != begin) stretches.push_back({{done, begin}, invert_});
        stretches.push_back({{begin, end}, !invert_});
        done = end;
      });
      if (stretches.empty()) {  // no match, the most frequent case
        if (behavior_ != Behavior::kRemoved || !invert_) ranges.push_back(piece);
        continue;
      }
      if (done != piece.end) stretches.push_back({{done, piece.end}, invert_});
      Join(stretches, &ranges);
    }
    pieces->ranges = std::move(ranges);
  }

 private:
  void Join(const std::vector<Stretch>& stretches, std::vector<Pieces::Range>* ranges) const {
    size_t begin = 0;
    for (size_t i = 0; i < stretches.size(); ++i) {
      const Stretch& stretch = stretches[i];
      if (i == 0 || CutBetween(behavior_, stretches[i - 1], stretch)) begin = stretch.range.begin;
      if (i + 1 < stretches.size() && !CutBetween(behavior_, stretch, stretches[i + 1])) continue;
      const bool removed = behavior_ == Behavior::kRemoved && stretch.is_match;
      if (!removed && begin != stretch.range.end) ranges->push_back({begin, stretch.range.end});
    }
  }

  Pattern pattern_;
  Behavior behavior_;
  bool invert_;
};

// Replaces each piece's text by what append(i, piece, &text) writes.
template <typename Append>
void Rewrite(Pieces* pieces, Work* work, const Append& append) {
  std::string text;
  text.reserve(pieces->text.size() + pieces->text.size() / 4);
  for (size_t i = 0; i < pieces->ranges.size(); ++i) {
    const size_t begin = text.size();
    append(i, (*pieces)[i], &text);
    work->ChargeWrite(text.size() - begin);
    pieces->ranges[i] = {begin, text.size()};
  }
  pieces->text = std::move(text);
}

void PrefixSpace(Pieces* pieces, Work* work) {
  Rewrite(pieces, work, [](size_t, std::string_view piece, std::string* text) {
    if (!piece.starts_with(' ')) text->push_back(' ');
    text->append(piece);
  });
}

void MapBytes(Pieces* pieces, Work* work) {
  Rewrite(pieces, work,
          [](size_t, std::string_view piece, std::string* text) { AppendByteChars(piece, text); });
}

class MetaspaceStep {
 public:
  MetaspaceStep(std::string replacement, PrependScheme scheme)
      : replacement_(std::move(replacement)), scheme_(scheme) {}

  void operator()(Pieces* pieces, Work* work) const {
    Rewrite(pieces, work, [&](size_t i, std::string_view piece, std::string* text) {
      const bool first = i == 0 && pieces->ranges[0].begin == 0 && pieces->starts_input;
      const bool prepend =
          scheme_ == PrependScheme::kAlways || (scheme_ == PrependScheme::kFirst && first);
      if (prepend && !piece.starts_with(' ') && !piece.starts_with(replacement_)) {
        text->append(replacement_);
      }
      for (const char c : piece) {
        if (c == ' ') {
          text->append(replacement_);
        } else {
          text->push_back(c);
        }
      }
    });
  }

 private:
  std::string replacement_;
  PrependScheme scheme_;
};

using Steps = std::vector<std::function<void(Pieces*, Work*)>>;

void AddByteLevel(const JsonNode& node, Steps* steps) {
  node.AllowKeys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (node.GetOr("add_prefix_space", true)) steps->push_back(PrefixSpace);
  if (node.GetOr("use_regex", true)) {
    steps->push_back(SplitStep(Regex(kGpt2Pattern, Regex::Syntax::kPattern, node.where()),
                               Behavior::kIsolated, false));
  }
  steps->push_back(MapBytes);
}

void AddMetaspace(const JsonNode& node, Steps* steps) {
  node.AllowKeys({"type", "replacement", "prepend_scheme", "split", "add_prefix_space", "str_rep"});
  const std::string replacement = CharacterFromJson(node.Get("replacement"));
  steps->push_back(MetaspaceStep(replacement, PrependSchemeFromJson(node)));
  if (node.GetOr("split", true)) {
    steps->push_back(SplitStep(Regex(replacement, Regex::Syntax::kLiteral, node.where()),
                               Behavior::kMergedWithNext, false));
  }
}

// Adds the step of a component that cuts at a class of characters. Returns false if `type` is none
// of these.
bool AddClassSplit(const JsonNode& node, std::string_view type, Steps* steps) {
  const auto cut = [&](bool (*contains)(uint32_t), Behavior behavior) {
    steps->push_back(SplitStep(CharacterClass{contains}, behavior, false));
  };
  if (type == "Digits") {
    node.AllowKeys({"type", "individual_digits"});
    const bool individual = node.GetOr("individual_digits", false);
    cut(IsNumber, individual ? Behavior::kIsolated : Behavior::kContiguous);
  } else if (type == "Punctuation") {
    node.AllowKeys({"type", "behavior"});
    const auto behavior = node.Find("behavior");
    cut(IsPunctuation, behavior ? BehaviorFromJson(*behavior) : Behavior::kIsolated);
  } else if (type == "WhitespaceSplit") {
    node.AllowKeys({"type"});
    cut(nibble::IsSpace, Behavior::kRemoved);
  } else if (type == "BertPreTokenizer") {
    node.AllowKeys({"type"});
    cut(nibble::IsSpace, Behavior::kRemoved);
    cut(IsPunctuation, Behavior::kIsolated);
  } else {
    return false;
  }
  return true;
}

void AddStep(const JsonNode& node, std::string_view type, Steps* steps) {
  if (type == "ByteLevel") return AddByteLevel(node, steps);
  if (type == "Metaspace") return AddMetaspace(node, steps);
  if (AddClassSplit(node, type, steps)) return;
  if (type == "Split") {
    node.AllowKeys({"type", "pattern", "behavior", "invert"});
    steps->push_back(SplitStep(PatternFromJson(node.Get("pattern")),
                               BehaviorFromJson(node.Get("behavior")),
                               node.GetOr("invert", false)));
  } else if (type == "Whitespace") {
    node.AllowKeys({"type"});
    steps->push_back(SplitStep(Regex(kWordsAndSymbols, Regex::Syntax::kPattern, node.where()),
                               Behavior::kRemoved, true));
  } else if (type == "CharDelimiterSplit") {
    node.AllowKeys({"type", "delimiter"});
    steps->push_back(SplitStep(
        Regex(CharacterFromJson(node.Get("delimiter")), Regex::Syntax::kLiteral, node.where()),
        Behavior::kRemoved, false));
  } else if (type == "FixedLength") {
    node.AllowKeys({"type", "length"});
    const auto length = node.GetOr<int64_t>("length", 5);
    if (length < 1) Fail("{}: length {} is not above 0", node.where(), length);
    steps->push_back(
        SplitStep(CharacterCount{static_cast<size_t>(length)}, Behavior::kIsolated, false));
  } else {
    node.Unsupported(fmt::format("pre_tokenizer {}", type));
  }
}

}  // namespace

PreTokenizer PreTokenizer::FromJson(const std::optional<JsonNode>& node) {
  PreTokenizer result;
  if (!node) return result;
  node->ForEachComponent("pretokenizers", [&](const JsonNode& step, std::string_view type) {
    AddStep(step, type, &result.steps_);
  });
  return result;
}

Pieces PreTokenizer::Split(std::string text, bool starts_input, Work* work) const {
  Pieces pieces{.text = std::move(text), .ranges = {}, .starts_input = starts_input};
  if (!pieces.text.empty()) pieces.ranges.push_back({0, pieces.text.size()});
  for (const Step& step : steps_) step(&pieces, work);
  return pieces;
}

}  // namespace nibble
