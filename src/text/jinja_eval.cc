// SPDX-License-Identifier: Apache-2.0
// Statements.
#include "text/jinja_eval.h"

#include "text/jinja_evaluator.h"

namespace nibble::jinja {

std::string Evaluator::Run(const Node& root) {
  try {
    Execute(root);
    return output_.Take();
  } catch (const TemplateError& e) {
    Raise("line {}: {}", line_, e.what());
  }
}

Flow Evaluator::Execute(const Node& node) {
  const Visit visit(*this, node);
  switch (node.kind) {
    case Kind::kBody:
      for (const auto& kid : node.kids) {
        if (const Flow flow = Execute(*kid); flow != Flow::kNext) return flow;
      }
      return Flow::kNext;
    case Kind::kData:
      out_->Add(*node.value.AsString());
      return Flow::kNext;
    case Kind::kOutput:
      Print(node);
      return Flow::kNext;
    case Kind::kIf:
      return ExecuteIf(node);
    case Kind::kFor:
      return ExecuteFor(node);
    case Kind::kSet:
      Assign(*node.kids[0], Eval(*node.kids[1]));
      return Flow::kNext;
    case Kind::kMacro:
      scope_->variables[node.text] = MakeMacro(node);
      return Flow::kNext;
    case Kind::kCallBlock:
      PrintCallBlock(node);
      return Flow::kNext;
    case Kind::kWith:
      return ExecuteWith(node);
    case Kind::kBlock:
      PrintBlock(node);
      return Flow::kNext;
    case Kind::kBreak:
      return Flow::kBreak;
    default:
      NIBBLE_CHECK(node.kind == Kind::kContinue);
      return Flow::kContinue;
  }
}

void Evaluator::PrintCallBlock(const Node& node) {
  const Node& call = *node.kids[0];
  const Value callee = Eval(*call.kids[0]);
  Args args = EvalArgs(call);
  args.named.emplace_back("caller", MakeMacro(*node.kids[1]));
  out_->Add(Str(context_.budget, Call(callee, args)));
}

void Evaluator::PrintBlock(const Node& node) {
  Scope* const parent = node.text == "scoped" ? scope_ : &root_;
  out_->Add(*Capture(*node.kids[0], Scope{parent, {}}).AsString());
}

Flow Evaluator::ExecuteIf(const Node& node) {
  for (size_t i = 0; i < node.kids.size(); i += 2) {
    if (node.kids[i] == nullptr || Eval(*node.kids[i]).Truth()) {
      return Execute(*node.kids[i + 1]);
    }
  }
  return Flow::kNext;
}

void Evaluator::Print(const Node& node) {
  const Value value = Eval(*node.kids[0]);
  const std::string* text = value.AsString();
  out_->Add(text != nullptr ? *text : Str(context_.budget, value));
}

Flow Evaluator::ExecuteFor(const Node& node) {
  return RunLoop(node, Eval(*node.kids[1]), 1);
}

// The items that the loop's condition accepts.
std::shared_ptr<const List> Evaluator::Kept(const Node& node, std::shared_ptr<const List> items) {
  if (node.kids[2] == nullptr) return items;
  Scope* const outer = scope_;
  std::vector<Value> kept;
  for (const Value& item : items->items) {
    Scope scope{outer, {}};
    scope_ = &scope;
    Assign(*node.kids[0], item);
    if (Eval(*node.kids[2]).Truth()) kept.push_back(item);
  }
  scope_ = outer;
  return MakeList(context_.budget, std::move(kept)).ListPointer();
}

Flow Evaluator::RunLoop(const Node& node, const Value& sequence, int depth) {
  Scope* const outer = scope_;
  const auto items = Kept(node, Iterate(context_, sequence));
  const bool recursive = node.text == "recursive";
  const auto changed = std::make_shared<Value>();
  Flow flow = Flow::kNext;
  size_t i = 0;
  for (; i < items->items.size() && flow != Flow::kBreak; ++i) {
    Scope scope{outer, {}};
    scope_ = &scope;
    scope.variables["loop"] = std::make_shared<const Loop>(
        Loop{items, i, depth, recursive ? &node : nullptr, outer, changed});
    Assign(*node.kids[0], items->items[i]);
    flow = Execute(*node.kids[3]);
  }
  scope_ = outer;
  const List* generator = sequence.AsList();
  if (flow == Flow::kBreak && generator != nullptr && node.kids[2] == nullptr) {
    generator->walked -= std::min(generator->walked, items->items.size() - i);
  }
  return items->items.empty() && node.kids[4] != nullptr ? Execute(*node.kids[4]) : Flow::kNext;
}

// The values do not see the variables that stand before them.
Flow Evaluator::ExecuteWith(const Node& node) {
  Scope scope{scope_, {}};
  Scope* const outer = scope_;
  for (size_t i = 1; i < node.kids.size(); i += 2) {
    const Value value = Eval(*node.kids[i + 1]);
    scope_ = &scope;
    Assign(*node.kids[i], value);
    scope_ = outer;
  }
  scope_ = &scope;
  const Flow flow = Execute(*node.kids[0]);
  scope_ = outer;
  return flow;
}

void Evaluator::Assign(const Node& target, const Value& value) {
  if (target.kind == Kind::kName) {
    scope_->variables[target.text] = value;
  } else if (target.kind == Kind::kAttr) {
    Namespace* vars = Lookup(target.kids[0]->text).AsNamespace();
    if (vars == nullptr || vars->kind != StateKind::kNamespace) {
      Raise("'{}' is not a namespace", target.kids[0]->text);
    }
    SetVar(context_.budget, *vars, target.text, value);
  } else {
    const auto items = Iterate(context_, value);
    if (items->items.size() != target.kids.size()) {
      Raise("cannot unpack {} values into {}", items->items.size(), target.kids.size());
    }
    for (size_t i = 0; i < target.kids.size(); ++i) Assign(*target.kids[i], items->items[i]);
  }
}

std::string Evaluate(const Node& root, Variables variables, const std::tm& now) {
  return Evaluator(std::move(variables), now).Run(root);
}

}  // namespace nibble::jinja
