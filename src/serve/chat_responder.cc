// SPDX-License-Identifier: Apache-2.0
#include "serve/chat_responder.h"

namespace nibble::serve {

ChatResponder::ChatResponder(Call& call, const ChatTurn& turn, bool stream)
    : Responder(call, stream), short_ids_(turn.format.calls == CallFormat::kMistral) {
  for (int i = 0; i < turn.request.n; ++i) answers_.emplace_back(turn);
}

void ChatResponder::Start(GenerationRequest request) {
  std::vector<GenerationRequest> requests;
  requests.push_back(std::move(request));
  Responder::Start(std::move(requests), call_->body.contains("input") ? "input" : "messages");
}

void ChatResponder::OnDelta(size_t, Delta& d) {
  ChatAnswer& answer = answers_[static_cast<size_t>(d.index)];
  if (answer.end) return;
  const size_t reasoned = answer.reasoning.size(), said = answer.text.size();
  for (TokenLogprob& l : d.logprobs) answer.logprobs.push_back(std::move(l));
  Use(d.index, answer.parser.Push(d.text));
  if (d.marker) {
    Use(d.index, answer.parser.Marker(call_->service.tokenizer().TokenText(*d.marker)));
  }
  if (d.end) {
    answer.cut_call = answer.in_call;
    Use(d.index, answer.parser.Finish());
  }
  if (answer.reasoning.size() > reasoned && answer.text.size() == said) {
    usage_.reasoning += static_cast<int64_t>(d.ids.size());
  }
  if (d.end) {
    answer.end = d.end;
    answer.stop = d.stop;
  } else if (answer.parser.ended() && answers_.size() == 1) {
    StopEarly();  // the one call that is allowed is there
  }
  if (stream_) OnStep(d.index, answer);
}

void ChatResponder::Use(int index, const std::vector<AnswerEvent>& events) {
  ChatAnswer& answer = answers_[static_cast<size_t>(index)];
  for (const AnswerEvent& event : events) {
    switch (event.kind) {
      case AnswerEvent::Kind::kText:
        answer.text += event.text;
        break;
      case AnswerEvent::Kind::kReasoning:
        answer.reasoning += event.text;
        break;
      case AnswerEvent::Kind::kCallBegin: {
        const std::string id = NewId(short_ids_ ? "" : "call_");
        answer.calls.push_back({short_ids_ ? id.substr(0, 9) : id, event.text, ""});
        answer.in_call = true;
        break;
      }
      case AnswerEvent::Kind::kCallArguments:
        answer.calls.back().arguments += event.text;
        break;
      case AnswerEvent::Kind::kCallEnd:
        answer.in_call = false;
        break;
    }
    if (stream_) OnEvent(index, answer, event);
  }
}

}  // namespace nibble::serve
