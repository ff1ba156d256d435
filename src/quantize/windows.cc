// SPDX-License-Identifier: Apache-2.0
#include "quantize/windows.h"

#include "base/error.h"
#include "base/rng.h"
#include "text/tokenizer.h"

namespace nibble {

std::vector<int32_t> TokenizeText(const std::string& model_directory, const std::string& text) {
  return Tokenizer::Load(model_directory).Encode(text);
}

std::vector<int32_t> RandomWindows(const std::vector<int32_t>& ids, int64_t count, int64_t context,
                                   uint64_t seed, const std::string& where) {
  const int64_t starts = static_cast<int64_t>(ids.size()) - context + 1;
  if (starts < 1) {
    Fail("{}: {} tokens, a calibration window has {}; pass a longer text or a smaller --context",
         where, ids.size(), context);
  }
  constexpr uint64_t kStream = 1u << 20;  // far from the streams of the rotation's layers
  Rng rng(seed, kStream);
  std::vector<int32_t> windows;
  for (int64_t w = 0; w < count; ++w) {
    const auto start = ids.begin() + static_cast<int64_t>(rng.Below(static_cast<uint64_t>(starts)));
    windows.insert(windows.end(), start, start + context);
  }
  return windows;
}

}  // namespace nibble
