// SPDX-License-Identifier: Apache-2.0
#include "serve/chat_turn.h"

#include <algorithm>
#include <limits>

#include "chat/render_messages.h"
#include "chat/required_call.h"

namespace nibble::serve {
namespace {

constexpr size_t kMaxKwargs = 32, kMaxKwargBytes = 256;
constexpr std::string_view kFunction = "function:";

Json Tools(const ChatInput& input) {
  if (input.tool_choice == "none") return Json::array();
  if (!input.tool_choice.starts_with(kFunction)) return input.tools;
  const std::string name = input.tool_choice.substr(kFunction.size());
  for (const Json& tool : input.tools) {
    if (tool["function"]["name"] == name) return Json::array({tool});
  }
  BadField("tool_choice", "there is no tool {}", Printable(name));
}

void NoteTool(const std::string& name, const std::string& what) {
  Note("nibble: arguments of the tool {} are not wholly held to its schema: {}\n", Printable(name),
       Printable(what));
}

// The grammar that `make` gives, which is RequiredCall, BegunCall or CallsOrText; from the cache if
// it was made before.
template <typename Make>
std::shared_ptr<const Grammar> GrammarOfCalls(const Service& service, const Json& tools,
                                              const std::string& kind, const Make& make) {
  const auto id = [&](const std::string& marker) { return *service.tokenizer().TokenId(marker); };
  try {
    return service.grammars().Get(
        kind + tools.dump(), [&] { return make(service.answer_format(), tools, id, NoteTool); });
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "tools");
  }
}

std::shared_ptr<const Grammar> RequiredCalls(const Service& service, const Json& tools) {
  if (tools.empty()) BadField("tool_choice", "a tool is required; there is none");
  auto calls = GrammarOfCalls(service, tools, "required", RequiredCall);
  if (calls != nullptr) return calls;
  BadField("tool_choice", "this model's way to call functions cannot be required; use auto");
}

// Holds the arguments of a call that the model begins by itself to the tool's schema, in formats
// whose calls begin with a token of their own.
void ConstrainCalls(const Service& service, const Json& tools, GenerationRequest* request) {
  const std::string marker(CallMarker(service.answer_format().calls));
  if (!service.answer_format().has_marker(marker)) return;
  request->grammar = GrammarOfCalls(service, tools, "begun", BegunCall);
  request->grammar_after = service.tokenizer().TokenId(marker);
  request->grammar_repeats = true;
}

// The grammar of a text in response_format, beside which calls stay possible. gpt-oss has a channel
// for the text.
std::shared_ptr<const Grammar> FormattedAnswer(const Service& service, const Json& tools,
                                               const GenerationFields& fields) {
  auto alone = MakeGrammar(service.grammars(), fields.grammar, fields.grammar_field);
  const CallFormat calls = service.answer_format().calls;
  const bool may_call = !tools.empty() && calls != CallFormat::kNone;
  const bool may_wrap = may_call || calls == CallFormat::kHarmony;
  if (alone == nullptr || fields.grammar_of_calls || !may_wrap) return alone;
  const auto text = [&](GrammarBuilder* builder) {
    SchemaNotes known;
    return GrammarTexts(builder, fields.grammar, &known);
  };
  const auto make = [&](const auto&... given) { return CallsOrText(given..., text); };
  auto grammar = GrammarOfCalls(service, tools, "or " + fields.grammar.dump(), make);
  if (grammar != nullptr) return grammar;
  BadField(fields.grammar_field,
           "{} beside tools: this model's calls have no grammar; set tool_choice to none or leave "
           "one out",
           fields.grammar_field);
}

}  // namespace

std::string ToolChoice(const Json& value, const std::string& name) {
  if (value.is_string()) {
    const auto& choice = value.get_ref<const std::string&>();
    if (choice == "none" || choice == "auto" || choice == "required") return choice;
    BadField(name, "tool_choice = \"{}\"; there are none, auto, required and a function",
             Printable(choice));
  }
  const auto holder = JsonFind<Json>(value, "function", name).value_or(value);
  return std::string(kFunction) + JsonGet<std::string>(holder, "name", name);
}

Json TemplateKwargs(const Json& value, const std::string& name) {
  if (!value.is_object()) BadField(name, "{} must be an object", name);
  if (value.size() > kMaxKwargs) BadField(name, "more than {} variables", kMaxKwargs);
  for (const auto& [key, item] : value.items()) {
    for (const char* own :
         {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}) {
      if (key == own) BadField(name, "{}.{} is the server's to set", name, own);
    }
    const bool plain =
        item.is_boolean() || item.is_number() || item.is_null() ||
        (item.is_string() && item.get_ref<const std::string&>().size() <= kMaxKwargBytes);
    if (!plain) BadField(name, "{}.{} must be a plain value", name, Printable(key));
  }
  return value;
}

std::string RenderChat(const Service& service, const ChatInput& input) {
  if (!service.chat_template()) {
    throw ApiError(400, "this model has no chat template; use /v1/completions");
  }
  if (input.messages.empty()) BadField("messages", "messages is empty");
  Json extra = input.template_kwargs;
  if (Json tools = Tools(input); !tools.empty()) {
    for (Json& tool : tools) tool["function"].erase("strict");
    extra["tools"] = std::move(tools);
  }
  if (!input.reasoning_effort.empty()) {
    extra["reasoning_effort"] = input.reasoning_effort;
    if (!extra.contains("enable_thinking")) {
      extra["enable_thinking"] = input.reasoning_effort != "none";
    }
  }
  try {
    const ChatTemplate& chat_template = *service.chat_template();
    if (!input.continue_final_message) {
      return RenderMessages(chat_template, input.messages, input.add_generation_prompt, extra);
    }
    if (auto prompt = RenderContinued(chat_template, input.messages, extra)) return *prompt;
    BadField("continue_final_message", "the last message cannot be continued");
  } catch (const Error& error) {
    throw ApiError(400, error.what(), "messages");
  }
}

ChatTurn PrepareChat(const Service& service, const ChatInput& input, GenerationFields fields,
                     std::optional<int64_t> max_tokens) {
  ChatTurn turn = {.request = std::move(fields.request),
                   .format = service.answer_format(),
                   .functions = {},
                   .tools = Tools(input),
                   .parallel_calls = input.parallel_calls};
  const std::string prompt = RenderChat(service, input);
  turn.request.prompt = service.tokenizer().Encode(prompt, false);
  turn.request.max_tokens = max_tokens.value_or(std::numeric_limits<int64_t>::max());
  turn.format.begins_in_reasoning = PromptOpensReasoning(turn.format, prompt);
  for (const Json& tool : turn.tools) turn.functions.push_back(tool["function"]["name"]);
  for (const std::string& marker : turn.format.markers) {
    turn.request.markers.push_back(*service.tokenizer().TokenId(marker));
  }
  if (input.tool_choice == "required" || input.tool_choice.starts_with(kFunction)) {
    turn.request.grammar = RequiredCalls(service, turn.tools);
  } else {
    turn.request.grammar = FormattedAnswer(service, turn.tools, fields);
  }
  if (turn.request.grammar == nullptr && !turn.tools.empty()) {
    ConstrainCalls(service, turn.tools, &turn.request);
  }
  const bool whole = turn.request.grammar != nullptr && !turn.request.grammar_repeats;
  if (turn.format.begins_in_reasoning && whole) {
    // The grammar describes the answer behind the reasoning.
    turn.request.grammar_after = service.tokenizer().TokenId(turn.format.reasoning_end);
  }
  return turn;
}

}  // namespace nibble::serve
