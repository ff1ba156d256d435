// SPDX-License-Identifier: Apache-2.0
// Small trained tokenizers against what the packages that define their formats make of the same
// texts (tests/golden/small_tokenizers.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "base/json.h"
#include "io/base64.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

const Json& Goldens() {
  static const Json json = ReadJsonFile(NIBBLE_SOURCE_DIR "/tests/golden/small_tokenizers.json");
  return json;
}

// The case of a list with a name.
const Json& Case(const char* list, const std::string& name) {
  for (const Json& item : Goldens()[list]) {
    if (item["name"].get<std::string>() == name) return item;
  }
  ADD_FAILURE() << "no case " << name;
  return Goldens();
}

void ExpectAsGolden(const Tokenizer& tokenizer, const Json& texts, const Json& golden,
                    bool add_special) {
  ASSERT_EQ(texts.size(), golden["ids"].size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    SCOPED_TRACE(text);
    const auto ids = golden["ids"][i].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.Encode(text, add_special), ids);
    EXPECT_EQ(tokenizer.Decode(ids, true), golden["decoded"][i].get<std::string>());
    StreamDecoder stream(tokenizer, true);
    std::string streamed;
    for (const int32_t id : ids) streamed += stream.Push(id);
    EXPECT_EQ(streamed + stream.Flush(), golden["decoded"][i].get<std::string>());
  }
}

class SmallDocuments : public testing::TestWithParam<const char*> {};

TEST_P(SmallDocuments, GiveTheIdsAndTextsOfTheLibrary) {
  const Json& golden = Case("documents", GetParam());
  const Tokenizer tokenizer = Tokenizer::Parse(golden["tokenizer"].dump(), "t.json");
  ExpectAsGolden(tokenizer, Goldens()["texts"], golden, true);
}

INSTANTIATE_TEST_SUITE_P(All, SmallDocuments,
                         testing::Values("unigram_precompiled", "unigram_bytes", "unigram_steps",
                                         "unigram_nmt", "unigram_bert", "unigram_lengths",
                                         "bpe_suffix", "bpe_prefix"),
                         [](const auto& param) { return std::string(param.param); });

class SmallPieces : public testing::TestWithParam<const char*> {};

TEST_P(SmallPieces, GiveTheIdsAndTextsOfSentencePiece) {
  const Json& golden = Case("sentencepiece", GetParam());
  const std::string directory = testing::TempDir() + "/small_pieces_" + GetParam();
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/tokenizer.model", std::ios::binary)
      << DecodeBase64(golden["model"].get<std::string>()).value();
  const Tokenizer tokenizer = Tokenizer::Load(directory);
  const Json& texts = golden["texts"];
  ASSERT_EQ(texts.size(), golden["ids"].size());
  const auto unknown = tokenizer.TokenId("<unk>");
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto text = texts[i].get<std::string>();
    SCOPED_TRACE(text);
    const auto ids = golden["ids"][i].get<std::vector<int32_t>>();
    EXPECT_EQ(tokenizer.Encode(text, false), ids);
    // Unknown characters are a special token here, and U+2047 there.
    if (std::ranges::count(ids, unknown) > 0) continue;
    EXPECT_EQ(tokenizer.Decode(ids, true), golden["decoded"][i].get<std::string>());
  }
  EXPECT_EQ(tokenizer.Encode("a").front(), tokenizer.TokenId("<s>"));
}

INSTANTIATE_TEST_SUITE_P(All, SmallPieces,
                         testing::Values("unigram", "unigram_bytes", "unigram_user_defined",
                                         "unigram_across_words", "bpe", "bpe_bytes",
                                         "bpe_user_defined", "bpe_no_prefix"),
                         [](const auto& param) { return std::string(param.param); });

class SmallRanks : public testing::TestWithParam<const char*> {};

TEST_P(SmallRanks, GiveTheIdsAndTextsOfTiktoken) {
  const Json& golden = Case("ranks", GetParam());
  const std::string directory = testing::TempDir() + "/small_ranks_" + GetParam();
  std::filesystem::create_directories(directory);
  std::ofstream(directory + "/config.json") << Json{{"model_type", GetParam()}};
  std::ofstream(directory + "/some.tiktoken") << golden["ranks"].get<std::string>();
  ExpectAsGolden(Tokenizer::Load(directory), golden["texts"], golden, false);
}

INSTANTIATE_TEST_SUITE_P(All, SmallRanks, testing::Values("llama", "qwen"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace nibble
