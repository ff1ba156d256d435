// SPDX-License-Identifier: Apache-2.0
// Calls: arguments, macros, recursive loops.
#include "text/jinja_evaluator.h"
#include "text/jinja_markup.h"

namespace nibble::jinja {

Args Evaluator::EvalArgs(const Node& node) {
  Args args;
  for (size_t i = 1; i < node.kids.size(); ++i) {
    const Node& kid = *node.kids[i];
    if (kid.kind == Kind::kNamed) {
      args.named.emplace_back(kid.text, Eval(*kid.kids[0]));
    } else if (kid.kind == Kind::kSpread) {
      Spread(kid, args);
    } else {
      args.positional.push_back(Eval(kid));
    }
  }
  return args;
}

// Adds what *sequence or **dictionary hold.
void Evaluator::Spread(const Node& node, Args& args) {
  const Value value = Eval(*node.kids[0]);
  if (node.text == "*") {
    const auto list = Iterate(context_, value);
    args.positional.insert(args.positional.end(), list->items.begin(), list->items.end());
    return;
  }
  const Dict* dict = value.AsDict();
  if (dict == nullptr) Raise("'{}' after ** is not a mapping", value.TypeName());
  for (const auto& [key, item] : dict->items) {
    if (key.AsString() == nullptr) Raise("keywords must be strings");
    ChargeText(context_.budget, key);
    args.named.emplace_back(*key.AsString(), item);
  }
}

Value Evaluator::EvalCall(const Node& node) {
  const Value callee = Eval(*node.kids[0]);
  return Call(callee, EvalArgs(node));
}

Value Evaluator::Call(const Value& callee, const Args& args) {
  if (const Undefined* missing = callee.AsUndefined()) Raise("{}", missing->Message());
  if (const Loop* loop = callee.AsLoop()) return CallLoop(*loop, args);
  Namespace* state = callee.AsNamespace();
  if (state != nullptr && state->kind == StateKind::kJoiner) return CallJoiner(*state);
  const Callable* callable = callee.AsCallable();
  if (callable == nullptr) Raise("'{}' object is not callable", callee.TypeName());
  if (callable->macro != nullptr) return CallMacro(*callable, args);
  ChargeText(context_.budget, callable->self);
  if (callable->self.IsMarkup()) return CallMarkupMethod(context_, *callable, args);
  return callable->function(context_, callable->self, args);
}

Value Evaluator::CallJoiner(Namespace& joiner) {
  const bool used = std::exchange(joiner.vars["used"], true).Truth();
  return used ? joiner.vars["sep"] : Value(std::string());
}

// A macro sees the variables where it stands. The top level outlives all values, other scopes do
// not: Value::Depth() keeps the macro inside.
Value Evaluator::MakeMacro(const Node& node) {
  const Scope* const scope = scope_ == &root_ ? nullptr : scope_;
  return std::make_shared<const Callable>(Callable{nullptr, Value(), &node, scope});
}

Value Evaluator::CallMacro(const Callable& callable, const Args& args) {
  const Node& macro = *callable.macro;
  if (call_depth_ == kMaxMacroDepth) Raise("macro calls nested deeper than {}", kMaxMacroDepth);
  ++call_depth_;
  context_.budget.Charge(macro.kids.size());
  Scope scope{callable.scope == nullptr ? &root_ : static_cast<const Scope*>(callable.scope), {}};
  BindParameters(macro, args, scope);
  BindRest(macro, args, scope);
  Value result = Capture(*macro.kids[0], std::move(scope));
  --call_depth_;
  return result;
}

void Evaluator::BindParameters(const Node& macro, const Args& args, Scope& scope) {
  for (size_t i = 1; i < macro.kids.size(); ++i) {
    const Node& parameter = *macro.kids[i];
    Value& variable = scope.variables[parameter.text];
    if (const Value* given = args.Find(i - 1, parameter.text)) {
      variable = *given;
    } else if (parameter.kids[0] != nullptr) {
      Scope* const caller = std::exchange(scope_, &scope);
      variable = Eval(*parameter.kids[0]);
      scope_ = caller;
    } else {
      variable = Value::Missing(fmt::format("parameter '{}' was not provided", parameter.text));
    }
  }
}

// Binds the arguments that no parameter took to varargs, kwargs and caller, where the body speaks
// of them.
void Evaluator::BindRest(const Node& macro, const Args& args, Scope& scope) {
  const auto uses = [&](MacroUse use) { return (macro.uses & static_cast<int>(use)) != 0; };
  const size_t parameters = macro.kids.size() - 1;
  const bool has_caller = scope.variables.contains("caller");  // as a parameter
  const size_t taken = std::min(parameters, args.positional.size());
  std::vector<Value> more(args.positional.begin() + static_cast<ptrdiff_t>(taken),
                          args.positional.end());
  if (!more.empty() && !uses(MacroUse::kVarargs)) {
    Raise("macro '{}' takes at most {} arguments", macro.text, parameters);
  }
  Value caller = Value::Missing("no caller defined");
  DictItems named;
  for (const auto& [name, value] : args.named) {
    size_t i = taken;
    while (i < parameters && macro.kids[i + 1]->text != name) ++i;
    if (i < parameters) continue;
    if (name == "caller" && uses(MacroUse::kCaller)) {
      caller = value;
    } else if (uses(MacroUse::kKwargs)) {
      SetKey(context_.budget, named, Value(name), value);
    } else {
      Raise("macro '{}' has no parameter '{}' to give", macro.text, name);
    }
  }
  if (uses(MacroUse::kCaller) && !has_caller) scope.variables["caller"] = std::move(caller);
  if (uses(MacroUse::kVarargs)) {
    scope.variables["varargs"] = MakeList(context_.budget, std::move(more), ListKind::kTuple);
  }
  if (uses(MacroUse::kKwargs)) {
    scope.variables["kwargs"] = MakeDict(context_.budget, std::move(named));
  }
}

// loop(sequence) in a recursive loop: the text that the loop prints for the sequence.
Value Evaluator::CallLoop(const Loop& loop, const Args& args) {
  if (loop.node == nullptr) Raise("a loop that is called must be marked as recursive");
  if (call_depth_ == kMaxMacroDepth) Raise("macro calls nested deeper than {}", kMaxMacroDepth);
  ++call_depth_;
  Text text(context_.budget);
  // The scope is one of this evaluator's; a loop holds it as const, as it may not look inside.
  Scope* const place = const_cast<Scope*>(static_cast<const Scope*>(loop.scope));
  Scope* const outer_scope = std::exchange(scope_, place);
  Text* const outer_out = std::exchange(out_, &text);
  RunLoop(*loop.node, args.Need(0, "iterable"), loop.depth + 1);
  scope_ = outer_scope;
  out_ = outer_out;
  --call_depth_;
  return text.Take();
}

Value Evaluator::Capture(const Node& body, Scope scope) {
  Text text(context_.budget);
  Scope* const outer_scope = std::exchange(scope_, &scope);
  Text* const outer_out = std::exchange(out_, &text);
  Execute(body);
  scope_ = outer_scope;
  out_ = outer_out;
  return text.Take();
}

}  // namespace nibble::jinja
