// SPDX-License-Identifier: Apache-2.0
#include "grammar/grammar.h"

#include "grammar/compiler.h"

namespace nibble {

int32_t GrammarBuilder::AddRule(std::string name, grammar::Expr body) {
  if (rules_.size() >= GrammarLimits::kRules) {
    FailUsage("{}: over {} rules", where_, GrammarLimits::kRules);
  }
  const auto id = static_cast<int32_t>(rules_.size());
  const bool is_new = ids_.emplace(name, id).second;
  if (!is_new) FailUsage("{}: rule \"{}\" is there twice", where_, name);
  rules_.push_back({std::move(name), std::move(body)});
  return id;
}

void GrammarBuilder::SetRule(int32_t rule, grammar::Expr body) {
  rules_.at(static_cast<size_t>(rule)).body = std::move(body);
}

std::optional<int32_t> GrammarBuilder::FindRule(std::string_view name) const {
  const auto it = ids_.find(name);
  return it == ids_.end() ? std::nullopt : std::optional(it->second);
}

std::shared_ptr<const Grammar> GrammarBuilder::Compile(const grammar::Expr& root) const {
  std::vector<Rule> rules = rules_;
  rules.push_back({"the text", root});
  for (const Rule& rule : rules) {
    if (rule.body == nullptr) FailUsage("{}: rule \"{}\" is not defined", where_, rule.name);
  }
  grammar::RuleStates states;
  grammar::Program program = grammar::BuildStates(rules, where_, &states);
  grammar::Analyze(rules, where_, states, &program);
  return std::make_shared<const Grammar>(std::move(program));
}

}  // namespace nibble
