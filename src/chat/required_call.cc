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

// Whether calls are the items of one list, behind one CallMarker.
bool IsList(const AnswerFormat& format) {
  return format.calls == CallFormat::kGranite ||
         (format.calls == CallFormat::kMistral && !format.has_marker("[ARGS]"));
}

// The rest of a call behind CallMarker, or an item of the list. marker(text): the token, where the
// vocabulary has one, or the text.
template <typename Marker>
Expr RestOfCall(const AnswerFormat& format, GrammarBuilder* builder, const Json& function,
                const Marker& marker) {
  const auto name = function.at("name").get<std::string>();
  switch (format.calls) {
    case CallFormat::kHermes:
      return Sequence({Literal("\n"), JsonObjectCall(builder, function, "arguments"), Literal("\n"),
                       marker("</tool_call>")});
    case CallFormat::kLlamaJson:
      return JsonObjectCall(builder, function, "parameters");
    case CallFormat::kMistral:
      if (format.has_marker("[ARGS]")) {
        return Sequence({Literal(name), marker("[ARGS]"), Arguments(builder, function)});
      }
      [[fallthrough]];
    case CallFormat::kGranite:
      return JsonObjectCall(builder, function, "arguments");
    case CallFormat::kHarmony:
      return Sequence({marker("<|channel|>"), Literal("commentary to=functions." + name + " "),
                       marker("<|constrain|>"), Literal("json"), marker("<|message|>"),
                       Arguments(builder, function)});
    case CallFormat::kNone:
    case CallFormat::kXml:
    case CallFormat::kGlm:
    case CallFormat::kGemma:
    case CallFormat::kLlamaPython:
      break;
  }
  return nullptr;
}

std::shared_ptr<const Grammar> GrammarOf(const AnswerFormat& format, const Json& tools,
                                         const MarkerIds& token_id, bool begun) {
  const auto marker = [&](const std::string& text) {
    return format.has_marker(text) ? grammar::SpecialToken(token_id(text)) : Literal(text);
  };
  GrammarBuilder builder("tools");
  std::vector<Expr> calls;
  for (const Json& tool : tools) {
    calls.push_back(RestOfCall(format, &builder, tool.at("function"), marker));
    if (calls.back() == nullptr) return nullptr;
  }
  Expr call = grammar::Choice(std::move(calls));
  if (IsList(format)) {
    const Expr item = grammar::Reference(builder.AddRule("call", std::move(call)));
    const Expr more =
        grammar::Repeat(Sequence({Literal(", "), item}), 0, begun ? grammar::kUnbounded : 0);
    call = Sequence({Literal("["), item, more, Literal("]")});
    const std::string end = "<|/tool_call|>";
    if (format.has_marker(end)) call = Sequence({std::move(call), marker(end)});
  }
  const std::string begin(CallMarker(format.calls));
  if (!begun && !begin.empty()) call = Sequence({marker(begin), std::move(call)});
  return builder.Compile(call);
}

}  // namespace

std::string_view CallMarker(CallFormat format) {
  if (format == CallFormat::kHermes) return "<tool_call>";
  if (format == CallFormat::kGranite) return "<|tool_call|>";
  return format == CallFormat::kMistral ? "[TOOL_CALLS]" : "";
}

std::shared_ptr<const Grammar> RequiredCall(const AnswerFormat& format, const Json& tools,
                                            const MarkerIds& token_id) {
  return GrammarOf(format, tools, token_id, false);
}

std::shared_ptr<const Grammar> BegunCall(const AnswerFormat& format, const Json& tools,
                                         const MarkerIds& token_id, const FreedTool& freed) {
  Json understood = tools;
  for (Json& tool : understood) {
    Json& function = tool.at("function");
    try {
      GrammarBuilder alone("tools");
      alone.Compile(Arguments(&alone, function));
    } catch (const Error& error) {
      freed(function.at("name").get<std::string>(), error.what());
      function["parameters"] = Json::object();
    }
  }
  return GrammarOf(format, understood, token_id, true);
}

}  // namespace nibble
