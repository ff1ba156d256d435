// SPDX-License-Identifier: Apache-2.0
// The public C++ API: quantize a model, load one, generate text. Everything throws nibble::Error
// with a one-line message on bad files or arguments. One model may serve several sessions, one call
// at a time.
//
//   auto model = nibble::LoadedModel::Load("llama-w4a4kv4");
//   auto session = model.NewSession();
//   std::string text = session.Generate("The river", {.max_tokens = 64});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "nibble/error.h"

namespace nibble {

std::string_view Version();

// `nibble quantize` with a recipe's defaults: QuaRot (Ashkboos et al. 2024) unless named otherwise.
struct QuantizeRequest {
  std::string model;              // Hugging Face directory
  std::string output;             // checkpoint directory to write; must not exist
  std::string recipe = "quarot";  // quarot, gptq, rtn
  std::string calibration_text;   // file; empty = the embedded sample text
  int weight_bits = 0;            // 2..8 or 16; 0 = as the recipe says; the same for the next two
  int activation_bits = 0;
  int kv_bits = 0;
  uint64_t seed = 0;
};
void QuantizeModel(const QuantizeRequest& request);

struct GenerateRequest {
  int64_t max_tokens = 256;
  double temperature = 0;  // 0 = the most likely token
  double top_p = 1;
  uint64_t seed = 0;
};

class LoadedModel;

// One sequence: what was said so far stays in its KV cache.
class TextSession {
 public:
  ~TextSession();
  TextSession(TextSession&&) noexcept;

  // Appends the prompt and writes until an end-of-sequence id or max_tokens. on_text sees valid
  // UTF-8 pieces as they come. Throws when prompt and sequence exceed the context.
  std::string Generate(std::string_view prompt, const GenerateRequest& request = {},
                       const std::function<void(std::string_view)>& on_text = {});

 private:
  friend class LoadedModel;
  struct State;
  explicit TextSession(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// A Hugging Face directory (fp32) or a Nibble checkpoint, with its tokenizer.
class LoadedModel {
 public:
  static LoadedModel Load(const std::string& directory, const std::string& device = "cpu");
  ~LoadedModel();
  LoadedModel(LoadedModel&&) noexcept;

  std::vector<int32_t> Tokenize(std::string_view text) const;
  std::string Detokenize(const std::vector<int32_t>& ids) const;
  // Perplexity of a text in windows of `context` tokens (0 = min(2048, the model's)).
  double Perplexity(std::string_view text, int64_t context = 0);
  // The session must not outlive the model.
  TextSession NewSession();

 private:
  friend class TextSession;
  struct State;
  explicit LoadedModel(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace nibble
