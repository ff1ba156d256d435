// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: any bytes as a chat template, rendered with a conversation that has every type.
// Rendering ends, within the limit of its output.
#include "fuzz_input.h"
#include "text/chat_template.h"

namespace nibble {
namespace {

void Use(std::string_view input) {
  static const Json messages = ParseJson(
      R"([{"role": "system", "content": "Be k\u00efnd."}, {"role": "user", "content": " Hi\n"},
          {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f",
           "arguments": {"a": [1, 2.5, null, true]}}}]}, {"role": "tool", "content": null}])",
      "messages");
  static const Json extra = ParseJson(
      R"({"s": "Hello, W\u00f6rld \ud83d\ude00", "n": 7, "f": 2.5, "z": null, "t": true,
          "l": [3, 1, 2], "ls": ["b", "a"], "e": [], "d": {"b": 1, "a": "x"}, "ws": " x y ",
          "rows": [{"k": "a", "v": 1, "in": {"x": 5}}, {"k": "b"}], "bos_token": "<s>"})",
      "extra");
  const auto chat_template = ChatTemplate::Parse(std::string(input), "fuzz");
  const std::string out = chat_template.Render(messages, true, extra);
  NIBBLE_CHECK(out.size() <= size_t{4} << 20, "{} bytes of output", out.size());
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
