// SPDX-License-Identifier: Apache-2.0
// Writing a generated text to the terminal, for generate and chat.
#pragma once

#include <optional>
#include <string>

#include "apps/cli/cli.h"
#include "engine/session.h"
#include "text/tokenizer.h"

namespace nibble::cli {

// Streams tokens as valid UTF-8 to standard output (or ids, without a tokenizer) and keeps the
// text.
class TextOutput {
 public:
  TextOutput(const Tokenizer* tokenizer, bool print);
  void Push(int32_t id);
  void Finish();
  const std::string& text() const { return text_; }

 private:
  void Add(const std::string& piece);

  std::optional<StreamDecoder> decoder_;
  bool print_;
  std::string text_;
};

// --max-tokens, --temperature, --top-p, --top-k, --seed.
void AddSampling(CLI::App& verb, GenerateOptions& options);

// A prompt longer than the context is refused before a backend takes the weights over.
void RequireFits(const ModelConfig& config, int64_t prompt_tokens);

// "prompt 12 tokens, 340 tokens/s; 64 tokens written, 85 tokens/s" on standard error.
void PrintSpeed(int64_t prompt_tokens, const Generation& generation);

}  // namespace nibble::cli
