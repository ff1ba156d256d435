// SPDX-License-Identifier: Apache-2.0
// Writing a generated text to the terminal, for generate and chat.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/cli/cli.h"
#include "apps/cli/word_wrap.h"
#include "engine/session.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"

namespace nibble::cli {

// Streams tokens as valid UTF-8 to standard output (or ids, without a tokenizer) and keeps the
// text, up to a stop string. In a terminal, lines may be broken between words.
class TextOutput {
 public:
  TextOutput(const Tokenizer* tokenizer, bool print, const std::vector<std::string>& stops,
             bool wrap = false);
  bool Push(int32_t id);  // whether the text goes on
  void Finish();
  const std::string& text() const { return text_; }

 private:
  void Add(const std::string& piece);

  std::optional<StreamDecoder> decoder_;
  StopStrings stops_;
  bool print_, wrap_;
  WordWrap words_;
  std::string text_;
};

// A prompt longer than the context is refused before a backend takes the weights over.
void RequireFits(const ModelConfig& config, int64_t prompt_tokens);

// {"text", "token_ids", "prompt_tokens", "completion_tokens", "finish_reason", "seed"}
Json GenerationJson(const TextOutput& output, int64_t prompt_tokens, const Generation& generation,
                    const GenerateOptions& options);
// "prompt 12 tokens, 340 tokens/s; 64 tokens written, 85 tokens/s" on standard error.
void PrintSpeed(int64_t prompt_tokens, const Generation& generation,
                const GenerateOptions& options);

}  // namespace nibble::cli
