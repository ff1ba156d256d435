// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_expression_parser.h"

#include <charconv>
#include <optional>

namespace nibble::jinja {
namespace {

constexpr std::string_view kOr[] = {"or"}, kAnd[] = {"and"}, kConcat[] = {"~"}, kPower[] = {"**"},
                           kSum[] = {"+", "-"}, kProduct[] = {"*", "/", "//", "%"},
                           kComparison[] = {"==", "!=", "<", "<=", ">", ">=", "in", "not in"};
struct Precedence {
  Kind kind;
  std::span<const std::string_view> ops;
};
constexpr Precedence kPrecedences[] = {  // loosest first; "not" stands before kCompare
    {Kind::kOr, kOr},     {Kind::kAnd, kAnd},       {Kind::kCompare, kComparison},
    {Kind::kMath, kSum},  {Kind::kConcat, kConcat}, {Kind::kMath, kProduct},
    {Kind::kMath, kPower}};

}  // namespace

NodePtr ExpressionParser::ParseExpression() {
  const Level level(*this);
  NodePtr value = ParseBinary(0);
  while (SkipWord("if")) {
    NodePtr condition = ParseBinary(0);
    NodePtr otherwise = SkipWord("else") ? ParseExpression() : nullptr;
    value = Make(Kind::kChoose, "", std::move(condition), std::move(value), std::move(otherwise));
  }
  return value;
}

NodePtr ExpressionParser::ParseOr() {
  return ParseBinary(0);
}

// A chain of operators of one precedence, or what binds tighter.
NodePtr ExpressionParser::ParseBinary(size_t precedence) {
  if (precedence == std::size(kPrecedences)) return ParseUnary(true);
  const auto& [kind, ops] = kPrecedences[precedence];
  const bool compares = kind == Kind::kCompare;
  const std::optional<Level> level = compares ? std::make_optional<Level>(*this) : std::nullopt;
  if (compares && SkipWord("not")) return Make(Kind::kNot, "", ParseBinary(precedence));
  NodePtr first = ParseBinary(precedence + 1), chain;
  for (std::string op = TakeOperator(ops); !op.empty(); op = TakeOperator(ops)) {
    if (!chain) chain = Make(kind, "", std::move(first));
    Add(*chain, Make(Kind::kRight, std::move(op), ParseBinary(precedence + 1)));
  }
  return chain ? std::move(chain) : std::move(first);
}

std::string ExpressionParser::TakeOperator(std::span<const std::string_view> ops) {
  const Token& next = tokens_[at_ + (Now().kind != TokenKind::kEnd)];
  const bool not_in = IsWord("not") && next.kind == TokenKind::kName && next.text == "in";
  const std::string op = not_in ? "not in" : Now().text;
  if (Now().kind != TokenKind::kName && Now().kind != TokenKind::kOperator) return "";
  if (std::find(ops.begin(), ops.end(), op) == ops.end()) return "";
  at_ += not_in ? 2 : 1;
  return op;
}

NodePtr ExpressionParser::ParseUnary(bool filters) {
  const Level level(*this);
  NodePtr node;
  if (IsOp("-") || IsOp("+")) {
    std::string sign = tokens_[at_++].text;
    node = Make(Kind::kSign, std::move(sign), ParseUnary(false));
  } else {
    node = ParsePrimary();
  }
  node = ParsePostfix(std::move(node));
  while (filters) {
    if (SkipOp("|")) {
      node = ParseFilter(std::move(node));
    } else if (SkipWord("is")) {
      node = ParseTest(std::move(node));
    } else {
      break;
    }
  }
  return node;
}

NodePtr ExpressionParser::ParsePrimary() {
  const Token& token = Now();
  switch (token.kind) {
    case TokenKind::kName:
      ++at_;
      if (Among(token.text, {"true", "True"})) return Constant(true);
      if (Among(token.text, {"false", "False"})) return Constant(false);
      if (Among(token.text, {"none", "None"})) return Constant(Value::None());
      if (token.text == "caller") uses_ |= static_cast<int>(MacroUse::kCaller);
      if (token.text == "kwargs") uses_ |= static_cast<int>(MacroUse::kKwargs);
      if (token.text == "varargs") uses_ |= static_cast<int>(MacroUse::kVarargs);
      return Make(Kind::kName, token.text);
    case TokenKind::kString: {
      std::string text;  // neighbours are joined, as in Python
      while (Now().kind == TokenKind::kString) text += tokens_[at_++].text;
      return Constant(std::move(text));
    }
    case TokenKind::kInteger:
      return Constant(TakeInteger());
    case TokenKind::kFloat:
      return Constant(TakeFloat());
    default:
      break;
  }
  if (SkipOp("(")) {
    NodePtr inner = IsOp(")") ? Make(Kind::kTuple, "") : ParseTuple();
    Expect(")");
    return inner;
  }
  if (SkipOp("[")) return ParseItems(Make(Kind::kList, ""), "]");
  if (SkipOp("{")) return ParseItems(Make(Kind::kDict, ""), "}");
  Error("unexpected '{}'", token.text);
}

NodePtr ExpressionParser::ParseItems(NodePtr node, std::string_view close) {
  ParseList(close, [&] {
    Add(*node, ParseExpression());
    if (node->kind != Kind::kDict) return;
    Expect(":");
    Add(*node, ParseExpression());
  });
  return node;
}

// Decimal, or 0x, 0o and 0b of at most 64 bits.
Value ExpressionParser::TakeInteger() {
  const std::string text = tokens_[at_++].text;
  const char mark = text.size() > 1 ? text[1] | 0x20 : '\0';
  const int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
  if (base == 10 && text.size() > kMaxDigits)
    Error("number of {} digits is out of range", text.size());
  if (base == 10) return MakeInteger(text);
  uint64_t number = 0;
  const char* const end = text.data() + text.size();
  if (std::from_chars(text.data() + 2, end, number, base).ec != std::errc()) {
    Error("number {} is out of range", text);
  }
  return MakeInteger(fmt::format("{}", number));
}

Value ExpressionParser::TakeFloat() {
  const std::string text = tokens_[at_++].text;
  double number = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
  if (result.ec != std::errc()) Error("number {} is out of range", text);
  return number;
}

NodePtr ExpressionParser::ParsePostfix(NodePtr node) {
  while (true) {
    if (SkipOp(".")) {
      if (Now().kind == TokenKind::kInteger) {
        NodePtr key = Constant(TakeInteger());
        node = Make(Kind::kItem, "", std::move(node), std::move(key));
      } else {
        node = Make(Kind::kAttr, Take(TokenKind::kName, "a name after '.'"), std::move(node));
      }
    } else if (SkipOp("[")) {
      node = ParseSubscript(std::move(node));
    } else if (IsOp("(")) {
      node = Make(Kind::kCall, "", std::move(node));
      ParseArguments(*node);
    } else {
      return node;
    }
  }
}

NodePtr ExpressionParser::ParseSubscript(NodePtr object) {
  NodePtr start = IsOp(":") ? nullptr : ParseTuple();
  if (SkipOp("]")) return Make(Kind::kItem, "", std::move(object), std::move(start));
  const auto part = [&]() -> NodePtr {
    return SkipOp(":") && !IsOp(":") && !IsOp("]") ? ParseExpression() : nullptr;
  };
  NodePtr stop = part();
  NodePtr step = part();
  Expect("]");
  return Make(Kind::kSlice, "", std::move(object), std::move(start), std::move(stop),
              std::move(step));
}

// Adds the arguments of a call, filter or test that stand here: positional ones, then named ones;
// *sequence and **dictionary come last.
void ExpressionParser::ParseArguments(Node& call) {
  bool named = false, spread = false, spread_named = false;
  Expect("(");
  ParseList(")", [&] {
    const Token& next = tokens_[at_ + 1];
    if (IsOp("*") || IsOp("**")) {
      bool& seen = IsOp("*") ? spread : spread_named;
      if (seen || spread_named) Error("a call takes one *sequence, then one **dictionary");
      seen = true;
      std::string op = tokens_[at_++].text;
      Add(call, Make(Kind::kSpread, std::move(op), ParseExpression()));
    } else if (Now().kind == TokenKind::kName && next.kind == TokenKind::kOperator &&
               next.text == "=" && !spread_named) {
      std::string name = Now().text;
      named = true;
      at_ += 2;
      Add(call, Make(Kind::kNamed, std::move(name), ParseExpression()));
    } else {
      if (named || spread || spread_named) Error("a positional argument stands behind others");
      Add(call, ParseExpression());
    }
    CheckArguments(call);
  });
}

// jinja2 takes the dots behind a filter or test for a part of its name, and then finds none.
std::string ExpressionParser::TakeDottedName(const char* what) {
  std::string name = Take(TokenKind::kName, what);
  while (SkipOp(".")) name += "." + Take(TokenKind::kName, what);
  return name;
}

NodePtr ExpressionParser::ParseFilter(NodePtr input) {
  NodePtr node = Make(Kind::kFilter, TakeDottedName("a filter name"), std::move(input));
  if (IsOp("(")) ParseArguments(*node);
  return node;
}

NodePtr ExpressionParser::ParseTest(NodePtr input) {
  const bool negated = SkipWord("not");
  NodePtr node = Make(Kind::kTest, TakeDottedName("a test name"), std::move(input));
  const TokenKind kind = Now().kind;
  if (IsOp("(")) {
    ParseArguments(*node);
  } else if (kind == TokenKind::kString || kind == TokenKind::kInteger ||
             kind == TokenKind::kFloat || IsOp("[") || IsOp("{") ||
             (kind == TokenKind::kName && !Among(Now().text, {"else", "or", "and", "is"}))) {
    Add(*node, ParsePostfix(ParsePrimary()));  // {{ x is divisibleby 3 }}
  }
  return negated ? Make(Kind::kNot, "", std::move(node)) : std::move(node);
}

}  // namespace nibble::jinja
