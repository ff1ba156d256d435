// SPDX-License-Identifier: Apache-2.0
// The answers of a chat while they are written. Each API derives its own responder, which tells
// clients of them.
#pragma once

#include "chat/answer_parser.h"
#include "serve/chat_turn.h"
#include "serve/responder.h"

namespace nibble::serve {

struct ChatCall {
  std::string id, name, arguments;
};

struct ChatAnswer {
  explicit ChatAnswer(const ChatTurn& turn)
      : parser(turn.format, turn.functions, turn.parallel_calls, turn.tools) {}

  AnswerParser parser;
  std::string reasoning, text;
  std::vector<ChatCall> calls;
  std::vector<TokenLogprob> logprobs;
  std::optional<End> end;
  std::string stop;  // the stop text that ended it
  bool in_call = false;
  // The last call has no end: whoever runs calls must not run it.
  bool cut_call = false;
};

class ChatResponder : public Responder {
 public:
  ChatResponder(Call& call, const ChatTurn& turn, bool stream);
  void Start(GenerationRequest request);

 protected:
  // Called in streams alone. The event's text is in `answer` already.
  virtual void OnEvent(int index, ChatAnswer& answer, const AnswerEvent& event) = 0;
  // Called in streams behind the events of a step.
  virtual void OnStep(int /*index*/, ChatAnswer& /*answer*/) {}

  std::vector<ChatAnswer> answers_;

 private:
  void OnDelta(size_t request, Delta& delta) override;
  void Use(int index, const std::vector<AnswerEvent>& events);

  const bool short_ids_;  // Mistral's templates want nine characters
};

}  // namespace nibble::serve
