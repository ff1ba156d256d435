// SPDX-License-Identifier: Apache-2.0
// The first line as a regular expression of a tokenizer.json, the rest as the text it is matched
// in. Matches rise, lie in the text and cut no character; replacing them removes them alone.
#include "base/utf8.h"
#include "fuzz_input.h"
#include "text/regex.h"

namespace nibble {
namespace {

void Use(std::string_view text) {
  const std::string_view pattern = TakeLine(&text);
  if (!IsValidUtf8(text)) return;
  const Regex regex(pattern, Regex::Syntax::kPattern, "fuzz");
  Work work("fuzz", text.size());
  size_t done = 0, matched = 0;
  regex.ForEachMatch(text, &work, [&](size_t begin, size_t end) {
    NIBBLE_CHECK(done <= begin && begin <= end && end <= text.size(), "{}..{}", begin, end);
    NIBBLE_CHECK(IsValidUtf8(text.substr(done, begin - done)), "before {}", begin);
    NIBBLE_CHECK(IsValidUtf8(text.substr(begin, end - begin)), "at {}", begin);
    matched += end - begin;
    done = end;
  });
  Work again("fuzz", text.size());
  NIBBLE_CHECK(regex.ReplaceAll(text, "", &again).size() == text.size() - matched, "{} matched",
               matched);
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
