// SPDX-License-Identifier: Apache-2.0
// Cutting a text into evaluation windows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace nibble {

struct WindowOptions {
  int64_t context = 0;      // tokens of a window
  int64_t windows = 0;      // at most this many; 0 = all
  bool gptq_rows = false;   // join the lines with blank lines as the GPTQ and QuaRot papers do
  bool window_bos = false;  // replace every window's first token by BOS
};

// The text is tokenized once, as it is, with the tokenizer's special tokens (one BOS in front), and
// cut into windows that do not overlap; an incomplete last window is dropped.
std::vector<std::vector<int32_t>> TextWindows(const Tokenizer& tokenizer, const std::string& text,
                                              const WindowOptions& options,
                                              const std::string& where);

}  // namespace nibble
