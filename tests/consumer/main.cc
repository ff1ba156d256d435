// SPDX-License-Identifier: Apache-2.0
// consumer MODEL OUT: quantizes MODEL, loads the result and writes a few words with it.
#include <nibble/nibble.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    int updates = 0;
    nibble::QuantizeModel({.model = argv[1],
                           .output = argv[2],
                           .recipe = "rtn",
                           .on_progress = [&](const nibble::ProgressState&) { ++updates; }});
    auto model = nibble::LoadedModel::Load(argv[2]);
    auto session = model.NewSession();
    std::string streamed;
    const std::string text = session.Generate("The river", {.max_tokens = 8},
                                              [&](std::string_view piece) { streamed += piece; });
    const bool round_trip = model.Detokenize(model.Tokenize("a town")) == "<|begin_of_text|>a town";
    std::printf("%s\n%s\n", std::string(nibble::Version()).c_str(), text.c_str());
    return text.empty() || streamed != text || !round_trip || updates < 2 ? 1 : 0;
  } catch (const nibble::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
