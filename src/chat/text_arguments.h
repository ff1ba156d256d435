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

// Types of parameters, from the functions' schemas: they decide how arguments that a model writes
// without quotes become JSON.
class ParameterTypes {
 public:
  enum class Type { kText, kJson, kUnknown };

  ParameterTypes() = default;
  explicit ParameterTypes(const Json& tools);  // as TemplateTools returns them
  Type Of(const std::string& function, const std::string& parameter) const;

 private:
  std::map<std::string, std::map<std::string, Type>> types_;
};

// A call whose arguments are texts between tags. A text becomes a JSON string as it comes; any
// other type is kept until it is complete, and stays a string where it is no literal.
class TextArguments {
 public:
  // end_tag: the text that ends a value, with '<' at its front only; "": a token ends values
  // (EndValue). newlines: one new line at the front and one at the end of a value belong to the
  // tags.
  TextArguments(std::shared_ptr<const ParameterTypes> types, std::string_view end_tag,
                bool newlines)
      : types_(std::move(types)), end_tag_(end_tag), newlines_(newlines) {}

  void BeginCall(const std::string& function, AnswerEvents& events);
  void BeginValue(const std::string& key, AnswerEvents& events);
  bool ValueByte(char c, AnswerEvents& events);  // returns whether the value has ended
  void EndValue(AnswerEvents& events);
  void EndCall(AnswerEvents& events);

 private:
  void PlainByte(char c, AnswerEvents& events);
  void BecomeText(AnswerEvents& events);

  std::shared_ptr<const ParameterTypes> types_;
  std::string_view end_tag_;
  bool newlines_;
  std::string function_, value_, escaped_;
  ParameterTypes::Type type_ = ParameterTypes::Type::kText;
  size_t end_tag_bytes_ = 0;  // bytes of the end tag that have come
  int values_ = 0;
  bool value_begun_ = false, newline_held_ = false;
};

}  // namespace nibble
