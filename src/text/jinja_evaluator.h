// SPDX-License-Identifier: Apache-2.0
// The state of one run of a template, and its parts: statements (jinja_eval.cc), expressions
// (jinja_expressions.cc), and the calls of macros and loops (jinja_calls.cc).
#pragma once

#include <string>
#include <vector>

#include "text/jinja_builtins.h"
#include "text/jinja_eval.h"

namespace nibble::jinja {

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

  std::string Run(const Node& root);

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

  Flow Execute(const Node& node);
  Flow ExecuteIf(const Node& node);
  void Print(const Node& node);
  void PrintCallBlock(const Node& node);
  void PrintBlock(const Node& node);
  Flow ExecuteFor(const Node& node);
  Flow RunLoop(const Node& node, const Value& sequence, int depth);
  std::shared_ptr<const List> Kept(const Node& node, std::shared_ptr<const List> items);
  Flow ExecuteWith(const Node& node);
  void Assign(const Node& target, const Value& value);

  Value Lookup(const std::string& name);
  Value Eval(const Node& node);
  std::vector<Value> EvalAll(const Node& node);
  Value EvalDict(const Node& node);
  Value EvalItem(const Node& node);
  Value EvalSlice(const Node& node);
  Value EvalFilter(const Node& node);
  Value EvalTest(const Node& node);
  Value EvalSign(const Node& node);
  Value EvalOperand(const Node& chain, size_t i);
  Value EvalLogic(const Node& node);
  Value EvalMath(const Node& node);
  Value EvalCompare(const Node& node);
  Value EvalConcat(const Node& node);
  Value EvalChoose(const Node& node);

  Args EvalArgs(const Node& node);
  void Spread(const Node& node, Args& args);
  Value EvalCall(const Node& node);
  Value Call(const Value& callee, const Args& args);
  Value MakeMacro(const Node& node);
  Value CallMacro(const Callable& callable, const Args& args);
  void BindParameters(const Node& macro, const Args& args, Scope& scope);
  void BindRest(const Node& macro, const Args& args, Scope& scope);
  Value CallLoop(const Loop& loop, const Args& args);
  Value CallJoiner(Namespace& joiner);
  Value Capture(const Node& body, Scope scope);

  Context context_;
  Scope root_;
  Scope* scope_;
  Text output_;
  Text* out_;
  int line_ = 0, depth_ = 0, call_depth_ = 0;
};

}  // namespace nibble::jinja
