// SPDX-License-Identifier: Apache-2.0
// Expressions.
#include "text/jinja_evaluator.h"
#include "text/jinja_math.h"

namespace nibble::jinja {
namespace {

constexpr size_t kScopesPerStep = 8;  // that one name is looked for in

}  // namespace

Value Evaluator::Lookup(const std::string& name) {
  size_t scopes = 0;
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    if (++scopes % kScopesPerStep == 0) context_.budget.Charge(1);
    const auto it = scope->variables.find(name);
    if (it != scope->variables.end()) return it->second;
  }
  return FindGlobal(name);
}

Value Evaluator::Eval(const Node& node) {
  const Visit visit(*this, node);
  switch (node.kind) {
    case Kind::kConst:
      return node.value;
    case Kind::kName:
      return Lookup(node.text);
    case Kind::kList:
    case Kind::kTuple:
      return MakeList(context_.budget, EvalAll(node),
                      node.kind == Kind::kList ? ListKind::kList : ListKind::kTuple);
    case Kind::kDict:
      return EvalDict(node);
    case Kind::kAttr:
      return GetAttr(context_, Eval(*node.kids[0]), node.text);
    case Kind::kItem:
      return EvalItem(node);
    case Kind::kSlice:
      return EvalSlice(node);
    case Kind::kCall:
      return EvalCall(node);
    case Kind::kFilter:
      return EvalFilter(node);
    case Kind::kTest:
      return EvalTest(node);
    case Kind::kNot:
      return !Eval(*node.kids[0]).Truth();
    case Kind::kSign:
      return EvalSign(node);
    case Kind::kAnd:
    case Kind::kOr:
      return EvalLogic(node);
    case Kind::kMath:
      return EvalMath(node);
    case Kind::kCompare:
      return EvalCompare(node);
    case Kind::kConcat:
      return EvalConcat(node);
    case Kind::kChoose:
      return EvalChoose(node);
    default:
      NIBBLE_CHECK(node.kind == Kind::kCapture);
      return Capture(*node.kids[0], Scope{scope_, {}});
  }
}

std::vector<Value> Evaluator::EvalAll(const Node& node) {
  std::vector<Value> values;
  for (const auto& kid : node.kids) values.push_back(Eval(*kid));
  return values;
}

Value Evaluator::EvalDict(const Node& node) {
  DictItems items;
  for (size_t i = 0; i < node.kids.size(); i += 2) {
    const Value key = Eval(*node.kids[i]);
    SetKey(context_.budget, items, key, Eval(*node.kids[i + 1]));
  }
  return MakeDict(context_.budget, std::move(items));
}

Value Evaluator::EvalItem(const Node& node) {
  const Value object = Eval(*node.kids[0]);
  return GetItem(context_, object, Eval(*node.kids[1]));
}

Value Evaluator::EvalSlice(const Node& node) {
  const Value object = Eval(*node.kids[0]);
  Value bounds[3] = {Value::None(), Value::None(), Value::None()};
  for (size_t i = 0; i < 3; ++i) {
    if (node.kids[i + 1] != nullptr) bounds[i] = Eval(*node.kids[i + 1]);
  }
  return Slice(context_, object, bounds);
}

Value Evaluator::EvalFilter(const Node& node) {
  const Value input = Eval(*node.kids[0]);
  return ApplyFilter(context_, node.text, input, EvalArgs(node));
}

Value Evaluator::EvalTest(const Node& node) {
  const Value input = Eval(*node.kids[0]);
  return ApplyTest(context_, node.text, input, EvalArgs(node));
}

Value Evaluator::EvalSign(const Node& node) {
  Value value = Eval(*node.kids[0]);
  if (!value.AsNumber()) Raise("bad operand type for a sign: '{}'", value.TypeName());
  return Arithmetic(context_.budget, "*", value, int64_t{node.text == "-" ? -1 : 1});
}

Value Evaluator::EvalOperand(const Node& chain, size_t i) {
  return Eval(i == 0 ? *chain.kids[0] : *chain.kids[i]->kids[0]);
}

Value Evaluator::EvalLogic(const Node& node) {
  Value value;
  for (size_t i = 0; i < node.kids.size(); ++i) {
    value = EvalOperand(node, i);
    if (value.Truth() == (node.kind == Kind::kOr)) break;
  }
  return value;
}

Value Evaluator::EvalMath(const Node& node) {
  Value value = EvalOperand(node, 0);
  for (size_t i = 1; i < node.kids.size(); ++i) {
    value = Arithmetic(context_.budget, node.kids[i]->text, value, EvalOperand(node, i));
  }
  return value;
}

Value Evaluator::EvalCompare(const Node& node) {
  Value left = EvalOperand(node, 0);
  for (size_t i = 1; i < node.kids.size(); ++i) {
    Value right = EvalOperand(node, i);
    if (!Compare(context_.budget, node.kids[i]->text, left, right)) return false;
    left = std::move(right);
  }
  return true;
}

Value Evaluator::EvalConcat(const Node& node) {
  Text out(context_.budget);
  for (size_t i = 0; i < node.kids.size(); ++i) {
    out.Add(Str(context_.budget, EvalOperand(node, i)));
  }
  return out.Take();
}

Value Evaluator::EvalChoose(const Node& node) {
  if (Eval(*node.kids[0]).Truth()) return Eval(*node.kids[1]);
  if (node.kids[2] != nullptr) return Eval(*node.kids[2]);
  return Value::Missing("the condition was false and there is no else");
}

}  // namespace nibble::jinja
