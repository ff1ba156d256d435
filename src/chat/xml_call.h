// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "base/json.h"
#include "chat/answer_events.h"

namespace nibble {

// How the texts of <parameter=...> become JSON, which the schemas of the functions decide.
class ParameterTypes {
 public:
  enum class Type { kText, kJson, kUnknown };

  ParameterTypes() = default;
  explicit ParameterTypes(const Json& tools);  // as TemplateTools returns them
  Type Of(const std::string& function, const std::string& parameter) const;

 private:
  std::map<std::string, std::map<std::string, Type>> types_;
};

// <function=NAME><parameter=KEY>\nvalue\n</parameter></function>. A text becomes a JSON string as
// it comes; any other type is kept until it is complete, and stays a string where it is no literal.
class XmlCall {
 public:
  XmlCall(std::shared_ptr<const ParameterTypes> types, bool after_function_tag)
      : types_(std::move(types)), at_(after_function_tag ? At::kName : At::kOpen) {}

  CallStep Byte(char c, AnswerEvents& events);
  CallStep Marker(std::string_view marker, AnswerEvents& events);

 private:
  enum class At { kOpen, kName, kBody, kTag, kValue };
  CallStep InName(char c, AnswerEvents& events);
  CallStep InTag(char c, AnswerEvents& events);
  void BeginParameter(std::string key, AnswerEvents& events);
  void ValueByte(char c, AnswerEvents& events);
  void PlainByte(char c, AnswerEvents& events);
  void BecomeText(AnswerEvents& events);
  void EndParameter(AnswerEvents& events);

  std::shared_ptr<const ParameterTypes> types_;
  At at_;
  std::string name_, tag_, value_, escaped_;
  ParameterTypes::Type type_ = ParameterTypes::Type::kText;
  size_t end_tag_bytes_ = 0;  // of </parameter> that have come
  int parameters_ = 0;
  bool value_begun_ = false, newline_held_ = false;
};

}  // namespace nibble
