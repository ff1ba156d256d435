// SPDX-License-Identifier: Apache-2.0
// The first line as {"normalizer", "pre_tokenizer", "decoder"} of a tokenizer.json, the rest as a
// text that goes through all three. Valid UTF-8 stays so; pieces lie in the text one after another.
#include "base/utf8.h"
#include "fuzz_input.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"

namespace nibble {
namespace {

void CheckPieces(const Pieces& pieces) {
  size_t done = 0;
  for (size_t i = 0; i < pieces.ranges.size(); ++i) {
    const auto [begin, end] = pieces.ranges[i];
    NIBBLE_CHECK(done <= begin && begin < end && end <= pieces.text.size(), "{}..{}", begin, end);
    NIBBLE_CHECK(IsValidUtf8(pieces[i]), "piece {}", i);
    done = end;
  }
}

void Use(std::string_view input) {
  const std::string_view json = TakeLine(&input);
  if (!IsValidUtf8(input)) return;
  simdjson::dom::parser parser;
  simdjson::dom::element element;
  if (parser.parse(json.data(), json.size()).get(element) != simdjson::SUCCESS) return;
  const JsonNode root(element, "fuzz");
  const auto normalizer = Normalizer::FromJson(root.Find("normalizer"));
  const auto pre_tokenizer = PreTokenizer::FromJson(root.Find("pre_tokenizer"));
  const auto decoder = Decoder::FromJson(root.Find("decoder"));
  Work work("fuzz", input.size());
  std::string text = normalizer.Apply(std::string(input), &work);
  NIBBLE_CHECK(IsValidUtf8(text), "after the normalizer");
  const Pieces pieces = pre_tokenizer.Split(std::move(text), true, &work);
  CheckPieces(pieces);
  DecoderRun run(decoder, "fuzz");
  for (size_t i = 0; i < pieces.ranges.size(); ++i) {
    NIBBLE_CHECK(IsValidUtf8(run.Push(pieces[i])), "token {}", i);
  }
  NIBBLE_CHECK(IsValidUtf8(run.Flush()), "at the end");
}

}  // namespace
}  // namespace nibble

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return nibble::FuzzOne(data, size, nibble::Use);
}
