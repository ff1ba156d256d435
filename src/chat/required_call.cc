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

Expr Arguments(GrammarBuilder* builder, const Json& function, const ToolNote& note) {
  const Json& schema = function.at("parameters");
  if (schema.empty()) return grammar::JsonObject(builder);
  if (function.contains("strict")) return grammar::JsonSchema(builder, schema);
  SchemaNotes notes;
  Expr arguments = grammar::JsonSchema(builder, schema, &notes);
  for (const std::string& what : notes) note(function.at("name").get<std::string>(), what);
  return arguments;
}

// {"name": "f", "arguments": ..}
Expr JsonObjectCall(const Json& function, const char* key, const Expr& arguments) {
  const std::string begin = fmt::format(R"({{"name": {}, "{}": )", function.at("name").dump(), key);
  return Sequence({Literal(begin), arguments, Literal("}")});
}

// Returns whether calls are the items of one list, behind one CallMarker.
bool IsList(const AnswerFormat& format) {
  return format.calls == CallFormat::kGranite ||
         (format.calls == CallFormat::kMistral && !format.has_marker("[ARGS]"));
}

// The rest of a call behind CallMarker, or an item of the list.
template <typename Marker>
Expr RestOfCall(const AnswerFormat& format, const Json& function, const Expr& arguments,
                const Marker& marker) {
  const auto name = function.at("name").get<std::string>();
  switch (format.calls) {
    case CallFormat::kHermes:
      return Sequence({Literal("\n"), JsonObjectCall(function, "arguments", arguments),
                       Literal("\n"), marker("</tool_call>")});
    case CallFormat::kLlamaJson:
      return JsonObjectCall(function, "parameters", arguments);
    case CallFormat::kMistral:
      if (format.has_marker("[ARGS]")) {
        return Sequence({Literal(name), marker("[ARGS]"), arguments});
      }
      [[fallthrough]];
    case CallFormat::kGranite:
      return JsonObjectCall(function, "arguments", arguments);
    case CallFormat::kHarmony:
      return Sequence({marker("<|channel|>"), Literal("commentary to=functions." + name + " "),
                       marker("<|constrain|>"), Literal("json"), marker("<|message|>"), arguments});
    case CallFormat::kNone:
    case CallFormat::kXml:
    case CallFormat::kGlm:
    case CallFormat::kGemma:
    case CallFormat::kLlamaPython:
      break;
  }
  return nullptr;
}

// Grammars of the calls of one request.
class Calls {
 public:
  Calls(const AnswerFormat& format, const MarkerIds& token_id, const ToolNote& note)
      : format_(format), token_id_(token_id), note_(note) {}

  GrammarBuilder* builder() { return &builder_; }

  // The token of a marker, where the vocabulary has one, or its text.
  Expr Marker(const std::string& text) const {
    return format_.has_marker(text) ? grammar::SpecialToken(token_id_(text)) : Literal(text);
  }

  // One call of any of the tools behind CallMarker, or a list of several; nullptr where the format
  // has no grammar.
  Expr Rest(const Json& tools, bool several) {
    const auto marker = [this](const std::string& text) { return Marker(text); };
    std::vector<Expr> calls;
    for (const Json& tool : tools) {
      const Json& function = tool.at("function");
      calls.push_back(RestOfCall(format_, function, Arguments(&builder_, function, note_), marker));
      if (calls.back() == nullptr) return nullptr;
    }
    Expr call = grammar::Choice(std::move(calls));
    if (!IsList(format_)) return call;
    const Expr item = grammar::Reference(builder_.AddRule("a call", std::move(call)));
    const Expr more =
        grammar::Repeat(Sequence({Literal(", "), item}), 0, several ? grammar::kUnbounded : 0);
    call = Sequence({Literal("["), item, more, Literal("]")});
    const std::string end = "<|/tool_call|>";
    return format_.has_marker(end) ? Sequence({std::move(call), marker(end)}) : call;
  }

  Expr Begun(Expr rest) const {
    const std::string begin(CallMarker(format_.calls));
    return begin.empty() ? rest : Sequence({Marker(begin), std::move(rest)});
  }

 private:
  const AnswerFormat& format_;
  const MarkerIds& token_id_;
  const ToolNote& note_;
  GrammarBuilder builder_{"tools"};
};

// Tools whose schema is none take any object, strict ones excepted.
Json Understood(const Json& tools, const ToolNote& note) {
  Json understood = tools;
  for (Json& tool : understood) {
    Json& function = tool.at("function");
    try {
      GrammarBuilder alone("tools");
      const auto silent = [](const std::string&, const std::string&) {};
      alone.Compile(Arguments(&alone, function, silent));
    } catch (const Error& error) {
      if (function.contains("strict")) throw;
      note(function.at("name").get<std::string>(), error.what());
      function["parameters"] = Json::object();
    }
  }
  return understood;
}

}  // namespace

std::string_view CallMarker(CallFormat format) {
  if (format == CallFormat::kHermes) return "<tool_call>";
  if (format == CallFormat::kGranite) return "<|tool_call|>";
  return format == CallFormat::kMistral ? "[TOOL_CALLS]" : "";
}

std::shared_ptr<const Grammar> RequiredCall(const AnswerFormat& format, const Json& tools,
                                            const MarkerIds& token_id, const ToolNote& note) {
  Calls calls(format, token_id, note);
  const Expr rest = calls.Rest(tools, false);
  return rest == nullptr ? nullptr : calls.builder()->Compile(calls.Begun(rest));
}

std::shared_ptr<const Grammar> BegunCall(const AnswerFormat& format, const Json& tools,
                                         const MarkerIds& token_id, const ToolNote& note) {
  Calls calls(format, token_id, note);
  const Expr rest = calls.Rest(Understood(tools, note), true);
  return rest == nullptr ? nullptr : calls.builder()->Compile(rest);
}

std::shared_ptr<const Grammar> CallsOrText(const AnswerFormat& format, const Json& tools,
                                           const MarkerIds& token_id, const ToolNote& note,
                                           const TextOf& text) {
  Calls calls(format, token_id, note);
  const Expr rest = calls.Rest(Understood(tools, note), true);
  if (rest == nullptr) return nullptr;
  Expr call = calls.Begun(rest), answer = text(calls.builder());
  const auto marker = [&](const char* sign) { return calls.Marker(sign); };
  if (format.calls == CallFormat::kHarmony) {
    const Expr reasoning = Sequence({marker("<|channel|>"), Literal("analysis"),
                                     marker("<|message|>"), grammar::AnyText(), marker("<|end|>"),
                                     marker("<|start|>"), Literal("assistant")});
    answer = Sequence({marker("<|channel|>"), Literal("final"), marker("<|message|>"), answer});
    const Expr either = tools.empty() ? answer : grammar::Choice({std::move(call), answer});
    return calls.builder()->Compile(Sequence({grammar::Optional(reasoning), either}));
  }
  if (format.calls == CallFormat::kHermes) {
    const Expr one = grammar::Reference(calls.builder()->AddRule("a call", std::move(call)));
    const Expr more = Sequence({grammar::Optional(Literal("\n")), one});
    call = Sequence({one, grammar::Repeat(more, 0, grammar::kUnbounded)});
  }
  return calls.builder()->Compile(grammar::Choice({std::move(call), std::move(answer)}));
}

}  // namespace nibble
