// SPDX-License-Identifier: Apache-2.0
#include "text/jinja_parser.h"

#include <set>

#include "text/jinja_expression_parser.h"

namespace nibble::jinja {
namespace {

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  NodePtr Run() { return ParseBody({}); }

 private:
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
    if (tag == "call") return ParseCall();
    if (tag == "with") return ParseWith();
    if (tag == "block") return ParseBlock();
    if (tag == "autoescape") return ParseAutoescape();
    if (tag == "filter") {
      return Make(Kind::kOutput, "", ParseCapture("endfilter", true));
    }
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
    const bool recursive = SkipWord("recursive");
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
    return Make(Kind::kFor, recursive ? "recursive" : "", std::move(target), std::move(sequence),
                std::move(condition), std::move(body), std::move(otherwise));
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
  // The first filter of {% filter %} has no "|" before it.
  NodePtr ParseCapture(std::string_view end, bool filters_it = false) {
    const size_t filters = at_;
    while (Now().kind != TokenKind::kBlockEnd && Now().kind != TokenKind::kEnd) ++at_;
    EndTag();
    const int loops = std::exchange(loops_, 0);
    NodePtr value = Make(Kind::kCapture, "", ParseBody({end}));
    loops_ = loops;
    const size_t after = std::exchange(at_, filters) + 1;
    if (filters_it) value = ParseFilter(std::move(value));
    while (SkipOp("|")) value = ParseFilter(std::move(value));
    if (Now().kind != TokenKind::kBlockEnd) Error("unexpected '{}'", Now().text);
    at_ = after;
    return value;
  }

  NodePtr ParseMacro() {
    std::string name = Take(TokenKind::kName, "a macro name");
    if (!IsOp("(")) Error("expected '(', found '{}'", Now().text);
    return ParseMacroRest(std::move(name), "endmacro");
  }

  // Parses a macro from its parameters on, which {% call %} may lack.
  NodePtr ParseMacroRest(std::string name, std::string_view end, NodePtr call = nullptr) {
    NodePtr macro = Make(Kind::kMacro, std::move(name), nullptr);
    if (SkipOp("(")) ParseParameters(*macro);
    if (end == "endcall") call = ParsePostfix(ParsePrimary());
    if (call != nullptr && call->kind != Kind::kCall) Error("expected a call");
    EndTag();
    const int loops = std::exchange(loops_, 0), outer_uses = std::exchange(uses_, 0);
    NodePtr body = ParseBody({end});
    loops_ = loops;
    ++at_;
    macro->uses = uses_;
    uses_ |= outer_uses;  // a macro around this one hands the name in
    macro->depth = std::max(macro->depth, body->depth + 1);
    macro->kids[0] = std::move(body);
    if (call == nullptr) return macro;
    return Make(Kind::kCallBlock, "", std::move(call), std::move(macro));
  }

  void ParseParameters(Node& macro) {
    bool has_default = false;
    ParseList(")", [&] {
      NodePtr parameter = Make(Kind::kNamed, Take(TokenKind::kName, "a parameter"));
      Add(*parameter, SkipOp("=") ? ParseExpression() : nullptr);
      if (has_default && parameter->kids[0] == nullptr) {
        Error("parameter '{}' has no default, others before it do", parameter->text);
      }
      has_default = parameter->kids[0] != nullptr;
      Add(macro, std::move(parameter));
      CheckArguments(macro);
    });
  }

  NodePtr ParseCall() { return ParseMacroRest("", "endcall"); }

  NodePtr ParseWith() {
    NodePtr node = Make(Kind::kWith, "", nullptr);
    while (Now().kind != TokenKind::kBlockEnd) {
      if (node->kids.size() > 1) Expect(",");
      Add(*node, ParseTarget());
      Expect("=");
      Add(*node, ParseExpression());
    }
    EndTag();
    NodePtr body = ParseBody({"endwith"});
    ++at_;
    node->depth = std::max(node->depth, body->depth + 1);
    node->kids[0] = std::move(body);
    return node;
  }

  // Without inheritance a block prints its body; it sees the top level unless it is scoped.
  NodePtr ParseBlock() {
    const std::string name = Take(TokenKind::kName, "a block name");
    if (!blocks_.insert(name).second) Error("block '{}' is defined twice", name);
    const bool scoped = SkipWord("scoped");
    EndTag();
    const int loops = std::exchange(loops_, 0);
    NodePtr body = ParseBody({"endblock"});
    loops_ = loops;
    ++at_;
    SkipWord(name);
    return Make(Kind::kBlock, scoped ? "scoped" : "", std::move(body));
  }

  // Nothing is escaped anyway; where a template asks for it, it is refused.
  NodePtr ParseAutoescape() {
    if (!SkipWord("false") && !SkipWord("False")) Error("autoescape is not supported");
    EndTag();
    NodePtr body = ParseBody({"endautoescape"});
    ++at_;
    return Make(Kind::kWith, "", std::move(body));
  }

  int loops_ = 0;
  std::set<std::string> blocks_;
};

}  // namespace

std::unique_ptr<Node> ParseTemplate(std::string_view source) {
  if (source.size() > kMaxSourceBytes) Raise("template longer than {} bytes", kMaxSourceBytes);
  return Parser(source).Run();
}

}  // namespace nibble::jinja
