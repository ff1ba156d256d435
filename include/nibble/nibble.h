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
#include "nibble/progress.h"

namespace nibble {

std::string_view Version();

// Options of `nibble quantize`, whose --help describes recipes and fields.
struct QuantizeRequest {
  std::string model;   // Hugging Face directory or GGUF file
  std::string output;  // checkpoint directory to write
  // Others: quarot, nibble, quik, atom, qserve, quipsharp, gptq, awq, omniquant, smoothquant, rtn,
  // stored.
  std::string recipe = "w4a8";
  // Changes of the recipe: "a-bits=8,kv-bits=4,w-asym"; an error if one of them changes nothing.
  std::string fields;
  // Changes for linears in whose name a regular expression is found; later ones win:
  // "down_proj:w-bits=8,a-bits=8".
  std::vector<std::string> rules;
  std::string calibration_text;      // file; empty = the embedded sample text
  std::string quality = "balanced";  // or fast, best
  int64_t calibration_windows = 0;   // 0 = as many as the quality takes
  int64_t context = 0;               // tokens of a window; 0 = as the quality has it
  uint64_t seed = 0;
  std::string device = "cpu";
  double memory = 0;    // bytes that it may use; 0 = what is free
  bool resume = false;  // continue OUTPUT.partial
  bool force = false;   // replace OUTPUT
  ProgressCallback on_progress = {};
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

// A Hugging Face directory or GGUF file (fp32) or a Nibble checkpoint, with its tokenizer.
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
