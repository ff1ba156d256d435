// SPDX-License-Identifier: Apache-2.0
// Items of an answer of /v1/responses: how they begin, and how calls become whole.
#pragma once

#include "chat/responses_tools.h"
#include "serve/chat_responder.h"

namespace nibble::serve {

Json ReasoningItem();
Json MessageItem();
// The item of a call in the terms of the client: `known` maps the function that the model called to
// the client's tool.
Json CallItem(const ChatCall& call, const ResponsesTools& known);

// The field that a call's arguments become, and the events that tell it: the model's arguments, the
// text of a custom tool, or an object, which no event tells but the item's end.
struct CallField {
  const char* name;
  const char* event;  // stem of the events' names; null where there is none
  bool is_streamed;   // told piece by piece, as the model writes it
};
CallField FieldOf(const Json& call_item);
void FinishCall(const std::string& arguments, Json* call_item);

}  // namespace nibble::serve
