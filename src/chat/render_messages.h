// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"

namespace nibble {

// Messages whose system messages stand where fewer templates refuse them: those at the front are
// one, later ones are part of what the user says there. Without `keep_front` those at the front
// are, too. Texts are joined by an empty line; messages whose content is no text stay.
Json FoldSystemMessages(const Json& messages, bool keep_front);

// How a template takes an assistant's calls.
struct CallForm {
  bool null_content = false;    // beside calls without a text, or they are not written
  bool text_arguments = false;  // as JSON text, or joining them to a text fails
  // Around calls in the content, where a template writes none (Granite 3, Phi-4-mini) and the model
  // would read an empty answer.
  std::string text_begin = "", text_end = "";
  bool short_ids = false;  // of nine letters and digits, or they are refused (Mistral's)
  bool operator==(const CallForm&) const = default;
};
// By trying it on a conversation with a call.
CallForm FindCallForm(const ChatTemplate& chat_template, const Json& extra);

// What the template makes of messages as TemplateMessages has them, in the form that it takes calls
// in. Tools are a part of the system message where it looks for them there alone (Phi-4-mini), and
// reasoning is "thinking" where it has that name for it (gpt-oss, LFM2.5). Where it refuses
// messages, arguments that are no object are put into one, and system messages, which agents send
// anywhere, are folded as above. Throws what it says of the messages as they are.
std::string RenderMessages(const ChatTemplate& chat_template, const Json& messages,
                           bool add_generation_prompt, const Json& extra);
// The same up to the end of the last message's text, for the model to go on with it; nullopt where
// there is none or the template does not write it. Where it trims texts, their last spaces are not
// there.
std::optional<std::string> RenderContinued(const ChatTemplate& chat_template, Json messages,
                                           const Json& extra);

}  // namespace nibble
