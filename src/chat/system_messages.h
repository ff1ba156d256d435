// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "base/json.h"
#include "text/chat_template.h"

namespace nibble {

// Messages whose system messages stand where fewer templates refuse them: those at the front are
// one, later ones are part of what the user says there. Without `keep_front` those at the front
// are, too. Texts are joined by an empty line; messages whose content is no text stay.
Json FoldSystemMessages(const Json& messages, bool keep_front);

// What the template makes of messages as they are, or else as the above folds them: agents send
// system messages anywhere, and templates may take one, at the front, or none. Throws what the
// template says of the messages as they are.
std::string RenderMessages(const ChatTemplate& chat_template, const Json& messages,
                           bool add_generation_prompt, const Json& extra);

}  // namespace nibble
