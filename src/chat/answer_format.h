// SPDX-License-Identifier: Apache-2.0
// The way in which a model writes reasoning and tool calls, detected in its chat template.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace nibble {

enum class CallFormat {
  kNone,
  kHermes,       // <tool_call>{"name", "arguments"}</tool_call>, or a list of these
  kXml,          // <tool_call><function=f><parameter=a>value</parameter></function></tool_call>
  kGlm,          // <tool_call>f<arg_key>a</arg_key><arg_value>value</arg_value></tool_call>
  kGranite,      // <|tool_call|>[{"name", "arguments"}], with <|/tool_call|> behind it: Phi-4-mini
  kGemma,        // <|tool_call>call:f{a:1,b:<|"|>x<|"|>}<tool_call|>
  kLlamaJson,    // {"name", "parameters"}, after <|python_tag|> or not
  kLlamaPython,  // [f(a=1, b="x")]
  kMistral,      // [TOOL_CALLS][{"name", "arguments"}] or [TOOL_CALLS]f[ARGS]{...}
  kHarmony,      // gpt-oss: messages in channels
};
inline constexpr int kCallFormats = static_cast<int>(CallFormat::kHarmony) + 1;
std::string_view CallFormatName(CallFormat format);  // for people: "hermes"

struct AnswerFormat {
  CallFormat calls = CallFormat::kNone;
  std::string reasoning_begin, reasoning_end;  // "<think>", "</think>"; empty: none
  bool begins_in_reasoning = false;            // the prompt has opened it
  // Texts that the vocabulary has as one token. Only this token is a marker (AnswerParser::Marker);
  // the same characters from other tokens are text.
  std::vector<std::string> markers;
  // Tokens that end an answer, whatever generation_config.json names: a call waits for its result.
  std::vector<std::string> ends;

  bool has_marker(std::string_view text) const { return std::ranges::count(markers, text) > 0; }
};

// is_token says whether a text is one added token of the vocabulary.
AnswerFormat DetectAnswerFormat(std::string_view template_source,
                                const std::function<bool(std::string_view)>& is_token);

// Returns whether a rendered prompt ends inside reasoning: the value of begins_in_reasoning for its
// answer.
bool PromptOpensReasoning(const AnswerFormat& format, std::string_view prompt);

}  // namespace nibble
