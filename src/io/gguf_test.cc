// SPDX-License-Identifier: Apache-2.0
#include "io/gguf.h"

#include "base/rng.h"
#include "io/gguf_testing.h"
#include "io/io_testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using B = GgufBuilder;

class Gguf : public TemporaryDirectoryTest {
 protected:
  GgufFile Open(const std::string& bytes) {
    GgufBuilder::WriteBytes(Path("m.gguf"), bytes);
    return GgufFile(Path("m.gguf"));
  }
  std::string Refusal(const std::string& bytes) {
    return ErrorOf([&] { Open(bytes); });
  }
};

GgufBuilder Small() {
  GgufBuilder b;
  b.Integer("number", 7);
  b.Real("real", 0.5f);
  b.Bool("yes", true);
  b.String("text", "gr\xC3\xBC\xC3\x9F");
  b.Strings("texts", {"a", "", "c d"});
  b.Numbers<int32_t>("numbers", 5, {1, -2});
  b.Tensor("matrix", {3, 2}, 0, std::string(24, 'm'));
  b.Tensor("blocks", {2, 64}, 2, std::string(2 * 2 * 18, 'b'));
  b.Tensor("vector", {4}, 1, std::string(8, 'v'));
  return b;
}

TEST_F(Gguf, KeysAndTensorsAreRead) {
  const GgufFile file = Open(Small().Bytes());
  EXPECT_EQ(file.Integer("number"), 7);
  EXPECT_EQ(file.FindReal("number"), 7.0);
  EXPECT_EQ(file.FindReal("real"), 0.5);
  EXPECT_EQ(file.FindBool("yes"), true);
  EXPECT_EQ(file.FindString("text"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(file.Strings("texts"), (std::vector<std::string_view>{"a", "", "c d"}));
  EXPECT_EQ(file.Integers("numbers", 2), (std::vector<int64_t>{1, -2}));
  EXPECT_FALSE(file.FindInteger("none"));
  EXPECT_TRUE(file.Strings("none").empty());
  const Tensor& blocks = file.tensors().at("blocks");
  EXPECT_EQ(blocks.dtype, DType::kQ4_0);
  EXPECT_EQ(blocks.shape, (std::vector<int64_t>{2, 64}));
  EXPECT_EQ(static_cast<char>(blocks.data[71]), 'b');
  EXPECT_EQ(static_cast<char>(file.tensors().at("vector").data[7]), 'v');
}

TEST_F(Gguf, IntegersOfAllSizesKeepTheirSign) {
  GgufBuilder b;
  b.Key("u8", 0, B::Raw<uint8_t>(200));
  b.Key("i8", 1, B::Raw<int8_t>(-2));
  b.Key("u16", 2, B::Raw<uint16_t>(60'000));
  b.Key("i16", 3, B::Raw<int16_t>(-3));
  b.Key("u32", 4, B::Raw<uint32_t>(4'000'000'000));
  b.Key("i32", 5, B::Raw<int32_t>(-4));
  b.Key("u64", 10, B::Raw<uint64_t>(INT64_MAX));
  b.Key("i64", 11, B::Raw<int64_t>(-5));
  b.Key("large", 10, B::Raw<uint64_t>(uint64_t{1} << 63));
  b.Key("odd", 7, B::Raw<uint8_t>(2));
  const GgufFile file = Open(b.Bytes());
  for (const auto& [key, value] : {std::pair<const char*, int64_t>("u8", 200),
                                   {"i8", -2},
                                   {"u16", 60'000},
                                   {"i16", -3},
                                   {"u32", 4'000'000'000},
                                   {"i32", -4},
                                   {"u64", INT64_MAX},
                                   {"i64", -5}}) {
    EXPECT_EQ(file.Integer(key), value) << key;
  }
  EXPECT_THAT(ErrorOf([&] { file.Integer("large"); }), HasSubstr("large must be an integer"));
  EXPECT_THAT(ErrorOf([&] { file.FindBool("odd"); }), HasSubstr("odd must be true or false"));
}

TEST_F(Gguf, AValueOfAnotherKindNamesItsKey) {
  const GgufFile file = Open(Small().Bytes());
  EXPECT_THAT(ErrorOf([&] { file.Integer("none"); }), HasSubstr("none is missing"));
  EXPECT_THAT(ErrorOf([&] { file.FindInteger("text"); }), HasSubstr("text must be an integer"));
  EXPECT_THAT(ErrorOf([&] { file.FindInteger("real"); }), HasSubstr("real must be an integer"));
  EXPECT_THAT(ErrorOf([&] { file.FindReal("yes"); }), HasSubstr("yes must be a number"));
  EXPECT_THAT(ErrorOf([&] { file.FindBool("number"); }), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf([&] { file.FindString("texts"); }), HasSubstr("texts must be one value"));
  EXPECT_THAT(ErrorOf([&] { file.Strings("text"); }), HasSubstr("text must be an array"));
  EXPECT_THAT(ErrorOf([&] { file.Integers("texts", 3); }), HasSubstr("texts must be integers"));
  EXPECT_THAT(ErrorOf([&] { file.Integers("numbers", 3); }),
              HasSubstr("numbers has 2 items, expected 3"));
}

TEST_F(Gguf, EveryCutIsRefused) {
  const std::string whole = Small().Bytes();
  for (size_t size = 0; size + 24 < whole.size(); ++size) {  // the last 24 bytes are padding
    EXPECT_THAT(Refusal(whole.substr(0, size)), HasSubstr("m.gguf")) << size;
  }
}

// Whatever bytes change, a file opens or is refused; ASan sees views that leave it.
TEST_F(Gguf, DamagedFilesNeverCrash) {
  const std::string whole = Small().Bytes();
  Rng rng(5);
  size_t sum = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = whole;
    for (int n = 0; n < 1 + i % 3; ++n) {
      bytes[rng.Below(bytes.size())] = static_cast<char>(i % 2 == 0 ? rng.Below(256) : 255);
    }
    try {
      const GgufFile file = Open(bytes);
      for (const auto& [name, tensor] : file.tensors()) {
        for (size_t at = 0; at < tensor.bytes(); ++at) sum += std::to_integer<int>(tensor.data[at]);
      }
      sum += file.Strings("texts").size();
    } catch (const Error&) {
    }
  }
  EXPECT_GT(sum, 0u);
}

struct Bad {
  std::string_view what;
  void (*make)(GgufBuilder&);
};

TEST_F(Gguf, BadFilesAreRefusedByName) {
  const Bad cases[] = {
      {"key twice stands twice", [](B& b) { b.Bool("twice", 1), b.Bool("twice", 1); }},
      {"is not a plain name", [](B& b) { b.Bool("", 1); }},
      {"is not a plain name", [](B& b) { b.Bool("a\nb", 1); }},
      {"is not a plain name", [](B& b) { b.Bool(std::string(2000, 'n'), 1); }},
      {"not valid UTF-8", [](B& b) { b.Bool("\xFF\xFE", 1); }},
      {"not valid UTF-8", [](B& b) { b.String("text", "\xC3("); }},
      {"value type 13", [](B& b) { b.Key("odd", 13, "xxxx"); }},
      {"value type 9", [](B& b) { b.Key("nested", 9, B::Raw<uint32_t>(9) + B::Raw<uint64_t>(1)); }},
      {"do not fit",
       [](B& b) { b.Key("many", 9, B::Raw<uint32_t>(4) + B::Raw<uint64_t>(UINT64_MAX)); }},
      {"do not fit",
       [](B& b) {
         b.Key("wraps", 9, B::Raw<uint32_t>(4) + B::Raw<uint64_t>((1ull << 62) + 1) + "xxxx");
       }},
      {"truncated",
       [](B& b) { b.Key("many", 9, B::Raw<uint32_t>(8) + B::Raw<uint64_t>(UINT64_MAX)); }},
      {"truncated", [](B& b) { b.Key("long", 8, B::Raw<uint64_t>(UINT64_MAX)); }},
      {"alignment 0", [](B& b) { b.Integer("general.alignment", 0); }},
      {"alignment 24", [](B& b) { b.Integer("general.alignment", 24); }},
      {"alignment 2147483648", [](B& b) { b.Integer("general.alignment", 1u << 31); }},
      {"alignment must be an integer", [](B& b) { b.Bool("general.alignment", true); }},
      {"0 dimensions", [](B& b) { b.Info("t", {}, 0, 0); }},
      {"5 dimensions",
       [](B& b) {
         b.Info("t", {1, 1, 1, 1, 1}, 0, 0);
       }},
      {"an extent of 0", [](B& b) { b.Info("t", {0}, 0, 0); }},
      {"an extent of", [](B& b) { b.Info("t", {UINT64_MAX}, 0, 0); }},
      {"too large",
       [](B& b) {
         b.Info("t", {1ull << 62, 4}, 0, 0);
       }},
      {"too large",
       [](B& b) {
         b.Info("t", {1ull << 40, 1ull << 40}, 2, 0);
       }},
      {"tensor type 16 is not read", [](B& b) { b.Info("t", {256}, 16, 0); }},
      {"tensor type 4 is not read", [](B& b) { b.Info("t", {32}, 4, 0); }},
      {"whole blocks of Q4_0",
       [](B& b) {
         b.Info("t", {2, 48}, 2, 0);
       }},
      {"whole blocks of Q6_K", [](B& b) { b.Info("t", {128}, 14, 0); }},
      {"expected at 0", [](B& b) { b.Info("t", {1}, 0, 32); }},
      {"expected at 0", [](B& b) { b.Info("t", {1}, 0, UINT64_MAX); }},
      {"expected at 0 of 0", [](B& b) { b.Info("t", {8}, 0, 0); }},
      {"stands twice",
       [](B& b) {
         b.Tensor("t", {8}, 0, std::string(32, 0)), b.Tensor("t", {8}, 0, std::string(32, 0));
       }},
      {"expected at 32",
       [](B& b) { b.Tensor("t", {8}, 0, std::string(32, 0)), b.Info("u", {8}, 0, 0); }},
      {"expected at 32 of 32",
       [](B& b) { b.Tensor("t", {8}, 0, std::string(32, 0)), b.Info("u", {8}, 0, 32); }},
      {"is not a plain name", [](B& b) { b.Info("a b", {8}, 0, 0); }},
  };
  for (const Bad& bad : cases) {
    GgufBuilder builder;
    bad.make(builder);
    EXPECT_THAT(Refusal(builder.Bytes()), HasSubstr(bad.what));
  }
  EXPECT_THAT(Refusal("GGML"), HasSubstr("not a GGUF file"));
  EXPECT_THAT(Refusal("GGUF" + B::Raw<uint32_t>(2)), HasSubstr("version 2"));
  const std::string counts = "GGUF" + B::Raw<uint32_t>(3);
  EXPECT_THAT(Refusal(counts + B::Raw<uint64_t>(1ull << 40) + B::Raw<uint64_t>(0)),
              HasSubstr("over 262144 tensors"));
  EXPECT_THAT(Refusal(counts + B::Raw<uint64_t>(0) + B::Raw<uint64_t>(1ull << 40)),
              HasSubstr("over 65536 keys"));
}

}  // namespace
}  // namespace nibble
