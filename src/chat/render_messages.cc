// SPDX-License-Identifier: Apache-2.0
#include "chat/render_messages.h"

#include <algorithm>
#include <cctype>
#include <functional>
#include <map>

#include "base/error.h"
#include "chat/answer_format.h"
#include "chat/required_call.h"
#include "text/jinja_text.h"
#include "text/jinja_value.h"

namespace nibble {
namespace {

bool IsText(const Json& message, std::string_view role) {
  return message.value("role", "") == role && message.contains("content") &&
         message["content"].is_string();
}

void Append(const Json& message, Json& to) {
  to["content"] = to["content"].get<std::string>() + "\n\n" + message["content"].get<std::string>();
}

}  // namespace

Json FoldSystemMessages(const Json& messages, bool keep_front) {
  Json result = Json::array();
  bool front = keep_front;  // nothing but system messages so far
  bool folded = false;      // the last message was folded: the user's next one joins it
  for (const Json& message : messages) {
    const bool system = IsText(message, "system");
    Json* const last = result.empty() ? nullptr : &result.back();
    if (system && front) {
      last != nullptr ? Append(message, *last) : result.push_back(message);
      continue;
    }
    front = false;
    const bool user = IsText(message, "user");
    if (last != nullptr && IsText(*last, "user") && (system || (user && folded))) {
      Append(message, *last);
    } else {
      result.push_back(message);
      if (system) result.back()["role"] = "user";
    }
    folded = system || (folded && user);
  }
  return result;
}

namespace {

// JSON as Python writes it: models were trained on that form.
std::string JsonText(const Json& value) {
  try {
    jinja::Budget budget;
    return jinja::ToJson(budget, jinja::FromJson(value), {});
  } catch (const jinja::TemplateError& error) {
    FailUsage("calls and tools: {}", error.what());
  }
}

// Calls use(message, arguments) for every call.
Json WithCalls(Json messages, const std::function<void(Json& message, Json& arguments)>& use) {
  for (Json& message : messages) {
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) use(message, call["function"]["arguments"]);
  }
  return messages;
}

Json WithTextCalls(Json messages, const CallForm& form) {
  for (Json& message : messages) {
    if (!message.contains("tool_calls")) continue;
    Json list = Json::array();
    for (const Json& call : message["tool_calls"]) {
      const Json& function = call["function"];
      list.push_back({{"name", function["name"]}, {"arguments", function["arguments"]}});
    }
    const Json content = message.value("content", Json());
    message["content"] = (content.is_string() ? content.get<std::string>() : "") + form.text_begin +
                         JsonText(list) + form.text_end;
    message.erase("tool_calls");
  }
  return messages;
}

// Replaces ids of other forms, which other servers made, by numbers in the order of the calls.
Json WithShortIds(Json messages) {
  std::map<std::string, std::string> ids;
  const auto shorten = [&](Json& object, const char* key) {
    const auto id = object.find(key);
    if (id == object.end() || !id->is_string()) return;
    const auto& text = id->get_ref<const std::string&>();
    const auto plain = [](unsigned char c) { return c < 0x80 && std::isalnum(c) != 0; };
    if (text.size() == 9 && std::ranges::all_of(text, plain)) return;
    *id = ids.try_emplace(text, fmt::format("{:09}", ids.size())).first->second;
  };
  for (Json& message : messages) {
    shorten(message, "tool_call_id");
    if (!message.contains("tool_calls")) continue;
    for (Json& call : message["tool_calls"]) shorten(call, "id");
  }
  return messages;
}

Json InForm(const Json& messages, const CallForm& form) {
  if (!form.text_begin.empty()) return WithTextCalls(messages, form);
  Json formed = WithCalls(messages, [&](Json& message, Json& arguments) {
    if (form.null_content && message["content"] == "") message["content"] = nullptr;
    if (form.text_arguments && !arguments.is_string()) arguments = JsonText(arguments);
  });
  return form.short_ids ? WithShortIds(std::move(formed)) : formed;
}

// Puts arguments that are not an object into one, as templates walk through them: a model may have
// written null, or a call that was cut.
Json WithObjects(const Json& messages) {
  return WithCalls(messages, [](Json&, Json& arguments) {
    if (!arguments.is_string()) return;
    arguments = arguments == "null" ? Json::object() : Json{{"arguments", arguments}};
  });
}

// Nothing where the template refuses the messages; `problem` keeps its first error.
std::optional<std::string> TryRender(const ChatTemplate& chat_template, const Json& messages,
                                     bool prompt, const Json& extra,
                                     std::optional<Error>& problem) {
  try {
    return chat_template.Render(messages, prompt, extra);
  } catch (const Error& error) {
    if (!problem) problem = error;
    return std::nullopt;
  }
}

}  // namespace

CallForm FindCallForm(const ChatTemplate& chat_template, const Json& extra) {
  constexpr const char *kName = "probe_function", *kArgument = "probe_argument";
  const Json call = {{"id", "probe1234"},
                     {"type", "function"},
                     {"function", {{"name", kName}, {"arguments", {{kArgument, 1}}}}}};
  Json messages = {{{"role", "user"}, {"content", "x"}},
                   {{"role", "assistant"}, {"content", ""}, {"tool_calls", {call}}}};
  const auto writes_calls = [&](const CallForm& form) {
    std::optional<Error> problem;
    const auto text = TryRender(chat_template, InForm(messages, form), false, extra, problem);
    return text && text->find(kName) != text->npos && text->find(kArgument) != text->npos;
  };
  for (CallForm form :
       {CallForm{}, CallForm{false, true}, CallForm{true, false}, CallForm{true, true}}) {
    if (!writes_calls(form)) continue;
    messages[1]["tool_calls"][0]["id"] = "call_probe_1234";
    form.short_ids = !writes_calls(form);
    return form;
  }
  const std::string source = chat_template.source() + chat_template.tool_source();
  const AnswerFormat format = DetectAnswerFormat(source, [](std::string_view) { return false; });
  if (format.calls != CallFormat::kGranite) return {};
  const bool closed = source.find("<|/tool|>") != source.npos;
  return {.text_begin = std::string(CallMarker(format.calls)),
          .text_end = closed ? "<|/tool_call|>" : ""};
}

namespace {

constexpr const char* kProbe = "probe_text";

bool WritesProbe(const ChatTemplate& chat_template, const Json& messages,
                 const Json& extra = Json::object()) {
  std::optional<Error> problem;
  const auto text = TryRender(chat_template, messages, false, extra, problem);
  return text && text->find(kProbe) != text->npos;
}

// Returns whether a template writes the tools in a system message and ignores the variable `tools`.
bool TakesSystemTools(const ChatTemplate& chat_template) {
  Json messages = {{{"role", "system"}, {"content", "x"}, {"tools", kProbe}},
                   {{"role", "user"}, {"content", "x"}}};
  if (!WritesProbe(chat_template, messages)) return false;
  messages[0].erase("tools");
  const Json parameters = {{"type", "object"}, {"properties", Json::object()}};
  const Json function = {{"name", kProbe}, {"description", "x"}, {"parameters", parameters}};
  const Json tool = {{"type", "function"}, {"function", function}};
  return !WritesProbe(chat_template, messages, {{"tools", Json::array({tool})}});
}

// Returns whether the template looks for reasoning under "thinking".
bool TakesThinking(const ChatTemplate& chat_template) {
  const auto writes = [&](const char* name) {
    return WritesProbe(chat_template, {{{"role", "user"}, {"content", "x"}},
                                       {{"role", "assistant"}, {"content", "x"}, {name, kProbe}}});
  };
  return !writes("reasoning_content") && writes("thinking");
}

// gpt-oss's template refuses reasoning beside a text and calls.
Json WithThinking(Json messages, bool beside_text_and_calls) {
  for (Json& message : messages) {
    if (!message.contains("reasoning_content") || message.contains("thinking")) continue;
    const Json content = message.value("content", Json());
    const bool both = message.contains("tool_calls") && content.is_string() && content != "";
    if (beside_text_and_calls || !both) message["thinking"] = message["reasoning_content"];
  }
  return messages;
}

Json WithSystemTools(Json messages, const Json& tools) {
  if (messages.empty() || messages[0].value("role", "") != "system") {
    messages.insert(messages.begin(), Json{{"role", "system"}, {"content", ""}});
  }
  Json functions = Json::array();
  for (const Json& tool : tools) functions.push_back(tool["function"]);
  messages[0]["tools"] = JsonText(functions);
  return messages;
}

}  // namespace

std::string RenderMessages(const ChatTemplate& chat_template, const Json& messages,
                           bool add_generation_prompt, const Json& extra) {
  const auto any = [&](const char* field) {
    return std::ranges::any_of(messages,
                               [&](const Json& message) { return message.contains(field); });
  };
  const bool calls = any("tool_calls");
  std::optional<Error> first;
  const auto render = [&](const Json& form) {
    return TryRender(chat_template, form, add_generation_prompt, extra, first);
  };
  const bool system_tools = extra.contains("tools") && TakesSystemTools(chat_template);
  Json formed = calls ? InForm(messages, FindCallForm(chat_template, extra)) : Json();
  if (system_tools) {
    formed = WithSystemTools(calls ? std::move(formed) : messages, extra["tools"]);
  }
  if (any("reasoning_content") && TakesThinking(chat_template)) {
    if (formed.is_null()) formed = messages;
    std::optional<Error> problem;
    const Json thinking = WithThinking(formed, true);
    if (auto text = TryRender(chat_template, thinking, add_generation_prompt, extra, problem)) {
      return *text;
    }
    formed = WithThinking(std::move(formed), false);
  }
  const Json& plain = formed.is_null() ? messages : formed;
  if (auto text = render(plain)) return *text;
  const Json objects = WithObjects(plain);
  for (const Json& form : {objects, FoldSystemMessages(plain, true),
                           FoldSystemMessages(objects, true), FoldSystemMessages(objects, false)}) {
    if (form == plain) continue;
    if (auto text = render(form)) return *text;
  }
  throw *first;
}

std::optional<std::string> RenderContinued(const ChatTemplate& chat_template, Json messages,
                                           const Json& extra) {
  // A mark behind the text shows where it ends: the same text may occur elsewhere in the prompt.
  constexpr std::string_view kMark = "END_OF_WHAT_IS_CONTINUED";
  if (messages.empty()) return std::nullopt;
  Json& content = messages.back()["content"];
  if (!content.is_string() || content == "") return std::nullopt;
  content = fmt::format("{}{} ", content.get<std::string>(), kMark);
  std::string text = RenderMessages(chat_template, messages, false, extra);
  const size_t end = text.rfind(kMark);
  if (end == std::string::npos) return std::nullopt;
  const bool trimmed = text.compare(end + kMark.size(), 1, " ") != 0;
  text.resize(end);
  if (trimmed) text = jinja::Strip(text, jinja::Side::kRight);
  return text;
}

}  // namespace nibble
