// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_eval.h"

#include <algorithm>

#include "text/jinja_builtins.h"
#include "text/jinja_math.h"

namespace nibble::jinja {
namespace {

constexpr size_t kScopesPerStep = 8;  // that one name is looked for in

enum class Flow { kNext, kBreak, kContinue };

struct Scope {
  const Scope* parent;
  Variables variables;
};

class Evaluator {
 public:
  Evaluator(Variables variables, const std::tm& now)
      : context_{Budget(), now},
        root_{nullptr, std::move(variables)},
        scope_(&root_),
        output_(context_.budget),
        out_(&output_) {}

  std::string Run(const Node& root) {
    try {
      Execute(root);
      return output_.Take();
    } catch (const TemplateError& e) {
      Raise("line {}: {}", line_, e.what());
    }
  }

 private:
  // Charges a node's step and one level of recursion.
  class Visit {
   public:
    Visit(Evaluator& e, const Node& node) : depth_(e.depth_) {
      e.line_ = node.line;
      e.context_.budget.Charge(1);
      if (++depth_ > kMaxEvalDepth) Raise("nested deeper than {} levels", kMaxEvalDepth);
    }
    ~Visit() { --depth_; }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    int& depth_;
  };

  // ---- statements ----

  Flow Execute(const Node& node) {
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
        for (size_t i = 0; i < node.kids.size(); i += 2) {
          if (node.kids[i] == nullptr || Eval(*node.kids[i]).Truth()) {
            return Execute(*node.kids[i + 1]);
          }
        }
        return Flow::kNext;
      case Kind::kFor:
        return ExecuteFor(node);
      case Kind::kSet:
        Assign(*node.kids[0], Eval(*node.kids[1]));
        return Flow::kNext;
      case Kind::kMacro:
        scope_->variables[node.text] =
            std::make_shared<const Callable>(Callable{nullptr, Value(), &node});
        return Flow::kNext;
      case Kind::kBreak:
        return Flow::kBreak;
      default:
        NIBBLE_CHECK(node.kind == Kind::kContinue);
        return Flow::kContinue;
    }
  }

  void Print(const Node& node) {
    const Value value = Eval(*node.kids[0]);
    const std::string* text = value.AsString();
    out_->Add(text != nullptr ? *text : Str(context_.budget, value));
  }

  Flow ExecuteFor(const Node& node) {
    Scope* const outer = scope_;
    auto items = Iterate(context_, Eval(*node.kids[1]));
    if (node.kids[2] != nullptr) {
      std::vector<Value> kept;
      for (const Value& item : items->items) {
        Scope scope{outer, {}};
        scope_ = &scope;
        Assign(*node.kids[0], item);
        if (Eval(*node.kids[2]).Truth()) kept.push_back(item);
      }
      scope_ = outer;
      items = MakeList(context_.budget, std::move(kept)).ListPointer();
    }
    Flow flow = Flow::kNext;
    for (size_t i = 0; i < items->items.size() && flow != Flow::kBreak; ++i) {
      Scope scope{outer, {}};
      scope_ = &scope;
      scope.variables["loop"] = std::make_shared<const Loop>(Loop{items, i});
      Assign(*node.kids[0], items->items[i]);
      flow = Execute(*node.kids[3]);
    }
    scope_ = outer;
    return items->items.empty() && node.kids[4] != nullptr ? Execute(*node.kids[4]) : Flow::kNext;
  }

  void Assign(const Node& target, const Value& value) {
    if (target.kind == Kind::kName) {
      scope_->variables[target.text] = value;
    } else if (target.kind == Kind::kAttr) {
      Namespace* vars = Lookup(target.kids[0]->text).AsNamespace();
      if (vars == nullptr) Raise("'{}' is not a namespace", target.kids[0]->text);
      SetVar(context_.budget, *vars, target.text, value);
    } else {
      const auto items = Iterate(context_, value);
      if (items->items.size() != target.kids.size()) {
        Raise("cannot unpack {} values into {}", items->items.size(), target.kids.size());
      }
      for (size_t i = 0; i < target.kids.size(); ++i) Assign(*target.kids[i], items->items[i]);
    }
  }

  // ---- expressions ----

  Value Lookup(const std::string& name) {
    size_t scopes = 0;
    for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
      if (++scopes % kScopesPerStep == 0) context_.budget.Charge(1);
      const auto it = scope->variables.find(name);
      if (it != scope->variables.end()) return it->second;
    }
    return FindGlobal(name);
  }

  Value Eval(const Node& node) {
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

  std::vector<Value> EvalAll(const Node& node) {
    std::vector<Value> values;
    for (const auto& kid : node.kids) values.push_back(Eval(*kid));
    return values;
  }

  Value EvalDict(const Node& node) {
    DictItems items;
    for (size_t i = 0; i < node.kids.size(); i += 2) {
      const Value key = Eval(*node.kids[i]);
      if (key.AsString() == nullptr) Raise("dictionary keys must be strings");
      Value* const same = FindKey(context_.budget, items, *key.AsString());
      Value value = Eval(*node.kids[i + 1]);
      if (same != nullptr) {
        *same = std::move(value);
      } else {
        context_.budget.Charge(key.AsString()->size() / kBytesPerStep);
        items.emplace_back(*key.AsString(), std::move(value));
      }
    }
    return MakeDict(context_.budget, std::move(items));
  }

  Value EvalItem(const Node& node) {
    const Value object = Eval(*node.kids[0]);
    return GetItem(context_, object, Eval(*node.kids[1]));
  }

  Value EvalSlice(const Node& node) {
    const Value object = Eval(*node.kids[0]);
    Value bounds[3] = {Value::None(), Value::None(), Value::None()};
    for (size_t i = 0; i < 3; ++i) {
      if (node.kids[i + 1] != nullptr) bounds[i] = Eval(*node.kids[i + 1]);
    }
    return Slice(context_, object, bounds);
  }

  Args EvalArgs(const Node& node) {
    Args args;
    for (size_t i = 1; i < node.kids.size(); ++i) {
      const Node& kid = *node.kids[i];
      if (kid.kind == Kind::kNamed) {
        args.named.emplace_back(kid.text, Eval(*kid.kids[0]));
      } else {
        args.positional.push_back(Eval(kid));
      }
    }
    return args;
  }

  Value EvalFilter(const Node& node) {
    const Value input = Eval(*node.kids[0]);
    return ApplyFilter(context_, node.text, input, EvalArgs(node));
  }

  Value EvalTest(const Node& node) {
    const Value input = Eval(*node.kids[0]);
    return ApplyTest(context_, node.text, input, EvalArgs(node));
  }

  Value EvalCall(const Node& node) {
    const Value callee = Eval(*node.kids[0]);
    const Args args = EvalArgs(node);
    if (const Undefined* missing = callee.AsUndefined()) Raise("{}", missing->Message());
    const Callable* callable = callee.AsCallable();
    if (callable == nullptr) Raise("'{}' object is not callable", callee.TypeName());
    if (callable->macro != nullptr) return CallMacro(*callable->macro, args);
    ChargeText(context_.budget, callable->self);
    return callable->function(context_, callable->self, args);
  }

  Value CallMacro(const Node& macro, const Args& args) {
    if (macro_depth_ == kMaxMacroDepth) Raise("macro calls nested deeper than {}", kMaxMacroDepth);
    ++macro_depth_;
    if (args.positional.size() >= macro.kids.size()) {
      Raise("macro '{}' takes at most {} arguments", macro.text, macro.kids.size() - 1);
    }
    Scope scope{&root_, {}};
    context_.budget.Charge(macro.kids.size());
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
    for (const auto& [name, unused] : args.named) {
      if (!scope.variables.contains(name)) {
        Raise("macro '{}' has no parameter '{}'", macro.text, name);
      }
    }
    Value result = Capture(*macro.kids[0], std::move(scope));
    --macro_depth_;
    return result;
  }

  Value Capture(const Node& body, Scope scope) {
    Text text(context_.budget);
    Scope* const outer_scope = std::exchange(scope_, &scope);
    Text* const outer_out = std::exchange(out_, &text);
    Execute(body);
    scope_ = outer_scope;
    out_ = outer_out;
    return text.Take();
  }

  Value EvalSign(const Node& node) {
    Value value = Eval(*node.kids[0]);
    if (!value.AsNumber()) Raise("bad operand type for a sign: '{}'", value.TypeName());
    return Arithmetic(context_.budget, "*", value, int64_t{node.text == "-" ? -1 : 1});
  }

  Value EvalOperand(const Node& chain, size_t i) {
    return Eval(i == 0 ? *chain.kids[0] : *chain.kids[i]->kids[0]);
  }

  Value EvalLogic(const Node& node) {
    Value value;
    for (size_t i = 0; i < node.kids.size(); ++i) {
      value = EvalOperand(node, i);
      if (value.Truth() == (node.kind == Kind::kOr)) break;
    }
    return value;
  }

  Value EvalMath(const Node& node) {
    Value value = EvalOperand(node, 0);
    for (size_t i = 1; i < node.kids.size(); ++i) {
      value = Arithmetic(context_.budget, node.kids[i]->text, value, EvalOperand(node, i));
    }
    return value;
  }

  Value EvalCompare(const Node& node) {
    Value left = EvalOperand(node, 0);
    for (size_t i = 1; i < node.kids.size(); ++i) {
      Value right = EvalOperand(node, i);
      if (!Compare(context_.budget, node.kids[i]->text, left, right)) return false;
      left = std::move(right);
    }
    return true;
  }

  Value EvalConcat(const Node& node) {
    Text out(context_.budget);
    for (size_t i = 0; i < node.kids.size(); ++i) {
      out.Add(Str(context_.budget, EvalOperand(node, i)));
    }
    return out.Take();
  }

  Value EvalChoose(const Node& node) {
    if (Eval(*node.kids[0]).Truth()) return Eval(*node.kids[1]);
    if (node.kids[2] != nullptr) return Eval(*node.kids[2]);
    return Value::Missing("the condition was false and there is no else");
  }

  Context context_;
  Scope root_;
  Scope* scope_;
  Text output_;
  Text* out_;
  int line_ = 0, depth_ = 0, macro_depth_ = 0;
};

}  // namespace

std::string Evaluate(const Node& root, Variables variables, const std::tm& now) {
  return Evaluator(std::move(variables), now).Run(root);
}

}  // namespace nibble::jinja
