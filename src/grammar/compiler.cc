// SPDX-License-Identifier: Apache-2.0
#include "grammar/compiler.h"

#include <algorithm>
#include <map>
#include <unordered_map>

namespace nibble::grammar {
namespace {

using Kind = Expression::Kind;

// Up to this many copies of a part stand in a row; more become a loop with a counter.
constexpr int64_t kUnrolled = 3;

class StateBuilder {
 public:
  StateBuilder(std::span<const GrammarBuilder::Rule> rules, const std::string& where)
      : rules_(rules), where_(where), nullable_(rules.size(), false) {
    Add({.kind = State::Kind::kReturn});
  }

  Program Run(RuleStates* states) {
    FindNullableRules();
    for (const GrammarBuilder::Rule& rule : rules_) {
      states->first.push_back(static_cast<int32_t>(program_.states.size()));
      states->start.push_back(Build(*rule.body, kReturnState, 0));
    }
    states->first.push_back(static_cast<int32_t>(program_.states.size()));
    FindByteClasses();
    return std::move(program_);
  }

 private:
  int32_t Add(const State& state) {
    if (program_.states.size() >= GrammarLimits::kStates) {
      FailUsage("{}: too large, over {} states", where_, GrammarLimits::kStates);
    }
    program_.states.push_back(state);
    return static_cast<int32_t>(program_.states.size()) - 1;
  }
  int32_t AddBytes(const ByteSet& bytes, int32_t next) {
    const auto [it, is_new] = set_ids_.emplace(bytes, static_cast<int32_t>(program_.sets.size()));
    if (is_new) program_.sets.push_back(bytes);
    return Add({.kind = State::Kind::kBytes, .value = it->second, .next = next});
  }
  int32_t AddByte(char byte, int32_t next) {
    return AddBytes(ByteSet().set(static_cast<uint8_t>(byte)), next);
  }
  int32_t AddSplit(int32_t next, int32_t other) {
    return Add({.kind = State::Kind::kSplit, .next = next, .other = other});
  }
  void Step(int depth) {
    if (depth > GrammarLimits::kExpressionDepth) FailUsage("{}: nested too deeply", where_);
    if (++steps_ > GrammarLimits::kBuildSteps) FailUsage("{}: too large to compile", where_);
  }

  bool Nullable(const Expression& e, int depth);
  void FindNullableRules();
  int32_t Build(const Expression& e, int32_t next, int depth);
  int32_t BuildCharacters(const CharRanges& ranges, int32_t next);
  int32_t BuildChoice(const Expression& e, int32_t next, int depth);
  int32_t BuildLiterals(std::span<const std::string_view> sorted, size_t at, int32_t next);
  int32_t BuildRepeat(const Expression& e, int32_t next, int depth);
  int32_t BuildNullableRepeat(const Expression& part, int64_t max, int32_t next, int depth);
  int32_t BuildStar(const Expression& part, int32_t next, int depth);
  int32_t BuildLoop(const Expression& part, Loop loop, int32_t next, int depth);
  void FindByteClasses();

  std::span<const GrammarBuilder::Rule> rules_;
  const std::string& where_;
  Program program_;
  std::unordered_map<ByteSet, int32_t> set_ids_;
  std::vector<bool> nullable_;  // rules that may be empty
  size_t steps_ = 0;
};

bool StateBuilder::Nullable(const Expression& e, int depth) {
  Step(depth);
  const auto nullable = [&](const Expr& part) { return Nullable(*part, depth + 1); };
  switch (e.kind) {
    case Kind::kLiteral:
      return e.literal.empty();
    case Kind::kSequence:
      return std::all_of(e.parts.begin(), e.parts.end(), nullable);
    case Kind::kChoice:
      return std::any_of(e.parts.begin(), e.parts.end(), nullable);
    case Kind::kRepeat:
      return e.min == 0 || nullable(e.parts[0]);
    case Kind::kRule:
      return nullable_[static_cast<size_t>(e.id)];
    default:
      return false;
  }
}

// A rule is looked at again when one that it names turns out to be nullable.
void StateBuilder::FindNullableRules() {
  std::vector<std::vector<size_t>> users(rules_.size());
  for (size_t rule = 0; rule < rules_.size(); ++rule) {
    const auto collect = [&](const auto& self, const Expression& e, int depth) -> void {
      Step(depth);
      if (e.kind == Kind::kRule) users[static_cast<size_t>(e.id)].push_back(rule);
      for (const Expr& part : e.parts) self(self, *part, depth + 1);
    };
    collect(collect, *rules_[rule].body, 0);
  }
  std::vector<size_t> open(rules_.size());
  for (size_t rule = 0; rule < rules_.size(); ++rule) open[rule] = rule;
  while (!open.empty()) {
    const size_t rule = open.back();
    open.pop_back();
    if (nullable_[rule] || !Nullable(*rules_[rule].body, 0)) continue;
    nullable_[rule] = true;
    open.insert(open.end(), users[rule].begin(), users[rule].end());
  }
}

int32_t StateBuilder::Build(const Expression& e, int32_t next, int depth) {
  Step(depth);
  switch (e.kind) {
    case Kind::kLiteral:
      for (size_t i = e.literal.size(); i-- > 0;) next = AddByte(e.literal[i], next);
      return next;
    case Kind::kBytes:
      return AddBytes(e.bytes, next);
    case Kind::kCharacters:
      return BuildCharacters(e.characters, next);
    case Kind::kSequence:
      for (size_t i = e.parts.size(); i-- > 0;) next = Build(*e.parts[i], next, depth + 1);
      return next;
    case Kind::kChoice:
      return BuildChoice(e, next, depth);
    case Kind::kRepeat:
      return BuildRepeat(e, next, depth);
    case Kind::kRule:
      return Add({.kind = next == kReturnState ? State::Kind::kJump : State::Kind::kCall,
                  .value = e.id,
                  .next = next});
    case Kind::kToken:
      return Add({.kind = State::Kind::kToken, .value = e.id, .next = next});
  }
  NIBBLE_CHECK(false);
  return next;
}

int32_t StateBuilder::BuildCharacters(const CharRanges& ranges, int32_t next) {
  std::map<std::vector<ByteRange>, int32_t> tails = {{{}, next}};
  int32_t all = -1;
  for (const auto& [tail, firsts] : EncodeRanges(ranges)) {
    int32_t at = next;
    for (size_t i = tail.size(); i-- > 0;) {
      const std::vector<ByteRange> suffix(tail.begin() + static_cast<ptrdiff_t>(i), tail.end());
      const auto [it, is_new] = tails.emplace(suffix, -1);
      if (is_new) {
        ByteSet bytes;
        for (int b = tail[i].first; b <= tail[i].last; ++b) bytes.set(static_cast<size_t>(b));
        it->second = AddBytes(bytes, at);
      }
      at = it->second;
    }
    at = AddBytes(firsts, at);
    all = all < 0 ? at : AddSplit(at, all);
  }
  return all < 0 ? AddBytes({}, next) : all;
}

// Literals share their beginnings, so that one of thousands is one state and not thousands.
int32_t StateBuilder::BuildChoice(const Expression& e, int32_t next, int depth) {
  std::vector<std::string_view> literals;
  std::vector<const Expression*> others;
  const auto collect = [&](const auto& self, const Expression& choice, int level) -> void {
    Step(level);
    for (const Expr& part : choice.parts) {
      if (part->kind == Kind::kChoice) {
        self(self, *part, level + 1);
      } else if (part->kind == Kind::kLiteral) {
        literals.push_back(part->literal);
      } else {
        others.push_back(part.get());
      }
    }
  };
  collect(collect, e, depth);
  std::sort(literals.begin(), literals.end());
  literals.erase(std::unique(literals.begin(), literals.end()), literals.end());
  int32_t all = literals.empty() ? -1 : BuildLiterals(literals, 0, next);
  for (size_t i = others.size(); i-- > 0;) {
    const int32_t one = Build(*others[i], next, depth + 1);
    all = all < 0 ? one : AddSplit(one, all);
  }
  return all < 0 ? AddBytes({}, next) : all;
}

// `sorted` differ and have the first `at` bytes in common.
int32_t StateBuilder::BuildLiterals(std::span<const std::string_view> sorted, size_t at,
                                    int32_t next) {
  const std::string_view first = sorted.front(), last = sorted.back();
  size_t end = at;  // of what all have in common
  while (end < first.size() && end < last.size() && first[end] == last[end]) ++end;
  int32_t all = -1;
  if (first.size() == end) {
    all = next;
    sorted = sorted.subspan(1);
  }
  while (!sorted.empty()) {
    const auto group = std::find_if(sorted.begin(), sorted.end(), [&](std::string_view literal) {
      return literal[end] != sorted.front()[end];
    });
    const auto size = static_cast<size_t>(group - sorted.begin());
    const int32_t one =
        AddByte(sorted.front()[end], BuildLiterals(sorted.first(size), end + 1, next));
    all = all < 0 ? one : AddSplit(one, all);
    sorted = sorted.subspan(size);
  }
  for (; end > at; --end) all = AddByte(first[end - 1], all);
  return all;
}

int32_t StateBuilder::BuildRepeat(const Expression& e, int32_t next, int depth) {
  const Expression& part = *e.parts[0];
  if (e.min > GrammarLimits::kRepeat || e.max > GrammarLimits::kRepeat) {
    FailUsage("{}: repeated over {} times", where_, GrammarLimits::kRepeat);
  }
  if (e.max == 0) return next;
  if (e.max == 1) {
    const int32_t once = Build(part, next, depth + 1);
    return e.min == 1 ? once : AddSplit(once, next);
  }
  if (Nullable(part, depth + 1)) return BuildNullableRepeat(part, e.max, next, depth);
  if (e.max != kUnbounded && e.max > kUnrolled) {
    return BuildLoop(part, {static_cast<int32_t>(e.min), static_cast<int32_t>(e.max)}, next, depth);
  }
  if (e.max == kUnbounded) {
    next = BuildStar(part, next, depth);
    const auto min = static_cast<int32_t>(e.min);
    if (min > kUnrolled) return BuildLoop(part, {min, min}, next, depth);
  } else {
    const int32_t end = next;
    for (int64_t i = e.min; i < e.max; ++i) next = AddSplit(Build(part, next, depth + 1), end);
  }
  for (int64_t i = 0; i < e.min; ++i) next = Build(part, next, depth + 1);
  return next;
}

// A part that may be empty needs no least count, and a counter would count rounds of nothing: (x?)
// {m,n} is x{0,n}; others are written out.
int32_t StateBuilder::BuildNullableRepeat(const Expression& part, int64_t max, int32_t next,
                                          int depth) {
  if (max == kUnbounded) return BuildStar(part, next, depth);
  if (part.kind == Kind::kRepeat && part.min == 0 && !Nullable(*part.parts[0], depth + 1)) {
    if (part.max == kUnbounded) return BuildStar(*part.parts[0], next, depth);
    if (part.max == 0) return next;
    if (part.max * max > GrammarLimits::kRepeat) {
      FailUsage("{}: repeated over {} times", where_, GrammarLimits::kRepeat);
    }
    return BuildLoop(*part.parts[0], {0, static_cast<int32_t>(part.max * max)}, next, depth);
  }
  const int32_t end = next;
  for (int64_t i = 0; i < max; ++i) {
    Step(depth);
    next = AddSplit(Build(part, next, depth + 1), end);
  }
  return next;
}

int32_t StateBuilder::BuildStar(const Expression& part, int32_t next, int depth) {
  const int32_t star = AddSplit(kReturnState, next);
  const int32_t body = Build(part, star, depth + 1);
  program_.states[static_cast<size_t>(star)].next = body;
  return star;
}

int32_t StateBuilder::BuildLoop(const Expression& part, Loop loop, int32_t next, int depth) {
  const int32_t body = Build(part, kReturnState, depth + 1);
  program_.loops.push_back(loop);
  return Add({.kind = State::Kind::kLoop,
              .value = static_cast<int32_t>(program_.loops.size()) - 1,
              .next = next,
              .other = body});
}

void StateBuilder::FindByteClasses() {
  Program& p = program_;
  p.classes = 1;
  for (const ByteSet& set : p.sets) {
    if (p.classes == 256) break;
    std::map<std::pair<int, bool>, uint8_t> renamed;
    for (size_t b = 0; b < 256; ++b) {
      const auto [it, is_new] =
          renamed.emplace(std::pair(p.byte_class[b], set[b]), static_cast<uint8_t>(renamed.size()));
      p.byte_class[b] = it->second;
    }
    p.classes = static_cast<int32_t>(renamed.size());
  }
  for (const ByteSet& set : p.sets) {
    ByteSet& of_classes = p.class_sets.emplace_back();
    for (size_t b = 0; b < 256; ++b) {
      if (set[b]) of_classes.set(p.byte_class[b]);
    }
  }
}

}  // namespace

Program BuildStates(std::span<const GrammarBuilder::Rule> rules, const std::string& where,
                    RuleStates* states) {
  return StateBuilder(rules, where).Run(states);
}

}  // namespace nibble::grammar
