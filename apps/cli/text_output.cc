// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/text_output.h"

#include "apps/cli/terminal.h"

namespace nibble::cli {

TextOutput::TextOutput(const Tokenizer* tokenizer, bool print,
                       const std::vector<std::string>& stops, bool wrap)
    : stops_(stops), print_(print), wrap_(wrap) {
  if (tokenizer != nullptr) decoder_.emplace(*tokenizer, true);
}

bool TextOutput::Push(int32_t id) {
  Add(stops_.Push(decoder_ ? decoder_->Push(id) : fmt::format("{} ", id)));
  return !stops_.found();
}

void TextOutput::Finish() {
  if (decoder_) Add(stops_.Push(decoder_->Flush()));
  Add(stops_.Flush());
  if (!print_) return;
  fmt::print("\n");
  FlushOutput();
}

void TextOutput::Add(const std::string& piece) {
  text_ += piece;
  if (!print_ || piece.empty()) return;
  fmt::print("{}", words_.Push(piece, wrap_ ? OutputColumns() : 0));
  FlushOutput();
}

void RequireFits(const ModelConfig& config, int64_t prompt_tokens) {
  if (prompt_tokens > config.context) {
    FailUsage("the prompt has {} tokens, the model's context is {}; shorten the prompt",
              prompt_tokens, config.context);
  }
}

Json GenerationJson(const TextOutput& output, int64_t prompt_tokens, const Generation& g,
                    const GenerateOptions& options) {
  const char* reason = g.finish == Finish::kStop        ? "stop"
                       : g.finish == Finish::kInterrupt ? "interrupted"
                                                        : "length";
  Json json = {{"text", output.text()},
               {"token_ids", g.ids},
               {"prompt_tokens", prompt_tokens},
               {"completion_tokens", g.ids.size()},
               {"finish_reason", reason}};
  if (options.sampling.temperature > 0) json["seed"] = options.seed;
  return json;
}

void PrintSpeed(int64_t prompt_tokens, const Generation& g, const GenerateOptions& options) {
  Note("prompt {} tokens, {:.0f} tokens/s", prompt_tokens,
       static_cast<double>(prompt_tokens) / g.prompt_seconds);
  if (g.decode_steps > 0) {
    Note("; {} tokens written, {:.0f} tokens/s", g.ids.size(),
         static_cast<double>(g.decode_steps) / g.decode_seconds);
  }
  if (options.sampling.temperature > 0) Note("; seed {}", options.seed);
  if (g.finish == Finish::kContext) Note("; stopped: the context is full");
  if (g.finish == Finish::kInterrupt) Note("; stopped: Ctrl-C");
  if (g.finish == Finish::kLength) Note("; stopped: --max-tokens {}", options.max_tokens);
  Note("\n");
}

}  // namespace nibble::cli
