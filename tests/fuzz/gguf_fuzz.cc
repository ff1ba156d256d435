// SPDX-License-Identifier: Apache-2.0
// Any bytes as a GGUF file: its network, its tokenizer (which then encodes) and its chat template.
// A network that opens has weights that can be read.
#include "fuzz_input.h"
#include "models/import/open_network.h"
#include "models/network.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

// Each part may be refused by itself.
template <typename Part>
void Try(const Part& part) {
  FuzzOne(nullptr, 0, [&](std::string_view) { part(); });
}

void Use(std::string_view input) {
  static const ScratchDirectory scratch;
  const std::string path = scratch.Write("m.gguf", input);
  Try([&] {
    const Network net = OpenNetwork(path);
    for (int64_t i = 0; i < net.config.layers; ++i) {
      for (const auto& [role, linear] : net.layers[static_cast<size_t>(i)].linears) {
        const Matrix<float> values = ToF32(linear.weights.values);
        NIBBLE_CHECK(values.rows == net.config.outputs(i, role), "{}", values.rows);
      }
    }
  });
  Try([&] {
    const Tokenizer tokenizer = Tokenizer::Load(path);
    const std::string text = "Hello 12 w\xC3\xB6rld";
    tokenizer.Decode(tokenizer.Encode(text), false);
  });
  Try([&] { ChatTemplate::Load(path); });
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
