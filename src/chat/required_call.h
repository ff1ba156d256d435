// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/json.h"
#include "chat/answer_format.h"

namespace nibble {

class Grammar;

using MarkerIds = std::function<int32_t(const std::string& marker)>;

// What begins a call and nothing else ("<tool_call>"); empty: a format has no such text.
std::string_view CallMarker(CallFormat format);

// Of an answer that is a call of one of the functions from its first token on, written as the
// model writes calls, with arguments that the function's schema allows. Null where a format's calls
// cannot be required (kNone, kXml, kGlm, kGemma, kLlamaPython). `tools`: as TemplateTools makes
// them; token_id: that of a marker. A schema that is not understood is kUsage.
std::shared_ptr<const Grammar> RequiredCall(const AnswerFormat& format, const Json& tools,
                                            const MarkerIds& token_id);

// The same of what follows CallMarker, for answers that may call or not, and so often as they like
// where calls are a list. A tool whose schema is not understood takes any object; `freed` is told
// of it.
using FreedTool = std::function<void(const std::string& name, const std::string& why)>;
std::shared_ptr<const Grammar> BegunCall(const AnswerFormat& format, const Json& tools,
                                         const MarkerIds& token_id, const FreedTool& freed);

}  // namespace nibble
