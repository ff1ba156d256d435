// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>

#include "grammar/compiler.h"

namespace nibble::grammar {
namespace {

using Graph = std::vector<std::vector<int32_t>>;

// The strongly connected component of each node, numbered (Tarjan 1972, without recursion).
class Components {
 public:
  explicit Components(const Graph& graph)
      : graph_(graph), component_(graph.size(), -1), order_(graph.size(), -1), low_(order_) {
    for (size_t node = 0; node < graph.size(); ++node) {
      if (order_[node] < 0) Visit(static_cast<int32_t>(node));
    }
  }
  // Returns whether an edge of the graph lies on a cycle.
  bool Cycle(int32_t from, int32_t to) const { return At(component_, from) == At(component_, to); }

 private:
  struct Frame {
    int32_t node;
    size_t edge;
  };
  static int32_t At(const std::vector<int32_t>& values, int32_t node) {
    return values[static_cast<size_t>(node)];
  }
  static int32_t& At(std::vector<int32_t>& values, int32_t node) {
    return values[static_cast<size_t>(node)];
  }
  void Open(int32_t node) {
    At(order_, node) = At(low_, node) = next_++;
    open_.push_back(node);
    frames_.push_back({node, 0});
  }
  void Visit(int32_t root) {
    Open(root);
    while (!frames_.empty()) {
      const int32_t node = frames_.back().node;
      const auto& edges = graph_[static_cast<size_t>(node)];
      if (frames_.back().edge < edges.size()) {
        const int32_t to = edges[frames_.back().edge++];
        if (At(order_, to) < 0) {
          Open(to);
        } else if (At(component_, to) < 0) {
          At(low_, node) = std::min(At(low_, node), At(order_, to));
        }
        continue;
      }
      frames_.pop_back();
      if (!frames_.empty()) {
        int32_t& low = At(low_, frames_.back().node);
        low = std::min(low, At(low_, node));
      }
      if (At(low_, node) == At(order_, node)) Close(node);
    }
  }
  void Close(int32_t root) {
    for (int32_t node = -1; node != root;) {
      node = open_.back();
      open_.pop_back();
      At(component_, node) = components_;
    }
    ++components_;
  }

  const Graph& graph_;
  std::vector<int32_t> component_, order_, low_, open_;
  std::vector<Frame> frames_;
  int32_t next_ = 0, components_ = 0;
};

bool IsCall(const State& state) {
  return state.kind == State::Kind::kCall || state.kind == State::Kind::kJump;
}

// The least value of every state, where that of a state is never below those it is made of (Knuth
// 1977): states become final in rising order, each is computed again for what it depends on only.
// value(state, levels) gives a state's value from those of its `next` and `other`.
template <typename Value>
std::vector<uint8_t> MinValues(const std::vector<State>& states, const Value& value) {
  std::vector<std::vector<int32_t>> users(states.size());
  for (size_t i = 0; i < states.size(); ++i) {
    const State& state = states[i];
    if (state.kind == State::Kind::kReturn) continue;
    users[static_cast<size_t>(state.next)].push_back(static_cast<int32_t>(i));
    users[static_cast<size_t>(state.other)].push_back(static_cast<int32_t>(i));
  }
  std::vector<uint8_t> values(states.size(), kNever);
  std::array<std::vector<int32_t>, kNever> waiting;
  values[kReturnState] = 0;
  waiting[0].push_back(kReturnState);
  for (size_t level = 0; level < waiting.size(); ++level) {
    while (!waiting[level].empty()) {
      const auto done = static_cast<size_t>(waiting[level].back());
      waiting[level].pop_back();
      if (values[done] != level) continue;
      for (const int32_t user : users[done]) {
        const auto u = static_cast<size_t>(user);
        const uint8_t now = value(states[u], values);
        if (now >= values[u]) continue;
        values[u] = now;
        waiting[now].push_back(user);
      }
    }
  }
  return values;
}

uint8_t LevelsOf(const Program& program, const State& state, const std::vector<uint8_t>& levels) {
  const uint8_t next = levels[static_cast<size_t>(state.next)];
  const uint8_t other = levels[static_cast<size_t>(state.other)];
  switch (state.kind) {
    case State::Kind::kReturn:
      return 0;
    case State::Kind::kBytes:
      return program.sets[static_cast<size_t>(state.value)].none() ? kNever : next;
    case State::Kind::kToken:
      return next;
    case State::Kind::kSplit:
      return std::min(next, other);
    case State::Kind::kJump:
      return other;
    case State::Kind::kCall: {
      const int inside = std::min(kNever + 0, other + (state.nests ? 1 : 0));
      return std::max(static_cast<uint8_t>(inside), next);
    }
    case State::Kind::kLoop:
      return program.loops[static_cast<size_t>(state.value)].min == 0 ? next
                                                                      : std::max(next, other);
  }
  return kNever;
}

// 0 for states that reach their kReturn without a byte, otherwise kNever.
uint8_t EmptyOf(const Program& program, const State& state, const std::vector<uint8_t>& empty) {
  if (state.kind == State::Kind::kBytes || state.kind == State::Kind::kToken) return kNever;
  State flat = state;
  flat.nests = false;
  return LevelsOf(program, flat, empty);
}

// For each rule, the rules that it may begin with.
Graph FirstRules(const Program& program, const RuleStates& rules) {
  const std::vector<uint8_t> empty = MinValues(
      program.states,
      [&](const State& state, const auto& values) { return EmptyOf(program, state, values); });
  Graph graph(rules.start.size());
  std::vector<int32_t> seen(program.states.size(), -1);  // by state: the last rule that saw it
  for (size_t rule = 0; rule < graph.size(); ++rule) {
    std::vector<int32_t> open = {rules.start[rule]};
    const auto push = [&](int32_t state) {
      int32_t& by = seen[static_cast<size_t>(state)];
      if (by != static_cast<int32_t>(rule)) open.push_back(state);
      by = static_cast<int32_t>(rule);
    };
    while (!open.empty()) {
      const State state = program.states[static_cast<size_t>(open.back())];
      open.pop_back();
      if (IsCall(state)) {
        graph[rule].push_back(state.value);
        const bool passes = empty[static_cast<size_t>(state.other)] == 0;
        if (state.kind == State::Kind::kCall && passes) push(state.next);
      } else if (state.kind == State::Kind::kSplit) {
        push(state.next);
        push(state.other);
      } else if (state.kind == State::Kind::kLoop) {
        push(state.other);
        if (program.loops[static_cast<size_t>(state.value)].min == 0) push(state.next);
      }
    }
  }
  return graph;
}

}  // namespace

void Analyze(std::span<const GrammarBuilder::Rule> rules, const std::string& where,
             const RuleStates& states, Program* program) {
  const auto count = static_cast<int32_t>(rules.size());
  Graph calls(rules.size());
  const auto for_each_call = [&](const auto& visit) {
    for (int32_t rule = 0; rule < count; ++rule) {
      const auto r = static_cast<size_t>(rule);
      for (int32_t i = states.first[r]; i < states.first[r + 1]; ++i) {
        State& state = program->states[static_cast<size_t>(i)];
        if (IsCall(state)) visit(rule, &state);
      }
    }
  };
  for_each_call([&](int32_t rule, State* state) {
    state->other = states.start[static_cast<size_t>(state->value)];
    calls[static_cast<size_t>(rule)].push_back(state->value);
  });
  const Components recursion(calls);
  for_each_call([&](int32_t rule, State* state) {
    state->nests = state->kind == State::Kind::kCall && recursion.Cycle(rule, state->value);
  });
  const Graph first_rules = FirstRules(*program, states);
  const Components left(first_rules);
  for (int32_t rule = 0; rule < count; ++rule) {
    for (const int32_t first : first_rules[static_cast<size_t>(rule)]) {
      if (!left.Cycle(rule, first)) continue;
      FailUsage("{}: rule \"{}\" may begin with itself; write x ::= y z* instead of x ::= x z | y",
                where, rules[static_cast<size_t>(rule)].name);
    }
  }
  program->start = states.start.back();
  program->levels = MinValues(program->states, [&](const State& state, const auto& values) {
    return LevelsOf(*program, state, values);
  });
  const uint8_t min = program->levels[static_cast<size_t>(program->start)];
  if (min > GrammarLimits::kNesting) {
    FailUsage("{}: no text {}", where,
              min == kNever
                  ? "satisfies it"
                  : fmt::format("of at most {} levels satisfies it", GrammarLimits::kNesting));
  }
}

}  // namespace nibble::grammar
