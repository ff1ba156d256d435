// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "base/json.h"
#include "text/chat_template.h"

namespace nibble {

// Moves system messages to where fewer templates refuse them: those at the front become one, later
// ones part of the user's messages there. Without `keep_front` those at the front do so, too. Texts
// are joined by an empty line; messages whose content is no text stay.
Json FoldSystemMessages(const Json& messages, bool keep_front);

// The form in which a template takes an assistant's calls.
struct CallForm {
  bool null_content = false;    // content is null beside calls, or they are not written
  bool text_arguments = false;  // arguments are JSON text, or the template fails
  // Texts around calls within the content, where a template writes no calls (Granite 3, Phi-4-mini)
  // and the model would read an empty answer.
  std::string text_begin = "", text_end = "";
  bool short_ids = false;  // ids have nine letters and digits, as Mistral's templates require
  bool operator==(const CallForm&) const = default;
};
// Finds the form by rendering a conversation with a call.
CallForm FindCallForm(const ChatTemplate& chat_template, const Json& extra);

// Renders messages of TemplateMessages, with calls in the template's form, tools within the system
// message if it looks only there (Phi-4-mini), and reasoning as "thinking" if it has that name for
// it (gpt-oss, LFM2.5). If it refuses messages, arguments that are no object are put into one and
// system messages folded, which agents send anywhere. Throws its first error.
std::string RenderMessages(const ChatTemplate& chat_template, const Json& messages,
                           bool add_generation_prompt, const Json& extra);
// Renders up to the end of the last message's text, for the model to go on with it; nullopt where
// there is no text or the template does not write it. If the template trims texts, so is this one.
std::optional<std::string> RenderContinued(const ChatTemplate& chat_template, Json messages,
                                           const Json& extra);

}  // namespace nibble
