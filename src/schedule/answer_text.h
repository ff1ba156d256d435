// SPDX-License-Identifier: Apache-2.0
// The text of one answer: tokens decoded as they come, cut at stop strings.
#pragma once

#include "schedule/request.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace nibble {

class AnswerText {
 public:
  // Both must outlive this.
  AnswerText(const Tokenizer& tokenizer, const GenerationRequest& request);

  // Adds a token's text, or the token as a marker, to `delta`. Returns true at a stop string.
  bool Push(int32_t id, Delta& delta);
  // Adds what was held back, at the end of the text.
  void Finish(Delta& delta);

 private:
  void Add(const std::string& text, Delta& delta);

  const Tokenizer* tokenizer_;
  const GenerationRequest* request_;
  StreamDecoder decoder_;
  StopStrings stops_;
};

}  // namespace nibble
