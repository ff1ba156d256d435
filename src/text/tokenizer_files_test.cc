// SPDX-License-Identifier: Apache-2.0
// Directories with tokenizer.model or a file of ranks instead of tokenizer.json: what is around a
// text, and malformed files, each of which ends in one line that names the file.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error_testing.h"
#include "io/base64.h"
#include "source/protobuf_testing.h"
#include "source/tokenizer_document.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

using proto::Message;
using proto::Number;
using proto::Real;
using proto::Varint;

std::string Piece(const std::string& text, float score, uint64_t type = kNormal) {
  return proto::Piece(text, score, type);
}
std::string Little(uint32_t value) {
  std::string bytes(4, '\0');
  std::memcpy(bytes.data(), &value, 4);
  return bytes;
}

const std::string kSpace = "\u2581";
// <unk> 0, <s> 1, </s> 2, "▁" 3, a 4, b 5, ab 6.
std::string Pieces() {
  return Piece("<unk>", 0, kUnknown) + Piece("<s>", 0, kControl) + Piece("</s>", 0, kControl) +
         Piece(kSpace, -4) + Piece("a", -5) + Piece("b", -6) + Piece("ab", -1);
}
std::string Trainer(uint64_t type, const std::string& more = "") {
  return Message(2, Number(3, type) + more);
}
std::string Normalizer(const std::string& charsmap) {
  return Message(3, Message(2, charsmap));
}
std::string ByteTokens() {
  std::string pieces;
  for (int i = 0; i < 256; ++i) pieces += Piece(fmt::format("<0x{:02X}>", i), 0, kByte);
  return pieces;
}

std::string Ranks(const std::vector<std::string>& more = {}) {
  std::string text;
  int rank = 0;
  for (int byte = 0; byte < 256; ++byte) {
    text += fmt::format("{} {}\n", EncodeBase64(std::string(1, static_cast<char>(byte))), rank++);
  }
  for (const std::string& token : more) text += fmt::format("{} {}\n", EncodeBase64(token), rank++);
  return text;
}

class TokenizerFiles : public testing::Test {
 protected:
  TokenizerFiles() : directory_(testing::TempDir() + "/tokenizer_files") {
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  std::string Write(const std::string& name, const std::string& bytes) const {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << bytes;
    return directory_ + "/" + name;
  }
  // One line that begins with the file's name.
  std::string Refusal(const std::string& file, const std::string& bytes) const {
    const std::string path = Write(file, bytes);
    const auto start = std::chrono::steady_clock::now();
    const std::string error = ErrorOf([&] { Tokenizer::Load(directory_).Encode("a\tb ab\u00e9"); });
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
    EXPECT_THAT(error, testing::StartsWith(path));
    EXPECT_EQ(error.find('\n'), error.npos);
    EXPECT_LT(error.size(), 600u);
    return error;
  }

  const std::string directory_;
};

TEST_F(TokenizerFiles, WhatSurroundsATextIsConfigured) {
  const auto encode = [&](const std::string& config) {
    Write("tokenizer_config.json", config);
    return Tokenizer::Load(directory_).Encode("ab");
  };
  Write("tokenizer.model", Pieces() + Trainer(2));
  EXPECT_THAT(encode("{}"), ElementsAre(1, 3, 6));
  EXPECT_THAT(encode(R"({"add_bos_token": false, "add_eos_token": true})"), ElementsAre(3, 6, 2));
  EXPECT_THAT(encode(R"({"bos_token": {"content": "</s>"}})"), ElementsAre(2, 3, 6));
  EXPECT_THAT(encode(R"({"bos_token": "<|x|>", "added_tokens_decoder":
                         {"7": {"content": "<|x|>", "special": true}}})"),
              ElementsAre(7, 3, 6));
  EXPECT_THAT(ErrorOf([&] { encode(R"({"bos_token": "<|x|>"})"); }), HasSubstr("<|x|>"));
  for (const char* bad :
       {R"({"added_tokens_decoder": []})", R"({"added_tokens_decoder": {"x": {}}})",
        R"({"added_tokens_decoder": {"7": {}}})", R"({"bos_token": 1})",
        R"({"added_tokens_decoder": {"4": {"content": "b"}}})",
        R"({"added_tokens_decoder": {"99999999": {"content": "b"}}})", "["}) {
    EXPECT_NE(ErrorOf([&] { encode(bad); }), "") << bad;
  }
}

TEST_F(TokenizerFiles, TokenizerJsonGoesFirst) {
  Write("tokenizer.model", "damaged");
  Write("tokenizer.json", R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})");
  EXPECT_THAT(Tokenizer::Load(directory_).Encode("a"), ElementsAre(0));
}

// Of classes that make tokenizer.json's post_processor anew; others leave it.
TEST_F(TokenizerFiles, SomeClassesSayWhatSurroundsATextOfATokenizerJson) {
  Write("tokenizer.json", R"({
    "model": {"type": "BPE", "vocab": {"a": 0, "<s>": 1, "</s>": 2, "x": 3}, "merges": []},
    "post_processor": {"type": "TemplateProcessing", "pair": [],
                       "single": [{"SpecialToken": {"id": "x", "type_id": 0}},
                                  {"Sequence": {"id": "A", "type_id": 0}}],
                       "special_tokens": {"x": {"id": "x", "ids": [3], "tokens": ["x"]}}}})");
  const auto encode = [&](const char* name, const std::string& config) {
    Write("tokenizer_config.json",
          fmt::format(R"({{"tokenizer_class": "{}", "bos_token": "<s>", {}}})", name, config));
    return Tokenizer::Load(directory_).Encode("a");
  };
  const std::string both = R"("eos_token": "</s>", "add_bos_token": true, "add_eos_token": true)";
  for (const char* name : {"LlamaTokenizer", "LlamaTokenizerFast", "GemmaTokenizer"}) {
    EXPECT_THAT(encode(name, both), ElementsAre(1, 0, 2)) << name;
    EXPECT_THAT(encode(name, R"("add_bos_token": false)"), ElementsAre(0)) << name;
    EXPECT_THAT(encode(name, R"("eos_token": "</s>")"), ElementsAre(3, 0)) << name;
    EXPECT_THAT(encode(name, R"("add_eos_token": true)"), ElementsAre(3, 0)) << "no such token";
  }
  for (const char* name : {"PreTrainedTokenizerFast", "Qwen2Tokenizer", ""}) {
    EXPECT_THAT(encode(name, both), ElementsAre(3, 0)) << name;
  }
  EXPECT_THAT(
      ErrorOf([&] { encode("LlamaTokenizer", R"("eos_token": "</x>", "add_eos_token": true)"); }),
      HasSubstr("no token </x>, which tokenizer_config.json puts around a text"));
}

TEST_F(TokenizerFiles, RanksJoinWhatHasTheLowest) {
  Write("config.json", R"({"model_type": "llama"})");
  Write("tokenizer.model", Ranks({"bc", "ab", "abc", " a", "xyz"}));
  const Tokenizer llama = Tokenizer::Load(directory_);
  const int32_t bos = 261;
  EXPECT_THAT(llama.Encode("abc a"), ElementsAre(bos, 258, 259));
  EXPECT_THAT(llama.Encode("dabd abcd", false), ElementsAre('d', 257, 'd', ' ', 258, 'd'));
  EXPECT_THAT(llama.Encode("xyz", false), ElementsAre(260));  // no two of its parts are a token
  EXPECT_THAT(llama.Encode("\u00e9", false), ElementsAre(0xC3, 0xA9));
  EXPECT_EQ(llama.TokenId("<|eot_id|>"), bos + 9);
  EXPECT_EQ(llama.TokenId("<|reserved_special_token_247|>"), bos + 255);
  EXPECT_EQ(llama.vocab_size(), bos + 256);
  std::filesystem::rename(directory_ + "/tokenizer.model", directory_ + "/qwen.tiktoken");
  Write("config.json", R"({"model_type": "qwen2"})");
  const Tokenizer qwen = Tokenizer::Load(directory_);
  EXPECT_THAT(qwen.Encode("12e\u0301<|im_end|>"), ElementsAre('1', '2', 0xC3, 0xA9, 263));
  EXPECT_EQ(qwen.Decode(qwen.Encode("a\u00e9 b"), true), "a\u00e9 b");
  Write("config.json", R"({"model_type": "falcon"})");
  EXPECT_THAT(ErrorOf([&] { Tokenizer::Load(directory_); }),
              testing::AllOf(HasSubstr("\"falcon\" is none of llama, qwen, qwen2, qwen3"),
                             HasSubstr("tokenizer.json")));
}

TEST_F(TokenizerFiles, MalformedModels) {
  const std::string good = Pieces() + Trainer(2);
  const std::string unit = Little(0), text = std::string("x\0", 2);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::pair<const char*, std::string> cases[] = {
      {"empty", ""},
      {"text", "not a model"},
      {"json", "{\"model\": {}}"},
      {"gzip", "\x1f\x8b\x08\x01"},
      {"field 0", std::string("\0\0", 2) + good},
      {"group", "\x0b" + good},
      {"end of a group", "\x0c" + good},
      {"wire type 6", "\x0e" + good},
      {"wire type 7", "\x0f" + good},
      {"key without value", good + "\x08"},
      {"key without end", good + "\xff"},
      {"key of 33 bits", good + Varint(1ull << 36) + "a"},
      {"varint of 11 bytes", good + "\x20" + std::string(10, '\xff') + "\x01"},
      {"varint of 65 bits", good + "\x20" + std::string(9, '\xff') + "\x02"},
      {"length behind the end", good + "\x0a\x7f"},
      {"length of 2^63", good + "\x0a" + Varint(1ull << 63)},
      {"length of 2^64 - 1", good + "\x0a" + Varint(~0ull)},
      {"cut in a piece", good.substr(0, 33)},
      {"cut in a score", "\x0a\x09\x0a\x03" "abc\x15\x00\x00" + std::string("\0\0\0", 3)},
      {"fixed 64 cut", good + "\x21\x01"},
      {"fixed 32 cut", good + "\x25\x01"},
      {"piece is a number", good + Number(1, 3)},
      {"text is a number", good + Message(1, Number(1, 3))},
      {"score is a number", good + Message(1, Message(1, "c") + Number(2, 3))},
      {"type is a text", good + Message(1, Message(1, "c") + Message(3, "x"))},
      {"piece without text", good + Message(1, Real(2, 1))},
      {"empty piece", good + Piece("", -1)},
      {"piece is not UTF-8", good + Piece("\xff", -1)},
      {"piece is half a character", good + Piece("\xe2\x96", -1)},
      {"same piece twice", good + Piece("ab", -9)},
      {"score is not a number", good + Piece("c", nan)},
      {"score is infinite", good + Piece("c", std::numeric_limits<float>::infinity())},
      {"type 0", good + Piece("c", -1, 0)},
      {"type 7", good + Piece("c", -1, 7)},
      {"type 2^63", good + Piece("c", -1, 1ull << 63)},
      {"two unknown pieces", good + Piece("c", -1, kUnknown)},
      {"piece of 9,000 bytes", good + Piece(std::string(9'000, 'a'), -1)},
      {"many long pieces", [] {
         std::string many = Pieces() + Trainer(2);
         for (int i = 0; i < 40; ++i) many += Piece(std::string(8'000, 'a') + char('0' + i), -1);
         return many;
       }()},
      {"no pieces", Trainer(1)},
      {"word model", Pieces() + Trainer(3)},
      {"character model", Pieces() + Trainer(4)},
      {"model type 99", Pieces() + Trainer(99)},
      {"white space as suffix", Pieces() + Trainer(1, Number(24, 1))},
      {"byte fallback without bytes", Pieces() + Trainer(1, Number(35, 1))},
      {"BPE, byte fallback without bytes", Pieces() + Trainer(2, Number(35, 1))},
      {"one byte is missing",
       Pieces() + ByteTokens().substr(Piece("<0x00>", 0, kByte).size()) + Trainer(2, Number(35, 1))},
      {"unigram without unknown", Piece("a", -1) + Trainer(1)},
      {"trainer is a number", Pieces() + Number(2, 1)},
      {"trainer cut", Pieces() + Message(2, "\x18")},
      {"normalizer is a number", good + Number(3, 1)},
      {"denormalizer", good + Message(5, Message(2, "abc"))},
      {"charsmap of 3 bytes", good + Normalizer("abc")},
      {"charsmap without trie", good + Normalizer(Little(0) + text)},
      {"charsmap's trie of 5 bytes", good + Normalizer(Little(5) + unit + unit + text)},
      {"charsmap's trie behind the end", good + Normalizer(Little(400) + unit + text)},
      {"charsmap's trie of 2^32 - 4", good + Normalizer(Little(~3u) + unit + text)},
      {"charsmap without texts", good + Normalizer(Little(4) + unit)},
      {"charsmap's texts are not ended", good + Normalizer(Little(4) + unit + "x")},
      {"charsmap's texts are not UTF-8", good + Normalizer(Little(4) + unit + std::string("\xff\0", 2))},
  };
  EXPECT_GE(std::size(cases), 40u);
  for (const auto& [name, bytes] : cases) {
    SCOPED_TRACE(name);
    EXPECT_NE(Refusal("tokenizer.model", bytes), "");
  }
  Write("tokenizer.model", good);
  EXPECT_THAT(Tokenizer::Load(directory_).Encode("ab", false), ElementsAre(3, 6));
}

// A trie whose nodes are all one another's children, and values that point anywhere.
TEST_F(TokenizerFiles, CharsmapsThatPointAnywhere) {
  const std::string texts = std::string("\u00e9\0x\0", 5);
  for (uint32_t i = 0; i < 400; ++i) {
    std::string trie;
    for (uint32_t unit = 0; unit < 256; ++unit) {
      const uint32_t any = (unit * 2654435761u + i * 40503u) ^ (i << (unit % 29));
      trie += Little(i % 3 == 0 ? any : (any & ~0xFFu) | unit);
    }
    Write("tokenizer.model",
          Pieces() + Trainer(2) +
              Normalizer(Little(static_cast<uint32_t>(trie.size())) + trie + texts));
    const Tokenizer tokenizer = Tokenizer::Load(directory_);
    std::string text;
    for (int byte = 1; byte < 128; ++byte) text += static_cast<char>(byte);
    const std::string error = ErrorOf([&] { tokenizer.Encode(text + "\u00e9\u65e5"); });
    EXPECT_TRUE(error.empty() || error.find("charsmap is damaged") != error.npos) << error;
  }
}

TEST_F(TokenizerFiles, MalformedRanks) {
  Write("config.json", R"({"model_type": "llama"})");
  const std::string good = Ranks({"ab", "abc"});
  const auto line = [&](size_t number, const std::string& text) {
    std::string changed = good;
    size_t at = 0;
    for (size_t i = 1; i < number; ++i) at = changed.find('\n', at) + 1;
    return changed.replace(at, changed.find('\n', at) - at, text);
  };
  const auto last = [&](const std::string& text) { return good + text; };
  const std::pair<const char*, std::string> cases[] = {
      {"one line", "AA== 0\n"},
      {"a byte is missing", line(256, "YWI= 255")},
      {"without a rank", last("eHk=\n")},
      {"without a token", last(" 258\n")},
      {"without a space", last("eHk=258\n")},
      {"two spaces", last("eHk=  258\n")},
      {"a tab", last("eHk=\t258\n")},
      {"space at the end", last("eHk= 258 \n")},
      {"space at the start", last(" eHk= 258\n")},
      {"empty line", last("\n")},
      {"empty line inside", line(100, "")},
      {"two lines at once", last("eHk= 258\n\n")},
      {"rank twice", last("eHk= 257\n")},
      {"rank left out", last("eHk= 259\n")},
      {"rank 0", last("eHk= 0\n")},
      {"ranks begin at 1", "AA== 1\n"},
      {"negative rank", last("eHk= -1\n")},
      {"rank with a sign", last("eHk= +258\n")},
      {"rank in hexadecimal", last("eHk= 0x102\n")},
      {"rank with a fraction", last("eHk= 258.0\n")},
      {"rank in words", last("eHk= many\n")},
      {"rank of 2^64", last("eHk= 18446744073709551616\n")},
      {"rank of 30 digits", last("eHk= 123456789012345678901234567890\n")},
      {"rank and more", last("eHk= 258 x\n")},
      {"no base64", last("e\xc3\xa9k= 258\n")},
      {"base64 of 3 digits", last("eHk 258\n")},
      {"base64 with bits left", last("eHl= 258\n")},
      {"base64 of padding", last("==== 258\n")},
      {"three paddings", last("e=== 258\n")},
      {"padding inside", last("eH=k 258\n")},
      {"base64 for addresses", last("-_-_ 258\n")},
      {"byte zero", last(std::string("eHk= 258\0\n", 10))},
      {"byte zero inside", last(std::string("eH\0= 258\n", 9))},
      {"carriage returns alone", last("eHk= 258\rYXY= 259\n")},
      {"token twice", last("YWI= 258\n")},
      {"token of 9,000 bytes", last(EncodeBase64(std::string(9'000, 'x')) + " 258\n")},
      {"token of 1,000,000 bytes", last(EncodeBase64(std::string(1'000'000, 'x')) + " 258\n")},
      {"line of 1,000,000 bytes", last(std::string(1'000'000, 'A') + "\n")},
      {"cut in a rank", good.substr(0, good.size() - 2)},
      {"cut in a token", good.substr(0, good.size() - 7)},
      {"a comment", last("# eHk= 258\n")},
      {"JSON behind it", last("{}\n")},
  };
  EXPECT_GE(std::size(cases), 40u);
  for (const auto& [name, text] : cases) {
    SCOPED_TRACE(name);
    EXPECT_NE(Refusal("tokenizer.model", text), "");
  }
  std::string windows = good;
  for (size_t at = 0; (at = windows.find('\n', at)) != windows.npos; at += 2) {
    windows.replace(at, 1, "\r\n");
  }
  Write("tokenizer.model", windows);
  EXPECT_THAT(Tokenizer::Load(directory_).Encode("abc", false), ElementsAre(257));
}

}  // namespace
}  // namespace nibble
