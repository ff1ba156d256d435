// SPDX-License-Identifier: Apache-2.0
// The text of a perplexity: which file, and how it is cut.
#pragma once

#include <string>

#include "apps/cli/cli.h"
#include "eval/perplexity.h"
#include "eval/text_windows.h"

namespace nibble::cli {

struct EvaluationText {
  std::string file, protocol = "plain", window_bos = "auto";
  WindowOptions windows;  // context 0 = min(2048, the model's)
};

// --text, --context, --windows, --protocol, --window-bos.
void AddEvaluationText(CLI::App& verb, EvaluationText& text);

// Windows of the same length, cut by the model's tokenizer; text.windows then says how. Throws if
// the context does not fit the model (usage) or the file does not fill a window.
Windows LoadWindows(EvaluationText& text, const std::string& model, const ModelConfig& config);

}  // namespace nibble::cli
