// SPDX-License-Identifier: Apache-2.0
#include "chat/text_arguments.h"

#include <optional>

#include "chat/json_text.h"
#include "chat/python_literal.h"

namespace nibble {
namespace {

using Type = ParameterTypes::Type;

constexpr size_t kMaxValueBytes = 1 << 20;

const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

bool Is(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

// A schema that allows strings makes every value a text, as models were trained.
Type TypeOfSchema(const Json& schema) {
  if (const Json* type = Find(schema, "type")) {
    if (type->is_string()) return Is(*type, "string") ? Type::kText : Type::kJson;
    if (!type->is_array()) return Type::kUnknown;
    for (const Json& one : *type) {
      if (Is(one, "string")) return Type::kText;
    }
    return Type::kJson;
  }
  for (const char* key : {"anyOf", "oneOf"}) {
    const Json* choices = Find(schema, key);
    if (choices == nullptr || !choices->is_array()) continue;
    Type all = Type::kJson;
    for (const Json& choice : *choices) {
      const Json* type = Find(choice, "type");
      if (type == nullptr) all = Type::kUnknown;
      if (type != nullptr && Is(*type, "string")) return Type::kText;
    }
    return all;
  }
  return Type::kUnknown;
}

// The text as JSON, if the whole text is one literal.
std::optional<std::string> LiteralJson(std::string_view text) {
  while (!text.empty() && IsBlank(text.front())) text.remove_prefix(1);
  while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  if (text.empty()) return std::nullopt;
  PythonLiteral literal;
  std::string json;
  for (size_t i = 0; i < text.size(); ++i) {
    const ValueStep step = literal.Byte(text[i], &json);
    if (step == ValueStep::kLast && i + 1 == text.size()) return json;
    if (step != ValueStep::kMore) return std::nullopt;
  }
  // Only a byte behind it ends a number or a word.
  if (literal.Byte(' ', &json) == ValueStep::kAfter) return json;
  return std::nullopt;
}

}  // namespace

ParameterTypes::ParameterTypes(const Json& tools) {
  if (!tools.is_array()) return;
  for (const Json& tool : tools) {
    const Json* function = Find(tool, "function");
    const Json* name = function == nullptr ? nullptr : Find(*function, "name");
    const Json* schema = function == nullptr ? nullptr : Find(*function, "parameters");
    const Json* properties = schema == nullptr ? nullptr : Find(*schema, "properties");
    if (name == nullptr || !name->is_string() || properties == nullptr) continue;
    if (!properties->is_object()) continue;
    auto& types = types_.try_emplace(name->get_ref<const std::string&>()).first->second;
    for (const auto& [key, property] : properties->items()) {
      types.try_emplace(key, TypeOfSchema(property));
    }
  }
}

Type ParameterTypes::Of(const std::string& function, const std::string& parameter) const {
  const auto types = types_.find(function);
  if (types == types_.end()) return Type::kText;
  const auto type = types->second.find(parameter);
  return type == types->second.end() ? Type::kText : type->second;
}

void TextArguments::BeginCall(const std::string& function, AnswerEvents& events) {
  function_ = function;
  events.BeginCall(function);
  events.Arguments("{");
}

void TextArguments::BeginValue(const std::string& key, AnswerEvents& events) {
  escaped_ = values_++ == 0 ? "\"" : ", \"";
  AppendJsonText(key, &escaped_);
  escaped_ += "\": ";
  events.Arguments(escaped_);
  type_ = types_->Of(function_, key);
  value_.clear();
  end_tag_bytes_ = 0;
  value_begun_ = newline_held_ = false;
  if (type_ == Type::kText) events.Arguments("\"");
}

bool TextArguments::ValueByte(char c, AnswerEvents& events) {
  if (end_tag_.empty()) {
    PlainByte(c, events);
    return false;
  }
  if (c == end_tag_[end_tag_bytes_]) {
    if (++end_tag_bytes_ < end_tag_.size()) return false;
    EndValue(events);
    return true;
  }
  // '<' is only the first byte of the end tag, so no other end tag begins within the bytes that
  // have come.
  for (size_t i = 0; i < end_tag_bytes_; ++i) PlainByte(end_tag_[i], events);
  end_tag_bytes_ = c == '<' ? 1 : 0;
  if (c != '<') PlainByte(c, events);
  return false;
}

void TextArguments::PlainByte(char c, AnswerEvents& events) {
  const bool first = !std::exchange(value_begun_, true);
  if (first && c == '\n' && newlines_) return;
  if (type_ == Type::kUnknown && !IsBlank(c)) {
    type_ = Type::kJson;
    if (c != '{' && c != '[') BecomeText(events);
  }
  if (type_ != Type::kText) {
    value_ += c;
    if (value_.size() > kMaxValueBytes) BecomeText(events);
    return;
  }
  escaped_.clear();
  if (newline_held_) escaped_ = "\\n";
  newline_held_ = c == '\n' && newlines_;
  if (!newline_held_) AppendJsonText({&c, 1}, &escaped_);
  events.Arguments(escaped_);
}

void TextArguments::BecomeText(AnswerEvents& events) {
  type_ = Type::kText;
  newline_held_ = newlines_ && value_.ends_with('\n');
  if (newline_held_) value_.pop_back();
  escaped_ = '"';
  AppendJsonText(value_, &escaped_);
  events.Arguments(escaped_);
  value_.clear();
}

void TextArguments::EndValue(AnswerEvents& events) {
  if (type_ != Type::kText) {
    if (const auto json = LiteralJson(value_)) {
      events.Arguments(*json);
      return;
    }
    BecomeText(events);
  }
  events.Arguments("\"");
}

void TextArguments::EndCall(AnswerEvents& events) {
  events.Arguments("}");
  events.EndCall();
}

}  // namespace nibble
