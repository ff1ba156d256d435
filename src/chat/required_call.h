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

// The text that begins a call and nothing else ("<tool_call>"); empty if the format has none.
std::string_view CallMarker(CallFormat format);

// Receives the name of a tool whose arguments are not wholly held to its schema, and why.
using ToolNote = std::function<void(const std::string& name, const std::string& what)>;

// The grammar of an answer that is, from its first token on, a call of one of the functions in the
// model's format, with arguments that the function's schema allows. Null where a format's calls
// cannot be required (kNone, kXml, kGlm, kGemma, kLlamaPython).
//
// `tools`: as TemplateTools makes them; token_id gives the id of a marker. Keywords that cannot be
// enforced are left out with a note; in a strict tool they throw kUsage, as an invalid schema does.
std::shared_ptr<const Grammar> RequiredCall(const AnswerFormat& format, const Json& tools,
                                            const MarkerIds& token_id, const ToolNote& note);

// The grammar of the text behind CallMarker, for answers that may call or not; where calls are a
// list, it may have any number. A tool whose schema is invalid takes any object unless it is
// strict.
std::shared_ptr<const Grammar> BegunCall(const AnswerFormat& format, const Json& tools,
                                         const MarkerIds& token_id, const ToolNote& note);

// The grammar of an answer that is either calls, as in BegunCall, or the text that text(builder)
// describes; in kHarmony both stand in their channels. Null where RequiredCall is.
using TextOf = std::function<grammar::Expr(GrammarBuilder* builder)>;
std::shared_ptr<const Grammar> CallsOrText(const AnswerFormat& format, const Json& tools,
                                           const MarkerIds& token_id, const ToolNote& note,
                                           const TextOf& text);

}  // namespace nibble
