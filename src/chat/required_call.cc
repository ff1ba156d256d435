// SPDX-License-Identifier: Apache-2.0
#include "chat/required_call.h"

#include <algorithm>
#include <vector>

#include "grammar/grammar.h"

namespace nibble {
namespace {

using grammar::Expr;
using grammar::Literal;
using grammar::Sequence;

Expr Arguments(GrammarBuilder* builder, const Json& function) {
  const Json& schema = function.at("parameters");
  return schema.empty() ? grammar::JsonObject(builder) : grammar::JsonSchema(builder, schema);
}

// {"name": "f", "arguments": ..}
Expr JsonObjectCall(GrammarBuilder* builder, const Json& function, const char* arguments) {
  const std::string begin =
      fmt::format(R"({{"name": {}, "{}": )", function.at("name").dump(), arguments);
  return Sequence({Literal(begin), Arguments(builder, function), Literal("}")});
}

// marker(text): the token, where the vocabulary has one, or the text.
template <typename Marker>
Expr CallOf(CallFormat format, GrammarBuilder* builder, const Json& function,
            const Marker& marker) {
  switch (format) {
    case CallFormat::kHermes:
      return Sequence({marker("<tool_call>"), Literal("\n"),
                       JsonObjectCall(builder, function, "arguments"), Literal("\n"),
                       marker("</tool_call>")});
    case CallFormat::kLlamaJson:
      return JsonObjectCall(builder, function, "parameters");
    case CallFormat::kMistral:
      return Sequence({marker("[TOOL_CALLS]"), Literal("["),
                       JsonObjectCall(builder, function, "arguments"), Literal("]")});
    case CallFormat::kHarmony: {
      const auto name = function.at("name").get<std::string>();
      return Sequence({marker("<|channel|>"), Literal("commentary to=functions." + name + " "),
                       marker("<|constrain|>"), Literal("json"), marker("<|message|>"),
                       Arguments(builder, function)});
    }
    case CallFormat::kNone:
    case CallFormat::kXml:
    case CallFormat::kLlamaPython:
      break;
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<const Grammar> RequiredCall(
    const AnswerFormat& format, const Json& tools,
    const std::function<int32_t(const std::string& marker)>& token_id) {
  const auto marker = [&](const std::string& text) {
    const bool token = std::ranges::find(format.markers, text) != format.markers.end();
    return token ? grammar::SpecialToken(token_id(text)) : Literal(text);
  };
  GrammarBuilder builder("tools");
  std::vector<Expr> calls;
  for (const Json& tool : tools) {
    calls.push_back(CallOf(format.calls, &builder, tool.at("function"), marker));
    if (calls.back() == nullptr) return nullptr;
  }
  return builder.Compile(grammar::Choice(std::move(calls)));
}

}  // namespace nibble
