// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <span>

#include "text/jinja_lexer.h"

namespace nibble::jinja {
namespace {

using NodePtr = std::unique_ptr<Node>;
using Names = std::initializer_list<std::string_view>;

bool Among(std::string_view text, Names names) {
  return std::find(names.begin(), names.end(), text) != names.end();
}

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

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(Tokenize(source)) {}

  NodePtr Run() { return ParseBody({}); }

 private:
  // Counts one level of recursion for as long as it lives.
  class Level {
   public:
    explicit Level(Parser& parser) : depth_(parser.depth_) {
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
    auto node = std::make_unique<Node>(Node{kind, Now().line, 1, std::move(text), {}, {}});
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

  // Statements up to a tag named in `ends` (its name is then the current token), or the end.
  NodePtr ParseBody(Names ends) {
    const Level level(*this);
    NodePtr body = Make(Kind::kBody, "");
    while (true) {
      const TokenKind kind = Now().kind;
      if (kind == TokenKind::kEnd) {
        if (ends.size() > 0) Error("the template ends before {{% {} %}}", *(ends.end() - 1));
        return body;
      }
      if (kind == TokenKind::kData) {
        NodePtr data = Make(Kind::kData, "");
        data->value = std::move(tokens_[at_++].text);
        Add(*body, std::move(data));
      } else if (Skip(kind == TokenKind::kOutputBegin)) {
        Add(*body, Make(Kind::kOutput, "", ParseTuple()));
        Take(TokenKind::kOutputEnd, "'}}'");
      } else {
        Take(TokenKind::kBlockBegin, "a tag");
        if (Now().kind == TokenKind::kName && Among(Now().text, ends)) return body;
        Add(*body, ParseStatement(Take(TokenKind::kName, "a tag name")));
        EndTag();
      }
    }
  }

  NodePtr ParseStatement(const std::string& tag) {
    if (tag == "if") return ParseIf();
    if (tag == "for") return ParseFor();
    if (tag == "set") return ParseSet();
    if (tag == "macro") return ParseMacro();
    if (tag == "generation") {  // transformers' mark of what the assistant says: prints its body
      return Make(Kind::kOutput, "", ParseCapture("endgeneration"));
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) Error("{} outside a loop", tag);
      return Make(tag == "break" ? Kind::kBreak : Kind::kContinue, "");
    }
    Error("unknown or unsupported tag '{}'", tag);
  }

  NodePtr ParseIf() {
    NodePtr node = Make(Kind::kIf, "");
    Add(*node, ParseTupleWithoutIf());
    while (true) {
      EndTag();
      Add(*node, ParseBody({"elif", "else", "endif"}));
      if (SkipWord("elif")) {
        Add(*node, ParseTupleWithoutIf());
        continue;
      }
      if (SkipWord("else")) {
        EndTag();
        Add(*node, nullptr);
        Add(*node, ParseBody({"endif"}));
      }
      ++at_;
      return node;
    }
  }

  NodePtr ParseFor() {
    NodePtr target = ParseTarget();
    if (!SkipWord("in")) Error("expected 'in', found '{}'", Now().text);
    NodePtr sequence = ParseTupleWithoutIf();
    NodePtr condition = SkipWord("if") ? ParseExpression() : nullptr;
    if (IsWord("recursive")) Error("recursive loops are not supported");
    EndTag();
    ++loops_;
    NodePtr body = ParseBody({"else", "endfor"});
    --loops_;
    NodePtr otherwise;
    if (SkipWord("else")) {
      EndTag();
      otherwise = ParseBody({"endfor"});
    }
    ++at_;
    return Make(Kind::kFor, "", std::move(target), std::move(sequence), std::move(condition),
                std::move(body), std::move(otherwise));
  }

  // A name, namespace.name, or a tuple of targets.
  NodePtr ParseTarget() {
    NodePtr target = ParseTuple([&] { return ParsePostfix(ParsePrimary()); });
    CheckTarget(*target);
    return target;
  }
  void CheckTarget(const Node& target) const {
    if (target.kind == Kind::kTuple) {
      for (const NodePtr& kid : target.kids) CheckTarget(*kid);
    } else if (target.kind != Kind::kName &&
               (target.kind != Kind::kAttr || target.kids[0]->kind != Kind::kName)) {
      Error("only names and attributes of a namespace can be assigned to");
    }
  }

  NodePtr ParseSet() {
    NodePtr target = ParseTarget();
    NodePtr value = SkipOp("=") ? ParseTuple() : ParseCapture("endset");
    return Make(Kind::kSet, "", std::move(target), std::move(value));
  }

  // The body up to {% end %}, through the filters that stand before it in the opening tag.
  NodePtr ParseCapture(std::string_view end) {
    const size_t filters = at_;
    while (Now().kind != TokenKind::kBlockEnd && Now().kind != TokenKind::kEnd) ++at_;
    EndTag();
    const int loops = std::exchange(loops_, 0);
    NodePtr value = Make(Kind::kCapture, "", ParseBody({end}));
    loops_ = loops;
    const size_t after = std::exchange(at_, filters) + 1;
    while (SkipOp("|")) value = ParseFilter(std::move(value));
    if (Now().kind != TokenKind::kBlockEnd) Error("unexpected '{}'", Now().text);
    at_ = after;
    return value;
  }

  NodePtr ParseMacro() {
    const int loops = std::exchange(loops_, 0);
    NodePtr macro = Make(Kind::kMacro, Take(TokenKind::kName, "a macro name"), nullptr);
    Expect("(");
    ParseList(")", [&] {
      NodePtr parameter = Make(Kind::kNamed, Take(TokenKind::kName, "a parameter"));
      Add(*parameter, SkipOp("=") ? ParseExpression() : nullptr);
      Add(*macro, std::move(parameter));
      CheckArguments(*macro);
    });
    EndTag();
    NodePtr body = ParseBody({"endmacro"});
    ++at_;
    macro->depth = std::max(macro->depth, body->depth + 1);
    macro->kids[0] = std::move(body);
    loops_ = loops;
    return macro;
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
    return ParseTuple([&] { return ParseBinary(0); });
  }

  NodePtr ParseExpression() {
    const Level level(*this);
    NodePtr value = ParseBinary(0);
    while (SkipWord("if")) {
      NodePtr condition = ParseBinary(0);
      NodePtr otherwise = SkipWord("else") ? ParseExpression() : nullptr;
      value = Make(Kind::kChoose, "", std::move(condition), std::move(value), std::move(otherwise));
    }
    return value;
  }

  // A chain of operators of one precedence, or what binds tighter.
  NodePtr ParseBinary(size_t precedence) {
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

  std::string TakeOperator(std::span<const std::string_view> ops) {
    const Token& next = tokens_[at_ + (Now().kind != TokenKind::kEnd)];
    const bool not_in = IsWord("not") && next.kind == TokenKind::kName && next.text == "in";
    const std::string op = not_in ? "not in" : Now().text;
    if (Now().kind != TokenKind::kName && Now().kind != TokenKind::kOperator) return "";
    if (std::find(ops.begin(), ops.end(), op) == ops.end()) return "";
    at_ += not_in ? 2 : 1;
    return op;
  }

  NodePtr ParseUnary(bool filters) {
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

  NodePtr ParsePrimary() {
    const Token& token = Now();
    switch (token.kind) {
      case TokenKind::kName:
        ++at_;
        if (Among(token.text, {"true", "True"})) return Constant(true);
        if (Among(token.text, {"false", "False"})) return Constant(false);
        if (Among(token.text, {"none", "None"})) return Constant(Value::None());
        return Make(Kind::kName, token.text);
      case TokenKind::kString: {
        std::string text;  // neighbours are joined, as in Python
        while (Now().kind == TokenKind::kString) text += tokens_[at_++].text;
        return Constant(std::move(text));
      }
      case TokenKind::kInteger:
        return Constant(Number<int64_t>());
      case TokenKind::kFloat:
        return Constant(Number<double>());
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

  NodePtr ParseItems(NodePtr node, std::string_view close) {
    ParseList(close, [&] {
      Add(*node, ParseExpression());
      if (node->kind != Kind::kDict) return;
      Expect(":");
      Add(*node, ParseExpression());
    });
    return node;
  }

  template <typename T>
  T Number() {
    const std::string& text = Now().text;
    T number{};
    const auto result = std::from_chars(text.data(), text.data() + text.size(), number);
    if (result.ec != std::errc()) Error("number {} is out of range", text);
    ++at_;
    return number;
  }

  NodePtr ParsePostfix(NodePtr node) {
    while (true) {
      if (SkipOp(".")) {
        if (Now().kind == TokenKind::kInteger) {
          NodePtr key = Constant(Number<int64_t>());
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

  NodePtr ParseSubscript(NodePtr object) {
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

  // Adds the arguments of a call, filter or test that stand here.
  void ParseArguments(Node& call) {
    Expect("(");
    ParseList(")", [&] {
      const Token& next = tokens_[at_ + 1];
      if (Now().kind == TokenKind::kName && next.kind == TokenKind::kOperator && next.text == "=") {
        std::string name = Now().text;
        at_ += 2;
        Add(call, Make(Kind::kNamed, std::move(name), ParseExpression()));
      } else {
        Add(call, ParseExpression());
      }
      CheckArguments(call);
    });
  }

  NodePtr ParseFilter(NodePtr input) {
    NodePtr node = Make(Kind::kFilter, Take(TokenKind::kName, "a filter name"), std::move(input));
    if (IsOp("(")) ParseArguments(*node);
    return node;
  }

  NodePtr ParseTest(NodePtr input) {
    const bool negated = SkipWord("not");
    NodePtr node = Make(Kind::kTest, Take(TokenKind::kName, "a test name"), std::move(input));
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

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0, loops_ = 0;
};

}  // namespace

std::unique_ptr<Node> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxSourceBytes) Raise("template longer than {} bytes", kMaxSourceBytes);
  return Parser(source).Run();
}

}  // namespace nibble::jinja
