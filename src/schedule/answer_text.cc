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
  if (marker || (tokenizer_->IsSpecial(id) && !request_->special_text)) {
    // A special token ends what waited for the rest of a character.
    const std::string own = tokenizer_->TokenText(id);
    if (text.ends_with(own)) text.resize(text.size() - own.size());
  }
  Add(text, delta);
  if (stops_.found()) return true;
  if (marker) {
    delta.text += stops_.Flush();  // no stop string reaches across a marker
    delta.marker = id;
  }
  return false;
}

void AnswerText::Finish(Delta& delta) {
  if (stops_.found()) return;
  Add(decoder_.Flush(), delta);
  if (!stops_.found()) delta.text += stops_.Flush();
}

}  // namespace nibble
