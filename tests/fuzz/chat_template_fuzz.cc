// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes as a chat template, rendered with a conversation that has every type.
// Only nibble::Error may come out. Build with -fsanitize=fuzzer,address,undefined; good seeds are
// the "source" strings of tests/golden/chat_templates.json.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const nibble::Json messages = nibble::ParseJson(
      R"([{"role": "system", "content": "Be k\u00efnd."}, {"role": "user", "content": " Hi\n"},
          {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f",
           "arguments": {"a": [1, 2.5, null, true]}}}]}, {"role": "tool", "content": null}])",
      "messages");
  static const nibble::Json extra = nibble::ParseJson(
      R"({"s": "Hello, W\u00f6rld \ud83d\ude00", "n": 7, "f": 2.5, "z": null, "t": true,
          "l": [3, 1, 2], "ls": ["b", "a"], "e": [], "d": {"b": 1, "a": "x"}, "ws": " x y ",
          "rows": [{"k": "a", "v": 1, "in": {"x": 5}}, {"k": "b"}], "bos_token": "<s>"})",
      "extra");
  try {
    const std::string text(reinterpret_cast<const char*>(data), size);
    const auto chat_template = nibble::ChatTemplate::Parse(text, "fuzz");
    const std::string out = chat_template.Render(messages, true, extra);
    NIBBLE_CHECK(out.size() <= size_t{4} << 20, "{} bytes of output", out.size());
  } catch (const nibble::Error&) {
  }
  return 0;
}
