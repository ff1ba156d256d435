// SPDX-License-Identifier: Apache-2.0
#include "chat/xml_call.h"

#include <optional>
#include <utility>

#include "chat/json_text.h"
#include "chat/python_literal.h"

namespace nibble {
namespace {

using Type = ParameterTypes::Type;

constexpr std::string_view kFunctionTag = "<function=", kFunctionEnd = "</function>",
                           kParameterTag = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kMaxTagBytes = 300, kMaxValueBytes = 1 << 20;

const Json* Find(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

bool Is(const Json& value, std::string_view text) {
  return value.is_string() && value.get_ref<const std::string&>() == text;
}

// A schema that allows strings makes a text of everything, as the models were trained.
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

// As JSON, if the whole text is one literal.
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
  // A number or a word ends with what follows it.
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

CallStep XmlCall::Byte(char c, AnswerEvents& events) {
  switch (at_) {
    case At::kOpen:
      if (tag_.empty() && IsBlank(c)) return CallStep::kMore;
      if (kFunctionTag[tag_.size()] != c) return CallStep::kBad;
      tag_ += c;
      if (tag_ == kFunctionTag) at_ = At::kName;
      return CallStep::kMore;
    case At::kName:
      return InName(c, events);
    case At::kBody:
      if (IsBlank(c)) return CallStep::kMore;
      if (c != '<') return CallStep::kBad;
      tag_ = c;
      at_ = At::kTag;
      return CallStep::kMore;
    case At::kTag:
      return InTag(c, events);
    default:
      ValueByte(c, events);
      return CallStep::kMore;
  }
}

CallStep XmlCall::InName(char c, AnswerEvents& events) {
  if (c != '>') {
    if (name_.size() == events.longest_name()) return CallStep::kBad;
    name_ += c;
    return CallStep::kMore;
  }
  if (!events.Knows(name_)) return CallStep::kBad;
  events.BeginCall(name_);
  events.Arguments("{");
  at_ = At::kBody;
  return CallStep::kMore;
}

CallStep XmlCall::InTag(char c, AnswerEvents& events) {
  if (tag_.size() == kMaxTagBytes) return CallStep::kBad;
  tag_ += c;
  if (tag_ == kFunctionEnd) {
    events.Arguments("}");
    events.EndCall();
    return CallStep::kDone;
  }
  if (tag_.size() > kParameterTag.size()) {
    if (c == '>')
      BeginParameter(tag_.substr(kParameterTag.size(), tag_.size() - kParameterTag.size() - 1),
                     events);
    return CallStep::kMore;
  }
  const bool fits = kParameterTag.starts_with(tag_) || kFunctionEnd.starts_with(tag_);
  return fits ? CallStep::kMore : CallStep::kBad;
}

void XmlCall::BeginParameter(std::string key, AnswerEvents& events) {
  escaped_ = parameters_++ == 0 ? "\"" : ", \"";
  AppendJsonText(key, &escaped_);
  escaped_ += "\": ";
  events.Arguments(escaped_);
  type_ = types_->Of(name_, key);
  value_.clear();
  end_tag_bytes_ = 0;
  value_begun_ = newline_held_ = false;
  at_ = At::kValue;
  if (type_ == Type::kText) events.Arguments("\"");
}

void XmlCall::ValueByte(char c, AnswerEvents& events) {
  if (c == kParameterEnd[end_tag_bytes_]) {
    if (++end_tag_bytes_ == kParameterEnd.size()) EndParameter(events);
    return;
  }
  // '<' stands only at the front of the end tag: what has come of it begins no other one.
  for (size_t i = 0; i < end_tag_bytes_; ++i) PlainByte(kParameterEnd[i], events);
  end_tag_bytes_ = c == '<' ? 1 : 0;
  if (c != '<') PlainByte(c, events);
}

// One newline behind <parameter=...> and one before </parameter> belong to the tags.
void XmlCall::PlainByte(char c, AnswerEvents& events) {
  const bool first = !std::exchange(value_begun_, true);
  if (first && c == '\n') return;
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
  newline_held_ = c == '\n';
  if (!newline_held_) AppendJsonText({&c, 1}, &escaped_);
  events.Arguments(escaped_);
}

void XmlCall::BecomeText(AnswerEvents& events) {
  type_ = Type::kText;
  newline_held_ = value_.ends_with('\n');
  if (newline_held_) value_.pop_back();
  escaped_ = '"';
  AppendJsonText(value_, &escaped_);
  events.Arguments(escaped_);
  value_.clear();
}

void XmlCall::EndParameter(AnswerEvents& events) {
  at_ = At::kBody;
  if (type_ != Type::kText) {
    if (const auto json = LiteralJson(value_)) {
      events.Arguments(*json);
      return;
    }
    BecomeText(events);
  }
  events.Arguments("\"");
}

CallStep XmlCall::Marker(std::string_view marker, AnswerEvents& events) {
  if (at_ != At::kValue) return CallStep::kBad;
  for (const char c : marker) ValueByte(c, events);
  return CallStep::kMore;
}

}  // namespace nibble
