// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "chat/answer_format.h"
#include "grammar/grammar.h"

namespace nibble {

using MarkerIds = std::function<int32_t(const std::string& marker)>;

// What begins a call and nothing else ("<tool_call>"); empty: a format has no such text.
std::string_view CallMarker(CallFormat format);

// What is told of a tool whose arguments are not wholly held to its schema.
using ToolNote = std::function<void(const std::string& name, const std::string& what)>;

// Of an answer that is a call of one of the functions from its first token on, written as the
// model writes calls, with arguments that the function's schema allows. Null where a format's calls
// cannot be required (kNone, kXml, kGlm, kGemma, kLlamaPython). `tools`: as TemplateTools makes
// them; token_id: that of a marker. What cannot be held of a schema is left out with a note; a
// strict tool's, and a schema that is none, are kUsage.
std::shared_ptr<const Grammar> RequiredCall(const AnswerFormat& format, const Json& tools,
                                            const MarkerIds& token_id, const ToolNote& note);

// The same of what follows CallMarker, for answers that may call or not, and so often as they like
// where calls are a list. A tool whose schema is none takes any object.
std::shared_ptr<const Grammar> BegunCall(const AnswerFormat& format, const Json& tools,
                                         const MarkerIds& token_id, const ToolNote& note);

// Of an answer that is calls, as BegunCall has them, or the text that text(builder) writes; of
// kHarmony, in the channels that it has for them. Null where RequiredCall is.
using TextOf = std::function<grammar::Expr(GrammarBuilder* builder)>;
std::shared_ptr<const Grammar> CallsOrText(const AnswerFormat& format, const Json& tools,
                                           const MarkerIds& token_id, const ToolNote& note,
                                           const TextOf& text);

}  // namespace nibble
