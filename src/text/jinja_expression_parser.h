// SPDX-License-Identifier: Apache-2.0
// The parser's tokens, nodes and expressions; jinja_parser.cc adds the statements.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/jinja_lexer.h"
#include "text/jinja_parser.h"

namespace nibble::jinja {

using NodePtr = std::unique_ptr<Node>;
using Names = std::initializer_list<std::string_view>;

inline bool Among(std::string_view text, Names names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::string_view source) : tokens_(Tokenize(source)) {}

  // Counts one level of recursion for as long as it lives.
  class Level {
   public:
    explicit Level(ExpressionParser& parser) : depth_(parser.depth_) {
      if (++depth_ > kMaxParseDepth) parser.Error("nested deeper than {} levels", kMaxParseDepth);
    }
    ~Level() { --depth_; }
    Level(const Level&) = delete;
    Level& operator=(const Level&) = delete;

   private:
    int& depth_;
  };

  template <typename... A>
  [[noreturn]] void Error(fmt::format_string<A...> format, A&&... args) const {
    Raise("line {}: {}", Now().line, fmt::format(format, std::forward<A>(args)...));
  }

  const Token& Now() const { return tokens_[at_]; }
  bool Is(TokenKind kind, std::string_view text) const {
    return Now().kind == kind && Now().text == text;
  }
  bool IsOp(std::string_view text) const { return Is(TokenKind::kOperator, text); }
  bool IsWord(std::string_view text) const { return Is(TokenKind::kName, text); }
  bool Skip(bool matches) { return matches && ++at_; }
  bool SkipOp(std::string_view text) { return Skip(IsOp(text)); }
  bool SkipWord(std::string_view text) { return Skip(IsWord(text)); }
  std::string Take(TokenKind kind, const char* what) {
    if (Now().kind != kind) Error("expected {}, found '{}'", what, Now().text);
    return tokens_[at_++].text;
  }
  void Expect(std::string_view op) {
    if (!SkipOp(op)) Error("expected '{}', found '{}'", op, Now().text);
  }
  void EndTag() { Take(TokenKind::kBlockEnd, "the end of the tag"); }

  template <typename... K>
  NodePtr Make(Kind kind, std::string text, K&&... kids) const {
    auto node = std::make_unique<Node>(Node{kind, Now().line, 1, std::move(text), {}, {}, 0});
    (Add(*node, std::forward<K>(kids)), ...);
    return node;
  }
  void Add(Node& node, NodePtr kid) const {
    if (kid != nullptr) node.depth = std::max(node.depth, kid->depth + 1);
    if (node.depth > kMaxTreeDepth) Error("nested deeper than {} levels", kMaxTreeDepth);
    node.kids.push_back(std::move(kid));
  }
  // The first of `kids` is what is called, or the body of the macro.
  void CheckArguments(const Node& node) const {
    if (node.kids.size() > kMaxArguments + 1) Error("more than {} arguments", kMaxArguments);
  }
  NodePtr Constant(Value value) const {
    NodePtr node = Make(Kind::kConst, "");
    node->value = std::move(value);
    return node;
  }

  // each() {"," each()} close; a comma may stand before `close`.
  template <typename Each>
  void ParseList(std::string_view close, Each&& each) {
    while (!SkipOp(close)) {
      each();
      if (!IsOp(close)) Expect(",");
    }
  }

  // One operand, or a tuple without parentheses.
  template <typename Operand>
  NodePtr ParseTuple(Operand&& operand) {
    NodePtr first = operand();
    if (!IsOp(",")) return first;
    NodePtr tuple = Make(Kind::kTuple, "", std::move(first));
    while (SkipOp(",") && Now().kind != TokenKind::kBlockEnd &&
           Now().kind != TokenKind::kOutputEnd && !IsOp(")") && !IsOp("]") && !IsWord("in")) {
      Add(*tuple, operand());
    }
    return tuple;
  }
  NodePtr ParseTuple() {
    return ParseTuple([&] { return ParseExpression(); });
  }
  NodePtr ParseTupleWithoutIf() {
    return ParseTuple([&] { return ParseOr(); });
  }

  NodePtr ParseExpression();
  NodePtr ParseOr();  // without "if"
  NodePtr ParsePrimary();
  NodePtr ParsePostfix(NodePtr node);
  std::string TakeDottedName(const char* what);
  NodePtr ParseFilter(NodePtr input);

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int uses_ = 0;  // of MacroUse, in the macro at hand

 private:
  NodePtr ParseBinary(size_t precedence);
  std::string TakeOperator(std::span<const std::string_view> ops);
  NodePtr ParseUnary(bool filters);
  NodePtr ParseItems(NodePtr node, std::string_view close);
  NodePtr ParseSubscript(NodePtr object);
  void ParseArguments(Node& call);
  NodePtr ParseTest(NodePtr input);
  Value TakeInteger();
  Value TakeFloat();
};

}  // namespace nibble::jinja
