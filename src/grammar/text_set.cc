// SPDX-License-Identifier: Apache-2.0
#include "grammar/text_set.h"

#include <algorithm>
#include <map>
#include <unordered_map>

#include "base/error.h"
#include "base/utf8.h"

namespace nibble::grammar {
namespace {

using Kind = Expression::Kind;
using Arc = TextSet::Arc;

constexpr uint32_t kLastCharacter = 0x10FFFF;

void CheckSize(size_t states) {
  if (states > GrammarLimits::kSetStates) {
    FailUsage("patterns, bounds and lengths together take over {} states",
              GrammarLimits::kSetStates);
  }
}
// Counts arcs, and steps while they are made, and refuses too many.
void Count(size_t more, size_t* all) {
  *all += more;
  if (*all > GrammarLimits::kSetSteps) FailUsage("a pattern with what is beside it is too large");
}

// An automaton that may be in many states at once (Thompson's construction).
class Nondeterministic {
 public:
  struct Node {
    std::vector<Arc> arcs;
    std::vector<int32_t> empty;  // nodes that are reached without a character
  };

  explicit Nondeterministic(const Expression& e) { start_ = Build(e, Add({})); }

  int32_t start() const { return start_; }
  static constexpr int32_t kEnd = 0;
  const Node& at(int32_t node) const { return nodes_[static_cast<size_t>(node)]; }

  // `set` and all nodes that it reaches without a character, sorted.
  std::vector<int32_t> Closed(std::vector<int32_t> set) const {
    std::vector<int32_t> open = set;
    std::set<int32_t> all(set.begin(), set.end());
    while (!open.empty()) {
      const int32_t node = open.back();
      open.pop_back();
      for (const int32_t next : at(node).empty) {
        if (all.insert(next).second) open.push_back(next);
      }
    }
    return {all.begin(), all.end()};
  }

 private:
  int32_t Add(Node node) {
    CheckSize(nodes_.size());
    nodes_.push_back(std::move(node));
    return static_cast<int32_t>(nodes_.size()) - 1;
  }

  // The node from which `e` leads to `next`.
  int32_t Build(const Expression& e, int32_t next) {
    switch (e.kind) {
      case Kind::kLiteral: {
        std::vector<uint32_t> characters;
        ForEachCharacter(e.literal, [&](uint32_t c, size_t, size_t) { characters.push_back(c); });
        for (size_t i = characters.size(); i-- > 0;) {
          next = Add({.arcs = {{characters[i], characters[i], next}}, .empty = {}});
        }
        return next;
      }
      case Kind::kCharacters: {
        Node node;
        for (const CharRange& range : e.characters) {
          node.arcs.push_back({range.first, range.last, next});
        }
        return Add(std::move(node));
      }
      case Kind::kSequence:
        for (size_t i = e.parts.size(); i-- > 0;) next = Build(*e.parts[i], next);
        return next;
      case Kind::kChoice: {
        Node node;
        for (const Expr& part : e.parts) node.empty.push_back(Build(*part, next));
        return Add(std::move(node));
      }
      case Kind::kRepeat:
        return BuildRepeat(e, next);
      default:
        Fail("a set of texts has no rules, tokens and bytes");
    }
  }

  int32_t BuildRepeat(const Expression& e, int32_t next) {
    if (e.max == kUnbounded) {
      const int32_t star = Add({.arcs = {}, .empty = {next}});
      const int32_t body = Build(*e.parts[0], star);
      nodes_[static_cast<size_t>(star)].empty.push_back(body);
      next = star;
    } else {
      const int32_t end = next;
      for (int64_t i = e.min; i < e.max; ++i) {
        next = Add({.arcs = {}, .empty = {Build(*e.parts[0], next), end}});
      }
    }
    for (int64_t i = 0; i < e.min; ++i) next = Build(*e.parts[0], next);
    return next;
  }

  std::vector<Node> nodes_;
  int32_t start_;
};

// Arcs that may overlap, as ranges that do not: visit(first, last, targets of all arcs there).
template <typename Visit>
void ForEachRange(const std::vector<Arc>& arcs, const Visit& visit) {
  std::map<uint32_t, std::vector<std::pair<int32_t, int>>> changes;  // targets that begin and end
  for (const Arc& arc : arcs) {
    changes[arc.first].emplace_back(arc.to, 1);
    changes[arc.last + 1].emplace_back(arc.to, -1);
  }
  std::map<int32_t, int> open;  // how many arcs lead there now
  for (auto at = changes.begin(); at != changes.end(); ++at) {
    for (const auto& [to, change] : at->second) {
      if ((open[to] += change) == 0) open.erase(to);
    }
    if (open.empty()) continue;
    std::vector<int32_t> targets;
    for (const auto& [to, count] : open) targets.push_back(to);
    visit(at->first, std::next(at)->first - 1, std::move(targets));
  }
}

void AddArc(uint32_t first, uint32_t last, int32_t to, std::vector<Arc>* arcs) {
  if (!arcs->empty() && arcs->back().to == to && arcs->back().last + 1 == first) {
    arcs->back().last = last;
  } else {
    arcs->push_back({first, last, to});
  }
}

}  // namespace

TextSet::TextSet(std::vector<State> states) : states_(std::move(states)) {
  CheckSize(states_.size());
  DropDeadEnds();
}

TextSet TextSet::All() {
  return TextSet({{.arcs = {{0, kLastCharacter, 0}}, .accepts = true}});
}

TextSet TextSet::OfLengths(int64_t min, int64_t max) {
  const auto last = static_cast<size_t>(max == kUnbounded ? min : max);
  CheckSize(last);
  std::vector<State> states(last + 1);
  for (size_t i = 0; i <= last; ++i) {
    const size_t next = i < last ? i + 1 : i;
    if (i < last || max == kUnbounded) {
      states[i].arcs = {{0, kLastCharacter, static_cast<int32_t>(next)}};
    }
    states[i].accepts = static_cast<int64_t>(i) >= min;
  }
  return TextSet(std::move(states));
}

TextSet TextSet::Of(const Expr& expression) {
  const Nondeterministic from(*expression);
  std::map<std::vector<int32_t>, int32_t> ids;
  std::vector<std::vector<int32_t>> open;
  std::vector<State> states;
  const auto id_of = [&](std::vector<int32_t> set) {
    const auto [it, is_new] = ids.emplace(std::move(set), static_cast<int32_t>(states.size()));
    if (is_new) {
      CheckSize(states.size());
      states.emplace_back();
      open.push_back(it->first);
    }
    return it->second;
  };
  id_of(from.Closed({from.start()}));
  size_t steps = 0;
  for (size_t i = 0; i < open.size(); ++i) {
    Count(open[i].size(), &steps);
    std::vector<Arc> arcs, merged;
    for (const int32_t node : open[i]) {
      const std::vector<Arc>& more = from.at(node).arcs;
      arcs.insert(arcs.end(), more.begin(), more.end());
      if (node == Nondeterministic::kEnd) states[i].accepts = true;
    }
    ForEachRange(arcs, [&](uint32_t first, uint32_t last, std::vector<int32_t> targets) {
      Count(targets.size(), &steps);
      AddArc(first, last, id_of(from.Closed(std::move(targets))), &merged);
    });
    states[i].arcs = std::move(merged);
  }
  return TextSet(std::move(states));
}

TextSet TextSet::And(const TextSet& other) const {
  std::unordered_map<uint64_t, int32_t> ids;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const auto id_of = [&](int32_t a, int32_t b) {
    const uint64_t key = static_cast<uint64_t>(a) << 32 | static_cast<uint32_t>(b);
    const auto [it, is_new] = ids.emplace(key, static_cast<int32_t>(pairs.size()));
    if (is_new) {
      CheckSize(pairs.size());
      pairs.emplace_back(a, b);
    }
    return it->second;
  };
  id_of(0, 0);
  std::vector<State> states;
  size_t steps = 0;
  for (size_t i = 0; i < pairs.size(); ++i) {
    const State& a = states_[static_cast<size_t>(pairs[i].first)];
    const State& b = other.states_[static_cast<size_t>(pairs[i].second)];
    State both = {.arcs = {}, .accepts = a.accepts && b.accepts};
    for (size_t m = 0, n = 0; m < a.arcs.size() && n < b.arcs.size();) {
      const Arc &x = a.arcs[m], &y = b.arcs[n];
      const uint32_t first = std::max(x.first, y.first), last = std::min(x.last, y.last);
      if (first <= last) AddArc(first, last, id_of(x.to, y.to), &both.arcs);
      x.last < y.last ? ++m : ++n;
    }
    Count(both.arcs.size(), &steps);
    states.push_back(std::move(both));
  }
  return TextSet(std::move(states));
}

TextSet TextSet::Not() const {
  TextSet others = All();
  const auto all = static_cast<int32_t>(states_.size());  // the state that nothing leaves
  others.states_.assign(states_.size() + 1, {});
  for (size_t i = 0; i <= states_.size(); ++i) {
    std::vector<Arc>& arcs = others.states_[i].arcs;
    uint32_t next = 0;
    others.states_[i].accepts = i == states_.size() || !states_[i].accepts;
    if (i < states_.size()) {
      for (const Arc& arc : states_[i].arcs) {
        if (arc.first > next) arcs.push_back({next, arc.first - 1, all});
        arcs.push_back(arc);
        next = arc.last + 1;
      }
    }
    if (next <= kLastCharacter) arcs.push_back({next, kLastCharacter, all});
  }
  return others;
}

TextSet TextSet::Without(const TextSet& other) const {
  return And(other.Not());
}

// States from which no text is accepted go, the start excepted.
void TextSet::DropDeadEnds() {
  std::vector<std::vector<int32_t>> from(states_.size());
  std::vector<int32_t> open;
  std::vector<bool> lives(states_.size(), false);
  for (size_t i = 0; i < states_.size(); ++i) {
    for (const Arc& arc : states_[i].arcs) {
      from[static_cast<size_t>(arc.to)].push_back(static_cast<int32_t>(i));
    }
    if (states_[i].accepts) open.push_back(static_cast<int32_t>(i));
    lives[i] = states_[i].accepts;
  }
  while (!open.empty()) {
    const auto state = static_cast<size_t>(open.back());
    open.pop_back();
    for (const int32_t before : from[state]) {
      if (!lives[static_cast<size_t>(before)]) open.push_back(before);
      lives[static_cast<size_t>(before)] = true;
    }
  }
  lives[0] = true;
  std::vector<int32_t> renamed(states_.size(), -1);
  std::vector<State> kept;
  for (size_t i = 0; i < states_.size(); ++i) {
    if (!lives[i]) continue;
    renamed[i] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(states_[i]));
  }
  for (State& state : kept) {
    for (Arc& arc : state.arcs) arc.to = renamed[static_cast<size_t>(arc.to)];
    std::erase_if(state.arcs, [](const Arc& arc) { return arc.to < 0; });
  }
  states_ = std::move(kept);
}

bool TextSet::Contains(std::string_view text) const {
  int32_t state = 0;
  ForEachCharacter(text, [&](uint32_t c, size_t, size_t) {
    if (state < 0) return;
    const std::vector<Arc>& arcs = states_[static_cast<size_t>(state)].arcs;
    const auto arc =
        std::ranges::find_if(arcs, [&](const Arc& one) { return one.first <= c && c <= one.last; });
    state = arc == arcs.end() ? -1 : arc->to;
  });
  return state >= 0 && states_[static_cast<size_t>(state)].accepts;
}

bool TextSet::empty() const {
  return std::ranges::none_of(states_, &State::accepts);
}

Expr TextSet::Write(GrammarBuilder* builder,
                    const std::function<Expr(const CharRanges&)>& character) const {
  if (empty()) return Choice({});
  std::vector<int32_t> rules;
  for (size_t i = 0; i < states_.size(); ++i) {
    rules.push_back(builder->AddRule(fmt::format("text set {}", builder->rules().size())));
  }
  for (size_t i = 0; i < states_.size(); ++i) {
    std::map<int32_t, CharRanges> by_target;
    for (const Arc& arc : states_[i].arcs) by_target[arc.to].push_back({arc.first, arc.last});
    std::vector<Expr> all;
    if (states_[i].accepts) all.push_back(Literal(""));
    for (auto& [to, ranges] : by_target) {
      all.push_back(Sequence(
          {character(NormalRanges(std::move(ranges))), Reference(rules[static_cast<size_t>(to)])}));
    }
    builder->SetRule(rules[i], Choice(std::move(all)));
  }
  return Reference(rules[0]);
}

}  // namespace nibble::grammar
