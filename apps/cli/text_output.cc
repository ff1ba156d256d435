// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/text_output.h"

namespace nibble::cli {

TextOutput::TextOutput(const Tokenizer* tokenizer, bool print) : print_(print) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, true);
}

void TextOutput::Push(int32_t id) {
  Add(decoder_ ? decoder_->Push(id) : fmt::format("{} ", id));
}

void TextOutput::Finish() {
  if (decoder_) Add(decoder_->Flush());
  if (print_) fmt::print("\n");
}

void TextOutput::Add(const std::string& piece) {
  text_ += piece;
  if (!print_ || piece.empty()) return;
  fmt::print("{}", piece);
  FlushOutput();
}

void AddSampling(CLI::App& verb, GenerateOptions& options) {
  // Their ranges are those of CheckSampling; CLI::Range lets NaN pass.
  verb.add_option("--max-tokens", options.max_tokens, "Tokens to write at most")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 32))
      ->capture_default_str();
  verb.add_option("--temperature", options.sampling.temperature, "0 = the most likely token")
      ->capture_default_str();
  verb.add_option("--top-p", options.sampling.top_p, "Probability mass to sample from")
      ->capture_default_str();
  verb.add_option("--top-k", options.sampling.top_k, "Tokens to sample from; 0 = all")
      ->capture_default_str();
  verb.add_option("--seed", options.seed, "Seed of the sampling")
      ->check(kNotNegative)
      ->capture_default_str();
}

void RequireFits(const ModelConfig& config, int64_t prompt_tokens) {
  if (prompt_tokens > config.context) {
    FailUsage("the prompt has {} tokens, the model's context is {}; shorten the prompt",
              prompt_tokens, config.context);
  }
}

void PrintSpeed(int64_t prompt_tokens, const Generation& g) {
  Note("prompt {} tokens, {:.0f} tokens/s", prompt_tokens,
       static_cast<double>(prompt_tokens) / g.prompt_seconds);
  if (g.decode_steps > 0) {
    Note("; {} tokens written, {:.0f} tokens/s", g.ids.size(),
         static_cast<double>(g.decode_steps) / g.decode_seconds);
  }
  if (g.finish == Finish::kContext) Note("; stopped: the context is full");
  Note("\n");
}

}  // namespace nibble::cli
