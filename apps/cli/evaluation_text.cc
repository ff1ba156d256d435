// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/evaluation_text.h"

#include <algorithm>

#include "base/file.h"
#include "engine/window_bos.h"

namespace nibble::cli {

void AddEvaluationText(CLI::App& verb, EvaluationText& text) {
  verb.add_option("--text", text.file, "Text file")->required();
  verb.add_option("--context", text.windows.context,
                  "Tokens of a window; 0 = min(2048, the model's)")
      ->check(kNotNegative);
  verb.add_option("--windows", text.windows.windows, "Only the first N windows; 0 = all")
      ->check(kNotNegative)
      ->capture_default_str();
  verb.add_option("--protocol", text.protocol,
                  "plain: the file as it is; gptq: lines joined with blank lines")
      ->check(CLI::IsMember({"plain", "gptq"}))
      ->capture_default_str();
  verb.add_option("--window-bos", text.window_bos,
                  "Begin every window with BOS; auto: where the model was trained so, as Gemma")
      ->check(CLI::IsMember({"auto", "always", "none"}))
      ->capture_default_str();
}

Windows LoadWindows(EvaluationText& text, const std::string& model, const ModelConfig& config) {
  WindowOptions& windows = text.windows;
  if (windows.context == 0) windows.context = std::min<int64_t>(2048, config.context);
  if (windows.context < 2 || windows.context > config.context) {
    FailUsage("--context {}: use 2 to {}, the model's context", windows.context, config.context);
  }
  windows.gptq_rows = text.protocol == "gptq";
  const Tokenizer tokenizer = Tokenizer::Load(model);
  windows.window_bos =
      text.window_bos == "always" || (text.window_bos == "auto" && WindowBos(tokenizer, config));
  return TextWindows(tokenizer, ReadFile(text.file, uint64_t{1} << 30), windows, text.file);
}

}  // namespace nibble::cli
