// SPDX-License-Identifier: Apache-2.0
#include "chat/answer_format.h"

#include <array>
#include <utility>

#include "chat/answer_events.h"

namespace nibble {
namespace {

CallFormat DetectCalls(std::string_view source) {
  const auto has = [&](std::string_view text) {
    return source.find(text) != std::string_view::npos;
  };
  if (has("<|channel|>") && has("<|message|>")) return CallFormat::kHarmony;
  if (has("[TOOL_CALLS]")) return CallFormat::kMistral;
  if (has("<arg_key>")) return CallFormat::kGlm;
  if (has("<|tool_call>")) return CallFormat::kGemma;
  // Phi-4-mini's template names the tags around tools alone, and a later one "functools".
  if (has("<|tool_call|>") || has("<|/tool|>") || has("functools[")) return CallFormat::kGranite;
  if (has("<tool_call>")) return has("<function=") ? CallFormat::kXml : CallFormat::kHermes;
  if (has("[func_name1(")) return CallFormat::kLlamaPython;
  // The second text is from the instruction of Llama 3.1 and 3.2, a string in their templates.
  if (has("<|python_tag|>") || has("{\"name\": function name")) return CallFormat::kLlamaJson;
  return CallFormat::kNone;
}

}  // namespace

std::string_view CallFormatName(CallFormat format) {
  static constexpr std::array<std::string_view, kCallFormats> kNames = {
      "none",  "hermes",     "xml",          "glm",     "granite",
      "gemma", "llama json", "llama python", "mistral", "harmony"};
  return kNames[static_cast<size_t>(format)];
}

AnswerFormat DetectAnswerFormat(std::string_view template_source,
                                const std::function<bool(std::string_view)>& is_token) {
  AnswerFormat format;
  format.calls = DetectCalls(template_source);
  using Pair = std::pair<std::string_view, std::string_view>;
  if (format.calls != CallFormat::kHarmony) {
    for (const auto& [begin, end] : {Pair{"<think>", "</think>"}, Pair{"[THINK]", "[/THINK]"}}) {
      // Templates of models that always reason may name only the end of reasoning, to cut reasoning
      // from the history.
      const bool named = template_source.find(end) != std::string_view::npos;
      if (!named && !(is_token(begin) && is_token(end))) continue;
      format.reasoning_begin = begin;
      format.reasoning_end = end;
      break;
    }
  }
  for (const std::string_view text :
       {"<think>",        "</think>",       "[THINK]",      "[/THINK]",       "<tool_call>",
        "</tool_call>",   "<arg_key>",      "</arg_key>",   "<arg_value>",    "</arg_value>",
        "<|tool_call|>",  "<|/tool_call|>", "<|tool_call>", "<tool_call|>",   "<|\"|>",
        "[TOOL_CALLS]",   "[ARGS]",         "[CALL_ID]",    "<|python_tag|>", "<|python_start|>",
        "<|python_end|>", "<|start|>",      "<|channel|>",  "<|message|>",    "<|constrain|>",
        "<|end|>",        "<|call|>",       "<|return|>"}) {
    if (is_token(text)) format.markers.emplace_back(text);
  }
  if (format.calls == CallFormat::kHarmony) format.ends = {"<|call|>", "<|return|>"};
  if (format.calls == CallFormat::kGlm) format.ends = {"<|observation|>"};
  if (format.calls == CallFormat::kGemma) format.ends = {"<|tool_response>"};
  return format;
}

bool PromptOpensReasoning(const AnswerFormat& format, std::string_view prompt) {
  while (!prompt.empty() && IsBlank(prompt.back())) prompt.remove_suffix(1);
  return !format.reasoning_begin.empty() && prompt.ends_with(format.reasoning_begin);
}

}  // namespace nibble
