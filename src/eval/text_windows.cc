// SPDX-License-Identifier: Apache-2.0
#include "eval/text_windows.h"

#include "base/error.h"

namespace nibble {
namespace {

// One data set row per line: a line " " is the empty row, any other keeps its newline.
std::string JoinRows(const std::string& text) {
  std::string joined;
  for (size_t begin = 0; begin < text.size();) {
    const size_t newline = text.find('\n', begin);
    const size_t end = newline == std::string::npos ? text.size() : newline + 1;
    const std::string row = text.substr(begin, end - begin);
    if (begin > 0) joined += "\n\n";
    if (row != " \n") joined += row;
    begin = end;
  }
  return joined;
}

}  // namespace

std::vector<std::vector<int32_t>> TextWindows(const Tokenizer& tokenizer, const std::string& text,
                                              const WindowOptions& options,
                                              const std::string& where) {
  const std::vector<int32_t> ids = tokenizer.Encode(options.gptq_rows ? JoinRows(text) : text);
  const std::vector<int32_t> empty = tokenizer.Encode("");
  if (options.window_bos && empty.empty()) {
    FailUsage("--window-bos: this tokenizer adds no BOS token");
  }
  const size_t context = static_cast<size_t>(options.context);
  size_t count = ids.size() / context;
  if (count == 0) {
    Fail("{}: {} tokens are less than one window of {}", where, ids.size(), options.context);
  }
  if (options.windows > 0) count = std::min(count, static_cast<size_t>(options.windows));
  std::vector<std::vector<int32_t>> windows;
  for (size_t w = 0; w < count; ++w) {
    const auto begin = ids.begin() + static_cast<int64_t>(w * context);
    windows.emplace_back(begin, begin + options.context);
    if (options.window_bos) windows.back()[0] = empty[0];
  }
  return windows;
}

}  // namespace nibble
