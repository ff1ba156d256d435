// SPDX-License-Identifier: Apache-2.0
#include "schedule/answer_text.h"

#include <algorithm>

namespace nibble {

AnswerText::AnswerText(const Tokenizer& tokenizer, const GenerationRequest& request)
    : tokenizer_(&tokenizer),
      request_(&request),
      decoder_(tokenizer, false),
      stops_(request.stops) {}

void AnswerText::Add(const std::string& text, Delta& delta) {
  if (stops_.found()) return;
  delta.text += stops_.Push(text);
  if (!stops_.found()) return;
  delta.stop = stops_.which();
  if (request_->include_stop) delta.text += delta.stop;
}

bool AnswerText::Push(int32_t id, Delta& delta) {
  std::string text = decoder_.Push(id);
  const bool marker = std::ranges::find(request_->markers, id) != request_->markers.end();
  const bool hidden = marker || (tokenizer_->IsSpecial(id) && !request_->special_text);
  const std::string own = tokenizer_->TokenText(id);
  if (hidden) {
    // A special token ends what waited for the rest of a character.
    if (text.ends_with(own)) text.resize(text.size() - own.size());
  }
  Add(text, delta);
  if (stops_.found() || !hidden) return stops_.found();
  // Clients name markers that they see and special tokens that they know of: a stop string may end
  // with all of one, and none goes on.
  StopStrings with_token = stops_;
  with_token.Push(own);
  if (with_token.found() && with_token.which().ends_with(own)) {
    Add(own, delta);
    return true;
  }
  if (!marker) return false;
  delta.text += stops_.Flush();
  delta.marker = id;
  return false;
}

void AnswerText::Finish(Delta& delta) {
  if (stops_.found()) return;
  Add(decoder_.Flush(), delta);
  if (!stops_.found()) delta.text += stops_.Flush();
}

}  // namespace nibble
