// SPDX-License-Identifier: Apache-2.0
// Words as byte-level tokenizers cut them whose files only name the pattern.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "source/byte_level_tokenizer.h"
#include "text/pre_tokenizer.h"

namespace nibble {
namespace {

using testing::ElementsAre;

// Words as Python's regex module cuts them with the patterns of tiktoken's o200k_base and of
// Mistral's tekken.json; byte-level text has other characters for spaces and newlines.
TEST(ByteLevelWords, AreCutWhereTheCaseRises) {
  const std::string text = "HelloWorld isn't 12345 a/b: //\n\n  XMLHttp ABCdef don'T";
  const auto words = [&](std::string_view pattern) {
    const std::string json = ByteLevelWords({.pattern = pattern}).dump();
    simdjson::dom::parser parser;
    const PreTokenizer cut = PreTokenizer::FromJson(JsonNode(parser.parse(json), "words"));
    Work work("words", text.size());
    const Pieces pieces = cut.Split(text, true, &work);
    std::vector<std::string> all;
    for (size_t i = 0; i < pieces.ranges.size(); ++i) {
      std::string& word = all.emplace_back(pieces[i]);
      for (const auto& [byte, stored] : {std::pair(" ", "Ġ"), {"\n", "Ċ"}}) {
        for (size_t at; (at = word.find(stored)) != word.npos;) word.replace(at, 2, byte);
      }
    }
    return all;
  };
  EXPECT_THAT(words(kO200kPattern),
              ElementsAre("Hello", "World", " isn't", " ", "123", "45", " a", "/b", ":", " //\n\n",
                          " ", " XMLHttp", " ABCdef", " don'T"));
  EXPECT_THAT(words(kTekkenPattern),
              ElementsAre("Hello", "World", " isn", "'t", " ", "1", "2", "3", "4", "5", " a", "/b",
                          ":", " //\n\n", " ", " XMLHttp", " ABCdef", " don", "'T"));
}

}  // namespace
}  // namespace nibble
