// SPDX-License-Identifier: Apache-2.0
#include "text/chat_template.h"

#include "base/utf8.h"
#include "source/model_source.h"
#include "text/jinja_eval.h"
#include "text/jinja_parser.h"

namespace nibble {
namespace {

// chat_template of a document: a string, or a list of {name, template}.
std::optional<std::string> TemplateOfConfig(const Json& config, std::string_view name,
                                            const std::string& where) {
  constexpr std::string_view kDefault = "default";
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) return std::nullopt;
  if (!it->is_array()) {
    const auto text = JsonGet<std::string>(config, "chat_template", where);
    return name == kDefault ? std::optional(text) : std::nullopt;
  }
  for (const Json& entry : *it) {
    if (JsonGet<std::string>(entry, "name", where) == name) {
      return JsonGet<std::string>(entry, "template", where);
    }
  }
  if (name == kDefault) Fail("{}: chat_template has no entry named \"default\"", where);
  return std::nullopt;
}

// A document of the model that is a JSON object; an empty one where there is none.
Json ObjectOf(const std::string& model_dir, const char* name) {
  const auto text = FindDocument(model_dir, name, kMaxJsonBytes);
  if (!text) return Json::object();
  const std::string path = DocumentPath(model_dir, name);
  const Json json = ParseJson(*text, path);
  if (!json.is_object()) Fail("{}: must be a JSON object", path);
  return json;
}

// A special token is a string, or an object that holds it as "content".
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
  constexpr const char *kConfig = "tokenizer_config.json", *kMap = "special_tokens_map.json",
                       *kOld = "chat_template.json";
  const Json config = ObjectOf(model_dir, kConfig);
  // Reads a template from a file of its own, or else from tokenizer_config.json under its name
  // there.
  const auto find = [&](const char* file, const char* name) -> std::optional<ChatTemplate> {
    if (auto text = FindDocument(model_dir, file, jinja::kMaxSourceBytes)) {
      return Parse(std::move(*text), DocumentPath(model_dir, file));
    }
    const std::string path = DocumentPath(model_dir, kConfig);
    auto text = TemplateOfConfig(config, name, path);
    return text ? std::optional(Parse(std::move(*text), path)) : std::nullopt;
  };
  std::optional<ChatTemplate> result = find("chat_template.jinja", "default");
  if (!result) {
    const std::string path = DocumentPath(model_dir, kOld);
    auto text = TemplateOfConfig(ObjectOf(model_dir, kOld), "default", path);
    if (!text) return std::nullopt;
    result = Parse(std::move(*text), path);
  }
  if (const auto tools = find("tool_use.jinja", "tool_use")) {
    result->tool_root_ = tools->root_;
    result->tool_source_ = tools->source_;
  }
  result->special_tokens_ = SpecialTokens(config, DocumentPath(model_dir, kConfig));
  if (!config.contains("added_tokens_decoder")) {
    const Json more = SpecialTokens(ObjectOf(model_dir, kMap), DocumentPath(model_dir, kMap));
    for (const auto& [key, token] : more.items()) {
      if (!result->special_tokens_.contains(key)) result->special_tokens_[key] = token;
    }
  }
  return result;
}

ChatTemplate ChatTemplate::Unusable(std::string problem) {
  ChatTemplate result;
  result.problem_ = std::move(problem);
  return result;
}

std::string ChatTemplate::Render(const Json& messages, bool add_generation_prompt,
                                 const Json& extra) const {
  if (!problem_.empty()) Fail("{}", problem_);
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
    const auto tools = extra.find("tools");
    const bool given = tools != extra.end() && tools->is_array() && !tools->empty();
    const jinja::Node& root = given && tool_root_ ? *tool_root_ : *root_;
    return jinja::Evaluate(root, std::move(variables), time_ ? *time_ : LocalTime());
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
