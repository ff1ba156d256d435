// SPDX-License-Identifier: Apache-2.0
// Directories with vocab.json and merges.txt instead of tokenizer.json.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error_testing.h"
#include "base/file.h"
#include "base/json.h"
#include "source/byte_level.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class MergesFile : public testing::Test {
 protected:
  MergesFile() : directory_(testing::TempDir() + "/merges_file") {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    Json vocabulary = {{"<s>", 0}, {"</s>", 1}};
    for (int byte = 0; byte < 256; ++byte) {
      std::string token;
      AppendByteChars(std::string(1, static_cast<char>(byte)), &token);
      vocabulary[token] = 2 + byte;
    }
    vocabulary["ab"] = 258, vocabulary["abc"] = 259;
    Write("vocab.json", vocabulary.dump());
    Write("merges.txt", "#version: 0.2\na b\r\nab c\n");
    Write("config.json", R"({"model_type": "opt"})");
    Write("tokenizer_config.json", R"({"bos_token": {"content": "</s>"}, "unk_token": "</s>"})");
  }
  void Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << bytes;
  }
  std::string Refusal() const {
    const std::string error = ErrorOf([&] { Tokenizer::Load(directory_).Encode("abc"); });
    EXPECT_THAT(error, testing::StartsWith(directory_));
    EXPECT_EQ(error.find('\n'), error.npos);
    return error;
  }

  const std::string directory_;
};

TEST_F(MergesFile, FirstMergesComeFirst) {
  const Tokenizer tokenizer = Tokenizer::Load(directory_);
  EXPECT_THAT(tokenizer.Encode("abcab"), ElementsAre(1, 259, 258));
  EXPECT_THAT(tokenizer.Encode("</s>ab", false), ElementsAre(1, 258));
  Write("tokenizer_config.json", R"({"bos_token": "</s>", "add_bos_token": false})");
  EXPECT_THAT(Tokenizer::Load(directory_).Encode("abcab"), ElementsAre(259, 258));
}

TEST_F(MergesFile, IsRefusedInOneLine) {
  const std::string vocabulary = ReadFile(directory_ + "/vocab.json", 1 << 20);
  for (const char* const broken :
       {"", "[1, 2]", "{\"a\": 1", "{\"</s>\": \"one\"}", "{\"</s>\": -1}", "{\"</s>\": 1.5}",
        "{\"a\": 0}} , {", "null"}) {
    SCOPED_TRACE(broken);
    Write("vocab.json", broken);
    EXPECT_NE(Refusal(), "");
  }
  Write("vocab.json", vocabulary);
  for (const char* const broken : {"a\n", "a b c\n", "a  b\n", "x y\n", "ab d\n"}) {
    SCOPED_TRACE(broken);
    Write("merges.txt", broken);
    EXPECT_NE(Refusal(), "");
  }
  Write("merges.txt", "a b\nab c\n");
  EXPECT_THAT(Tokenizer::Load(directory_).Encode("abc", false), ElementsAre(259));
  Write("config.json", R"({"model_type": "llama"})");
  EXPECT_THAT(Refusal(), HasSubstr("tokenizer.json"));
}

}  // namespace
}  // namespace nibble
