// SPDX-License-Identifier: Apache-2.0
#include "base/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>

#include "base/error_testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;

std::string Nested(int depth) {
  return std::string(depth, '[') + std::string(depth, ']');
}

TEST(JsonTest, BuildsWhatTheTextSays) {
  const std::string text =
      R"({"b":[],"a":{"x":null,"":[true,false,{"y":{}}]},"n":[0,-1,18446744073709551615,2.5e3],)"
      R"("s":"\u0041\n\ud83d\ude00"})";
  EXPECT_EQ(ParseJson(text, "f"), Json::parse(text));
  EXPECT_EQ(ParseJson(text, "f").dump(), Json::parse(text).dump());
  for (const char* value : {"null", "true", "-7", "1.5", "\"x\"", "[]", "{}"}) {
    EXPECT_EQ(ParseJson(value, "f"), Json::parse(value));
  }
}

// `count` times `item`, as an array.
std::string ArrayOf(const std::string& item, size_t count) {
  std::string text = "[" + item;
  for (size_t i = 1; i < count; ++i) text += "," + item;
  return text + "]";
}

TEST(JsonTest, SizeIsBounded) {
  // The inner arrays are values, too.
  const std::string five = R"([0,"",{},null])";
  EXPECT_EQ(ParseJson(ArrayOf(five, kMaxJsonValues / 5 - 1), "f").size(), kMaxJsonValues / 5 - 1);
  EXPECT_THAT(ErrorOf([&] { ParseJson(ArrayOf(five, kMaxJsonValues / 5), "dir/f"); }),
              HasSubstr("dir/f: over 1000000 JSON values"));
  const std::string spaces(kMaxJsonBytes - 1, ' ');
  EXPECT_EQ(ParseJson(spaces + "7", "f"), 7);
  EXPECT_THAT(ErrorOf([&] { ParseJson(spaces + "77", "f"); }), HasSubstr("at most 16777216"));
}

TEST(JsonTest, KeysOfAnObjectAreBounded) {
  const auto object = [](int keys) {
    std::string text = "{\"k\":0";
    for (int i = 1; i < keys; ++i) text += fmt::format(",\"{}\":0", i);
    return text + "}";
  };
  EXPECT_EQ(ParseJson(object(10'000), "f").size(), 10'000u);
  EXPECT_THAT(ErrorOf([&] { ParseJson(object(10'001), "f"); }), HasSubstr("over 10000 keys"));
}

// Takes 0.1 s here; a builder that looks through the array at each end of an object, a minute.
TEST(JsonTest, ArraysOfSmallObjectsTakeLinearTime) {
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(ParseJson(ArrayOf("{}", 400'000), "f").size(), 400'000u);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
}

TEST(JsonTest, DepthIsBounded) {
  EXPECT_EQ(ErrorOf([] { ParseJson(Nested(64), "f"); }), "");
  EXPECT_THAT(ErrorOf([] { ParseJson(Nested(65), "f"); }), HasSubstr("deeper than 64"));
  EXPECT_THAT(ErrorOf([] { ParseJson(Nested(66), "f"); }), HasSubstr("deeper than 64"));
  EXPECT_THAT(ErrorOf([] { ParseJson(std::string(1 << 20, '['), "f"); }), HasSubstr("deeper"));
  std::string objects;
  for (int i = 0; i < 1 << 18; ++i) objects += "{\"a\":";
  EXPECT_THAT(ErrorOf([&] { ParseJson(objects, "f"); }), HasSubstr("deeper than 64"));
}

TEST(JsonTest, DuplicateKeysAreRefused) {
  EXPECT_THAT(ErrorOf([] { ParseJson(R"({"a":1,"b":2,"a":3})", "f"); }), HasSubstr("\"a\""));
  EXPECT_THAT(ErrorOf([] { ParseJson(R"({"x":{"a":1,"\u0061":2}})", "f"); }), HasSubstr("\"a\""));
  // The same key in different objects is fine, before and after a nested object too.
  EXPECT_EQ(ErrorOf([] { ParseJson(R"({"a":{"a":1,"b":[{"a":2},{"a":3}]},"b":{"a":1}})", "f"); }),
            "");
  EXPECT_NE(ErrorOf([] { ParseJson(R"({"a":{"b":1},"a":1})", "f"); }), "");
}

TEST(JsonTest, MalformedTextIsOneLineError) {
  for (const char* text : {"", "{", "[1,]", "{\"a\" 1}", "nul", "1 2", "\"\xff\"", "\"\xc0\x80\"",
                           "[1e999]", "NaN", "\"a\nb\"", "{\"a\":1}}", "/*c*/1"}) {
    const std::string message = ErrorOf([&] { ParseJson(text, "dir/x.json"); });
    EXPECT_THAT(message, testing::StartsWith("dir/x.json: ")) << text;
    EXPECT_EQ(message.find('\n'), std::string::npos) << text;
  }
}

TEST(JsonTest, KeyOrderIsKept) {
  EXPECT_EQ(ParseJson(R"({"z":1,"a":2,"m":3})", "f").dump(), R"({"z":1,"a":2,"m":3})");
}

TEST(JsonTest, GettersRefuseSilentConversions) {
  const Json j = ParseJson(
      R"({"f":1.5,"i":-3,"big":4294967296,"huge":18446744073709551615,"t":true,"s":"x","n":null,
          "v":[1,2,300],"d":1e300,"over":18446744073709551616})",
      "f");
  EXPECT_EQ(JsonGet<int>(j, "i", "f"), -3);
  EXPECT_EQ(JsonGet<double>(j, "i", "f"), -3.0);
  EXPECT_EQ(JsonGet<uint64_t>(j, "huge", "f"), ~uint64_t{0});
  EXPECT_EQ(JsonGet<int64_t>(j, "big", "f"), int64_t{1} << 32);
  EXPECT_EQ(JsonGet<bool>(j, "t", "f"), true);
  EXPECT_EQ(JsonGet<std::string>(j, "s", "f"), "x");
  EXPECT_THAT(JsonGet<std::vector<int>>(j, "v", "f"), testing::ElementsAre(1, 2, 300));
  EXPECT_EQ(JsonGet<Json>(j, "v", "f").size(), 3u);

  EXPECT_THAT(ErrorOf([&] { JsonGet<int>(j, "f", "a.json"); }), HasSubstr("a.json: f must be an"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<int>(j, "big", "f"); }), HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<int64_t>(j, "huge", "f"); }), HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<uint64_t>(j, "over", "f"); }), HasSubstr("must be an integer"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<uint32_t>(j, "i", "f"); }), HasSubstr("out of range"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<std::vector<uint8_t>>(j, "v", "f"); }),
              HasSubstr("v[] = 300 is out of range"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<int>(j, "t", "f"); }), HasSubstr("must be an integer"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<bool>(j, "i", "f"); }), HasSubstr("true or false"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<double>(j, "s", "f"); }), HasSubstr("must be a number"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<float>(j, "d", "f"); }), HasSubstr("not finite"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<std::string>(j, "i", "f"); }), HasSubstr("must be a string"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<std::vector<int>>(j, "s", "f"); }), HasSubstr("an array"));
}

TEST(JsonTest, MissingAndNullFields) {
  const Json j = ParseJson(R"({"n":null,"s":"x"})", "f");
  EXPECT_THAT(ErrorOf([&] { JsonGet<int>(j, "n", "f"); }), HasSubstr("\"n\" is missing"));
  EXPECT_THAT(ErrorOf([&] { JsonGet<int>(j, "q", "f"); }), HasSubstr("\"q\" is missing"));
  EXPECT_EQ(JsonFind<int>(j, "n", "f"), std::nullopt);
  EXPECT_EQ(JsonFind<int>(j, "q", "f"), std::nullopt);
  EXPECT_THAT(ErrorOf([&] { JsonFind<int>(j, "s", "f"); }), HasSubstr("must be an integer"));
  const Json array = ParseJson("[1]", "f");
  EXPECT_THAT(ErrorOf([&] { JsonGet<int>(array, "n", "f"); }), HasSubstr("must be a JSON object"));
  EXPECT_THAT(ErrorOf([&] { JsonFind<int>(array, "n", "f"); }), HasSubstr("must be a JSON object"));
}

TEST(JsonTest, NumbersOutOfRangeAreNamed) {
  const Json j = ParseJson(R"({"a":2.5,"i":-3,"n":null})", "f");
  EXPECT_EQ(JsonFindIn(j, "a", 2.5, 3.0, "f"), 2.5);
  EXPECT_EQ(JsonGetIn(j, "a", 2.0, 2.5, "f"), 2.5);
  EXPECT_EQ(JsonFindIn(j, "n", 0, 1, "f"), std::nullopt);
  EXPECT_THAT(ErrorOf([&] { JsonFindIn(j, "a", 2.6, 3.0, "f"); }),
              HasSubstr("f: a = 2.5 is not in 2.6..3"));
  EXPECT_THAT(ErrorOf([&] { JsonGetIn(j, "a", 1.0, 2.4, "f"); }), HasSubstr("not in 1..2.4"));
  EXPECT_THAT(ErrorOf([&] { JsonGetIn<int64_t>(j, "i", 0, 5, "f"); }),
              HasSubstr("f: i = -3 is not in 0..5"));
  EXPECT_THAT(ErrorOf([&] { JsonGetIn(j, "n", 0, 1, "f"); }), HasSubstr("\"n\" is missing"));
}

TEST(JsonTest, UnknownFieldsAreRefused) {
  const Json j = ParseJson(R"({"a":1,"b":2})", "f");
  EXPECT_EQ(ErrorOf([&] { RefuseUnknownFields(j, {"a", "b", "c"}, "f"); }), "");
  EXPECT_THAT(ErrorOf([&] { RefuseUnknownFields(j, {"a"}, "plan.json"); }),
              testing::AllOf(HasSubstr("plan.json"), HasSubstr("b")));
}

}  // namespace
}  // namespace nibble
