// SPDX-License-Identifier: Apache-2.0
// The "decoder" of a tokenizer.json, written as a stream: tokens go in one by one and text comes
// out as soon as it is decided, so that decoding at once and streaming cannot differ.
// A Decoder is immutable; a DecoderRun is the state of one text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer_json.h"
#include "text/work.h"

namespace nibble {

struct DecoderStep {
  enum class Kind {
    kReplace,       // `pattern` by `content`, in each token
    kMetaspace,     // `content` by a space, except in the first token with `drop_first`
    kStripToken,    // `content` from the ends of each token
    kStripText,     // `content` from the ends of the whole text
    kByteFallback,  // tokens <0xE2> are bytes; a run that is not UTF-8 is one U+FFFD per byte
    kByteLevel,     // tokens are written in the byte-level alphabet
    kJoin,          // a space between tokens, as in a file without a decoder
    kWordPiece,     // a space before tokens without the prefix `content`; `cleanup` as in English
    kWordEnds,      // `content` ends a word: a space, but not at the end of the text
  };
  Kind kind;
  std::optional<Regex> pattern = std::nullopt;
  std::string content = "";
  int64_t start = 0, stop = 0;  // how many characters to strip, at most
  bool drop_first = false;
  bool cleanup = false;
};

class Decoder {
 public:
  static Decoder FromJson(const std::optional<JsonNode>& node);
  const std::vector<DecoderStep>& steps() const { return steps_; }

 private:
  std::vector<DecoderStep> steps_;
};

class DecoderRun {
 public:
  // `decoder` must outlive this; `where` names it in messages.
  DecoderRun(const Decoder& decoder, std::string where);
  // Both return the text decided since the last call, valid UTF-8. After Flush the run is over.
  std::string Push(std::string_view token);
  std::string Flush();

 private:
  struct State {
    std::string held;      // bytes or text that the next token may change
    int64_t stripped = 0;  // characters taken from the front
    bool started = false;  // a token, or a character that stays, went through
  };
  void Feed(size_t step, std::string token);
  void FlushByteRun(size_t step);
  std::string StripText(size_t step, std::string chunk);

  const Decoder* decoder_;
  std::vector<State> states_;  // one per step
  Work work_;
  std::string out_;
};

}  // namespace nibble
