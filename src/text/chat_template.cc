// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include "base/utf8.h"
#include "source/model_source.h"
#include "text/jinja_eval.h"
#include "text/jinja_parser.h"

namespace nibble {
namespace {

std::optional<std::string> TemplateOfConfig(const Json& config, const std::string& where) {
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) return std::nullopt;
  if (!it->is_array()) return JsonGet<std::string>(config, "chat_template", where);
  for (const Json& entry : *it) {
    if (JsonGet<std::string>(entry, "name", where) == "default") {
      return JsonGet<std::string>(entry, "template", where);
    }
  }
  Fail("{}: chat_template has no entry named \"default\"", where);
}

// Each is a string, or an object that holds it as "content".
Json SpecialTokens(const Json& config, const std::string& where) {
  Json tokens = Json::object();
  for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                          "cls_token", "mask_token"}) {
    const auto it = config.find(key);
    if (it == config.end() || it->is_null()) continue;
    tokens[key] = it->is_object() ? JsonGet<std::string>(*it, "content", where + ": " + key)
                                  : JsonGet<std::string>(config, key, where);
  }
  return tokens;
}

std::tm LocalTime() {
  const std::time_t now = std::time(nullptr);
  std::tm time{};
  localtime_r(&now, &time);
  return time;
}

}  // namespace

ChatTemplate ChatTemplate::Parse(std::string source, const std::string& where) {
  if (!IsValidUtf8(source)) Fail("{}: the chat template is not valid UTF-8", where);
  ChatTemplate result;
  result.where_ = where;
  try {
    result.root_ = jinja::ParseTemplate(source);
  } catch (const jinja::TemplateError& e) {
    Fail("{}: {}", where, e.what());
  }
  result.source_ = std::move(source);
  return result;
}

std::optional<ChatTemplate> ChatTemplate::Load(const std::string& model_dir) {
  constexpr const char *kConfig = "tokenizer_config.json", *kTemplate = "chat_template.jinja";
  const std::string config_path = DocumentPath(model_dir, kConfig);
  const auto text = FindDocument(model_dir, kConfig, kMaxJsonBytes);
  const Json config = text ? ParseJson(*text, config_path) : Json::object();
  if (!config.is_object()) Fail("{}: must be a JSON object", config_path);
  std::optional<std::string> source = FindDocument(model_dir, kTemplate, jinja::kMaxSourceBytes);
  const bool own_file = source.has_value();
  if (!own_file) source = TemplateOfConfig(config, config_path);
  if (!source) return std::nullopt;
  ChatTemplate result =
      Parse(std::move(*source), own_file ? DocumentPath(model_dir, kTemplate) : config_path);
  result.special_tokens_ = SpecialTokens(config, config_path);
  return result;
}

std::string ChatTemplate::Render(const Json& messages, bool add_generation_prompt,
                                 const Json& extra) const {
  if (!messages.is_array()) FailUsage("chat messages must be a list");
  if (!extra.is_object()) FailUsage("chat template variables must be an object");
  try {
    // transformers passes these two always: templates ask `tools is not none`.
    jinja::Variables variables = {{"tools", jinja::Value::None()},
                                  {"documents", jinja::Value::None()}};
    for (const Json* source : {&special_tokens_, &extra}) {
      for (const auto& [key, value] : source->items()) variables[key] = jinja::FromJson(value);
    }
    variables["messages"] = jinja::FromJson(messages);
    variables["add_generation_prompt"] = add_generation_prompt;
    return jinja::Evaluate(*root_, std::move(variables), time_ ? *time_ : LocalTime());
  } catch (const jinja::TemplateError& e) {
    Fail("{}: {}", where_, e.what());
  }
}

std::string ChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                 bool add_generation_prompt, const Json& extra) const {
  Json list = Json::array();
  for (const ChatMessage& message : messages) {
    list.push_back({{"role", message.role}, {"content", message.content}});
  }
  return Render(list, add_generation_prompt, extra);
}

}  // namespace nibble
