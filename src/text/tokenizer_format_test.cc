// SPDX-License-Identifier: Apache-2.0
// Small made-up tokenizer.json files: what each component does, and what is refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/json.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Characters a..f, space and "▁" have ids 0..7; "ab" = 8, "abc" = 9, "<s>" = 10 (special).
Json Base() {
  return Json::parse(R"({
    "version": "1.0", "truncation": null, "padding": null,
    "added_tokens": [{"id": 10, "content": "<s>", "special": true, "normalized": false,
                      "lstrip": false, "rstrip": false, "single_word": false}],
    "normalizer": null, "pre_tokenizer": null,
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                 {"Sequence": {"id": "A", "type_id": 0}}],
      "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [10], "tokens": ["<s>"]}}},
    "decoder": {"type": "Fuse"},
    "model": {"type": "BPE", "dropout": null, "unk_token": null, "fuse_unk": false,
      "vocab": {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4, "f": 5, " ": 6, "▁": 7, "ab": 8, "abc": 9},
      "merges": ["a b", ["ab", "c"]]}})");
}

Tokenizer Make(const Json& json) {
  return Tokenizer::Parse(json.dump(), "t.json");
}

Tokenizer With(const std::string& pointer, const std::string& value) {
  Json json = Base();
  json[Json::json_pointer(pointer)] = Json::parse(value);
  return Make(json);
}

// The error message of a file, which must start with the file's name.
std::string Refusal(const std::string& text) {
  try {
    Tokenizer::Parse(text, "t.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kFailed);
    EXPECT_THAT(error.what(), testing::StartsWith("t.json"));
    return error.what();
  }
  ADD_FAILURE() << "accepted: " << text;
  return "";
}

std::string Refusal(const std::string& pointer, const std::string& value) {
  Json json = Base();
  json[Json::json_pointer(pointer)] = Json::parse(value);
  return Refusal(json.dump());
}

TEST(TokenizerFormat, MergesInRankOrderAndFramesWithTheTemplate) {
  const Tokenizer t = Make(Base());
  EXPECT_THAT(t.Encode("abcab"), ElementsAre(10, 9, 8));
  EXPECT_THAT(t.Encode("abcab", false), ElementsAre(9, 8));
  EXPECT_THAT(t.Encode(""), ElementsAre(10));
  EXPECT_EQ(t.vocab_size(), 11);
  EXPECT_EQ(t.TokenId("abc"), 9);
  EXPECT_EQ(t.TokenId("<s>"), 10);
  EXPECT_EQ(t.TokenId("zz"), std::nullopt);
  EXPECT_EQ(t.TokenText(8), "ab");
  EXPECT_EQ(t.TokenText(11), "");
  EXPECT_TRUE(t.IsSpecial(10));
  EXPECT_FALSE(t.IsSpecial(9));
  EXPECT_FALSE(t.IsSpecial(-1));
}

TEST(TokenizerFormat, SpecialTokensInTextAreParsedUnlessPlain) {
  const Tokenizer t = Make(Base());
  EXPECT_THAT(t.Encode("a<s>b", false), ElementsAre(0, 10, 1));
  EXPECT_THAT(t.EncodePlain("a<s>b"), ElementsAre(8));  // no unk_token: "<", "s", ">" vanish
}

TEST(TokenizerFormat, UnknownCharacters) {
  Json json = Base();
  json["model"]["unk_token"] = "f";
  EXPECT_THAT(Make(json).Encode("a??b", false), ElementsAre(0, 5, 5, 1));
  json["model"]["fuse_unk"] = true;
  EXPECT_THAT(Make(json).Encode("a??b", false), ElementsAre(0, 5, 1));
  json["model"]["byte_fallback"] = true;
  for (int byte = 0; byte < 256; ++byte) {
    json["model"]["vocab"][fmt::format("<0x{:02X}>", byte)] = 100 + byte;
  }
  EXPECT_THAT(Make(json).Encode("aé", false), ElementsAre(0, 100 + 0xC3, 100 + 0xA9));
}

TEST(TokenizerFormat, IgnoreMergesTakesWholePieces) {
  Json json = Base();
  json["model"]["vocab"]["abd"] = 11;
  EXPECT_THAT(Make(json).Encode("abd", false), ElementsAre(8, 3));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(Make(json).Encode("abd", false), ElementsAre(11));
  EXPECT_THAT(Make(json).Encode("abda", false), ElementsAre(8, 3, 0));
}

TEST(TokenizerFormat, CharactersInsideAndAtTheEndOfPieces) {
  Json json = Base();
  json["model"]["end_of_word_suffix"] = "</w>";
  json["model"]["vocab"]["c</w>"] = 11;
  json["model"]["vocab"]["abc</w>"] = 12;
  json["model"]["merges"].push_back({"ab", "c</w>"});
  // "abc" is a token, but its last character is written with the suffix; "b</w>" is none.
  EXPECT_THAT(Make(json).Encode("abc", false), ElementsAre(12));
  EXPECT_THAT(Make(json).Encode("cabcc", false), ElementsAre(2, 9, 11));
  EXPECT_THAT(Make(json).Encode("ab", false), ElementsAre(0));
  json = Base();
  json["model"]["continuing_subword_prefix"] = "##";
  json["model"]["dropout"] = 0.0;
  json["model"]["vocab"]["##b"] = 11;
  json["model"]["vocab"]["##c"] = 12;
  json["model"]["vocab"]["##bc"] = 13;
  json["model"]["merges"] = {"a ##b", "##b ##c"};
  EXPECT_THAT(Make(json).Encode("abcbc", false), ElementsAre(8, 12, 13));
  EXPECT_THAT(Make(json).Encode("babc", false), ElementsAre(1, 13));  // "##a" is none
}

TEST(TokenizerFormat, WordsThatAreTokensStayWhatMergesMakeOfThem) {
  // "dc" is a token that no merge makes, "abc" one that merges make; asked twice, since the first
  // answer is remembered.
  Json json = Base();
  json["model"]["vocab"]["dc"] = 11;
  const Tokenizer t = Make(json);
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(t.Encode("dc", false), ElementsAre(3, 2));
    EXPECT_THAT(t.Encode("abc", false), ElementsAre(9));
    EXPECT_THAT(t.Encode("abcdc", false), ElementsAre(9, 3, 2));
  }
}

TEST(TokenizerFormat, SplitBehaviors) {
  // "ab" is joined by a merge unless a piece ends between them; the pattern is "b".
  const auto encode = [](const std::string& behavior, const std::string& invert) {
    return With("/pre_tokenizer", R"({"type": "Split", "pattern": {"String": "b"}, "behavior": ")" +
                                      behavior + R"(", "invert": )" + invert + "}")
        .Encode("abcbb", false);
  };
  EXPECT_THAT(encode("Isolated", "false"), ElementsAre(0, 1, 2, 1, 1));
  EXPECT_THAT(encode("Removed", "false"), ElementsAre(0, 2));
  EXPECT_THAT(encode("Removed", "true"), ElementsAre(1, 1, 1));
  EXPECT_THAT(encode("MergedWithPrevious", "false"), ElementsAre(8, 2, 1, 1));
  EXPECT_THAT(encode("MergedWithNext", "false"), ElementsAre(0, 1, 2, 1, 1));
  EXPECT_THAT(encode("MergedWithNext", "true"), ElementsAre(8, 2, 1, 1));
  EXPECT_THAT(encode("Contiguous", "false"), ElementsAre(0, 1, 2, 1, 1));
}

TEST(TokenizerFormat, NormalizersAndMetaspace) {
  EXPECT_THAT(With("/normalizer", R"({"type": "Sequence", "normalizers": [
                     {"type": "Prepend", "prepend": "▁"},
                     {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]})")
                  .Encode("a <s>b", false),
              ElementsAre(7, 0, 7, 10, 7, 1));
  EXPECT_THAT(With("/normalizer", R"({"type": "NFC"})").Encode("e\u0301", false), ElementsAre());
  const std::string scheme =
      R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": true})";
  EXPECT_THAT(With("/pre_tokenizer", scheme).Encode("a b<s>c", false),
              ElementsAre(7, 0, 7, 1, 10, 2));
  EXPECT_EQ(With("/decoder", scheme).Decode(std::vector<int32_t>{7, 0, 7, 1}, false), "a b");
}

TEST(TokenizerFormat, UnicodeFormsOfPartsAreThoseOfTheWhole) {
  // U+11A7 is no trailing consonant, U+11A8 is one; a mark joins with the letter before it.
  Json json = Base();
  json["normalizer"] = {{"type", "NFC"}};
  int id = 11;
  for (const char* token : {"\uAC00", "\uAC01", "\u11A7", "\u00E1", "\u0301"}) {
    json["model"]["vocab"][token] = id++;
  }
  const Tokenizer t = Make(json);
  EXPECT_THAT(t.Encode("\uAC00\u11A7b", false), ElementsAre(11, 13, 1));
  EXPECT_THAT(t.Encode("\u1100\u1161\u11A7\u0301", false), ElementsAre(11, 13, 15));
  EXPECT_THAT(t.Encode("\uAC00\u11A8ba\u0301a", false), ElementsAre(12, 1, 14, 0));
}

TEST(TokenizerFormat, TokensOfNormalizedTextDecodeAsTheyAreFound) {
  // In Llama 2's file, too, "<s>" is looked for as "▁<s>", which takes the space before it.
  Json json = Base();
  json["added_tokens"][0]["normalized"] = true;
  json["normalizer"] = {
      {"type", "Sequence"},
      {"normalizers",
       {{{"type", "Prepend"}, {"prepend", "▁"}},
        {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "▁"}}}}};
  json["decoder"] = {{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}};
  const Tokenizer t = Make(json);
  const std::vector<int32_t> ids = t.Encode("a <s>b", false);
  EXPECT_THAT(ids, ElementsAre(7, 0, 10, 1));
  EXPECT_EQ(t.Decode(ids, false), " a <s>b");
  EXPECT_EQ(t.Decode(ids, true), " ab");
  EXPECT_EQ(t.TokenText(10), "<s>");
}

TEST(TokenizerFormat, AddedTokensTakeSpaceAndRespectWords) {
  Json json = Base();
  json["added_tokens"][0]["lstrip"] = true;
  json["added_tokens"][0]["rstrip"] = true;
  EXPECT_THAT(Make(json).Encode("a \u3000<s>\n b", false), ElementsAre(0, 10, 1));
  json["added_tokens"].push_back({{"id", 11}, {"content", "d"}, {"single_word", true}});
  json["model"]["vocab"]["d"] = 11;
  EXPECT_THAT(Make(json).Encode("d add d", false), ElementsAre(11, 6, 0, 11, 11, 6, 11));
  json["added_tokens"].push_back({{"id", 12}, {"content", "de"}});
  EXPECT_THAT(Make(json).Encode("dedd", false), ElementsAre(12, 11, 11));  // the longest wins
  // No token of the vocabulary, so its id shows where it was found.
  json["added_tokens"].push_back({{"id", 13}, {"content", "ff"}, {"single_word", true}});
  EXPECT_THAT(Make(json).Encode("ff cff ffc ff", false),
              ElementsAre(13, 6, 2, 5, 5, 6, 5, 5, 2, 6, 13));
}

TEST(TokenizerFormat, StripWorksOnTheWholeTextAfterFuse) {
  const Tokenizer t = With("/decoder", R"({"type": "Sequence", "decoders": [
      {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "Fuse"},
      {"type": "Strip", "content": " ", "start": 1, "stop": 1}]})");
  EXPECT_EQ(t.Decode(std::vector<int32_t>{7, 7, 0, 7, 1, 7, 7}, false), " a b ");
  StreamDecoder stream(t, false);
  EXPECT_EQ(stream.Push(7), "");
  EXPECT_EQ(stream.Push(0), "a");
  EXPECT_EQ(stream.Push(7), "");  // may be the last one
  EXPECT_EQ(stream.Push(1), " b");
  EXPECT_EQ(stream.Flush(), "");
}

TEST(TokenizerFormat, DecodersOfTokens) {
  const auto decoded = [](const std::string& decoder, const std::vector<int32_t>& ids) {
    Json json = Base();
    json["decoder"] = Json::parse(decoder);
    json["model"]["vocab"]["<0x41)"] = 11;
    json["model"]["vocab"]["\u2840a"] = 12;
    return Make(json).Decode(ids, false);
  };
  EXPECT_EQ(decoded("null", {0, 1, 2}), "a b c");
  const std::string metaspace = R"({"type": "Metaspace", "replacement": "▁", "prepend_scheme": ")";
  EXPECT_EQ(decoded(metaspace + R"(never"})", {7, 0, 7}), " a ");
  EXPECT_EQ(decoded(metaspace + R"(first"})", {7, 0, 7}), "a ");
  EXPECT_EQ(decoded(R"({"type": "Strip", "content": "c", "start": 0, "stop": 1})", {2, 9, 0}),
            "aba");
  EXPECT_EQ(decoded(R"({"type": "Strip", "content": "a", "start": 1, "stop": 0})", {9, 0, 2}),
            "bcc");
  // Characters are stripped over several tokens where these are one text.
  EXPECT_EQ(decoded(R"({"type": "Sequence", "decoders": [{"type": "Fuse"},
                       {"type": "Strip", "content": " ", "start": 2, "stop": 0}]})",
                    {6, 6, 6, 0}),
            " a");
  // Tokens that only look like a byte, or like characters of the byte-level alphabet.
  EXPECT_EQ(decoded(R"({"type": "ByteFallback"})", {11, 0}), "<0x41)a");
  EXPECT_EQ(decoded(R"({"type": "ByteLevel"})", {12}), "\u2840a");
}

TEST(TokenizerFormat, EmptyMatchesStepOverCharacters) {
  // "dédad": there is no token "é".
  EXPECT_THAT(
      With("/normalizer", R"({"type": "Replace", "pattern": {"Regex": "c*"}, "content": "d"})")
          .Encode("éa", false),
      ElementsAre(3, 3, 0, 3));
}

TEST(TokenizerFormat, TemplatesEndTexts) {
  Json json = Base();
  Json& single = json["post_processor"]["single"];
  single.push_back(single[0]);
  EXPECT_THAT(Make(json).Encode("a"), ElementsAre(10, 0, 10));
}

// The lowest rank first, the leftmost among equals, by trying every pair in every round.
std::vector<int32_t> NaiveMerge(std::vector<int32_t> ids, const Json& model) {
  std::vector<std::string> text(model["vocab"].size());
  for (const auto& [token, id] : model["vocab"].items()) text[id.get<size_t>()] = token;
  for (bool changed = true; changed;) {
    changed = false;
    for (const Json& merge : model["merges"]) {
      for (size_t i = 0; i + 1 < ids.size(); ++i) {
        if (merge[0] != text[ids[i]] || merge[1] != text[ids[i + 1]]) continue;
        ids[i] = model["vocab"][text[ids[i]] + text[ids[i + 1]]].get<int32_t>();
        ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
        changed = true;
        break;
      }
      if (changed) break;
    }
  }
  return ids;
}

TEST(TokenizerFormat, HeapMergesAsTheDefinitionDoes) {
  Rng rng(5);
  for (int trial = 0; trial < 40; ++trial) {
    Json json = Base();
    Json& model = json["model"];
    model["vocab"] = {{"a", 0}, {"b", 1}, {"é", 2}};
    model["merges"] = Json::array();
    json["added_tokens"] = Json::array();
    json["post_processor"] = nullptr;
    std::vector<std::string> tokens = {"a", "b", "é"};
    for (int i = 0; i < 14; ++i) {
      const std::string left = tokens[rng.Below(tokens.size())];
      const std::string right = tokens[rng.Below(tokens.size())];
      if (model["vocab"].contains(left + right)) continue;
      model["vocab"][left + right] = tokens.size();
      tokens.push_back(left + right);
      // Random ranks: a later token's merge may come first.
      model["merges"].insert(model["merges"].begin() +
                                 static_cast<std::ptrdiff_t>(rng.Below(model["merges"].size() + 1)),
                             Json::array({left, right}));
    }
    std::string text;
    std::vector<int32_t> ids;
    for (int i = 0; i < 60; ++i) {
      ids.push_back(static_cast<int32_t>(rng.Below(3)));
      text += tokens[ids.back()];
    }
    EXPECT_EQ(Make(json).Encode(text, false), NaiveMerge(ids, model)) << model.dump();
  }
}

TEST(TokenizerFormat, LossyUtf8FollowsTheStandard) {
  // Unicode 15, table 3-11.
  std::string bytes = "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
  EXPECT_EQ(TakeUtf8(&bytes), "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
  EXPECT_EQ(bytes, "");
  bytes = "\xC0\x80\xC1\xBF\xF5\x80\x80\x80";  // leads that no character has
  EXPECT_EQ(TakeUtf8(&bytes), "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD");
  bytes = "\xED\xA0\x80\xF0\x9F";
  EXPECT_EQ(TakeUtf8(&bytes), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(bytes, "\xF0\x9F");  // may still become a character
}

TEST(TokenizerRefusal, EveryTruncationOfAFile) {
  const std::string text = Base().dump();
  for (size_t size = 0; size < text.size(); ++size) Refusal(text.substr(0, size));
  Tokenizer::Parse(text, "t.json");
}

TEST(TokenizerRefusal, EveryFieldOfTheWrongType) {
  const Json flat = Base().flatten();
  for (const auto& [pointer, value] : flat.items()) {
    // These are not read: transformers sets some anew, and others concern pairs of texts.
    if (pointer == "/version" || pointer == "/truncation" || pointer == "/padding") continue;
    if (pointer.find("/pair") != pointer.npos || pointer.find("type_id") != pointer.npos) continue;
    if (pointer == "/post_processor/special_tokens/<s>/id" ||
        pointer == "/post_processor/special_tokens/<s>/tokens/0") {
      continue;
    }
    Json json = Base();
    json[Json::json_pointer(pointer)] = Json::array({1.5});
    Refusal(json.dump());
  }
}

TEST(TokenizerRefusal, NamesFileAndComponent) {
  EXPECT_THAT(Refusal("/model/type", R"("WordPiece")"),
              HasSubstr("t.json: model: type WordPiece (BPE and Unigram are)"));
  EXPECT_THAT(Refusal("/model/dropout", "0.1"), HasSubstr("dropout"));
  EXPECT_THAT(Refusal("/model/unk_token", R"("<unk>")"), HasSubstr("not in the vocabulary"));
  EXPECT_THAT(Refusal("/model/byte_fallback", "true"), HasSubstr("<0x00>"));
  EXPECT_THAT(Refusal("/normalizer", R"({"type": "ByteLevel"})"),
              HasSubstr("t.json: normalizer: normalizer ByteLevel is not supported"));
  EXPECT_THAT(Refusal("/pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [
                        {"type": "Digits"}, {"type": "UnicodeScripts"}]})"),
              HasSubstr("t.json: pre_tokenizer.pretokenizers[1]: pre_tokenizer UnicodeScripts"));
  EXPECT_THAT(Refusal("/pre_tokenizer", R"({"type": "Digits", "twice": true})"),
              HasSubstr("field \"twice\""));
  EXPECT_THAT(Refusal("/decoder", R"({"type": "CTC"})"), HasSubstr("decoder CTC"));
  EXPECT_THAT(Refusal("/decoder", R"({"type": "Sequence", "decoders": [
                        {"type": "Fuse"}, {"type": "ByteFallback"}]})"),
              HasSubstr("after Fuse"));
  EXPECT_THAT(Refusal("/extra", "1"), HasSubstr("field \"extra\""));
}

TEST(TokenizerRefusal, VocabularyAndMerges) {
  for (const char* id : {"-1", "99999999999", "2097152", "1.0", "\"3\"", "null", "1e30"}) {
    EXPECT_THAT(Refusal("/model/vocab/a", id), HasSubstr("the id of token \"a\""));
    Refusal("/added_tokens/0/id", id);
  }
  EXPECT_THAT(Refusal("/model/vocab/a", "1"), HasSubstr("belongs to two tokens"));
  EXPECT_THAT(Refusal("/model/merges/0", R"("a z")"), HasSubstr("merges[0]: token \"z\""));
  EXPECT_THAT(Refusal("/model/merges/0", R"("b a")"), HasSubstr("token \"ba\""));
  for (const char* merge : {"\"ab\"", "\"a b c\"", "[\"a\"]", "[\"a\", 1]", "3", "[]"}) {
    EXPECT_THAT(Refusal("/model/merges/0", merge), HasSubstr("merges[0] must be"));
  }
  EXPECT_THAT(Refusal("/added_tokens/0/id", "3"), HasSubstr("contradicts the vocabulary"));
  EXPECT_THAT(Refusal("/added_tokens/0/content", "\"a\""), HasSubstr("contradicts"));
  EXPECT_THAT(Refusal("/added_tokens/0/content", "\"\""), HasSubstr("empty"));
  std::string twice = Base().dump();
  twice.replace(twice.find("\"b\":1"), 5, "\"a\":1");
  EXPECT_THAT(Refusal(twice), HasSubstr("stands twice"));
}

TEST(TokenizerRefusal, Templates) {
  const std::string at = "/post_processor/single";
  EXPECT_THAT(Refusal(at + "/0/SpecialToken/id", "\"</s>\""), HasSubstr("does not define"));
  EXPECT_THAT(Refusal("/post_processor/special_tokens/<s>/ids/0", "77"), HasSubstr("id 77"));
  EXPECT_THAT(Refusal("/post_processor/special_tokens/<s>/ids/0", "-1"), HasSubstr("id -1"));
  EXPECT_THAT(Refusal(at + "/1/Sequence/id", "\"B\""), HasSubstr("\"A\""));
  EXPECT_THAT(Refusal(at + "/0", R"({"Sequence": {"id": "A"}})"), HasSubstr("once"));
  EXPECT_THAT(Refusal(at, "[]"), HasSubstr("leaves out the text"));
  EXPECT_THAT(Refusal("/post_processor/type", "\"Other\""), HasSubstr("post_processor Other"));
}

// A few bytes of a file must not stand for gigabytes or hours.
TEST(TokenizerRefusal, Amplifiers) {
  Json json = Base();
  Json& processor = json["post_processor"];
  Json& ids = processor["special_tokens"]["<s>"]["ids"];
  ids = Json(std::vector<int>(256, 10));
  EXPECT_EQ(Make(json).Encode("a").size(), 257u);
  ids = Json(std::vector<int>(257, 10));
  EXPECT_THAT(Refusal(json.dump()), HasSubstr("more than 256 special tokens"));
  ids = Json(std::vector<int>(2, 10));
  for (int i = 0; i < 200; ++i)
    processor["single"].insert(processor["single"].begin(), processor["single"][0]);
  EXPECT_THAT(Refusal(json.dump()), HasSubstr("more than 256 special tokens"));
  ids = Json::array();
  const Json item = processor["single"][0];
  for (int i = 0; i < 100; ++i) processor["single"].push_back(item);
  EXPECT_THAT(Refusal(json.dump()), HasSubstr("more than 256 special tokens"));
  processor = Base()["post_processor"];
  for (int i = 0; i < 256; ++i) processor["special_tokens"][std::to_string(i)] = Json::object();
  EXPECT_THAT(Refusal(json.dump()), HasSubstr("more than 256 special tokens"));

  json = Base();
  const auto nfc = [&](size_t count) {
    const std::vector<Json> steps(count, {{"type", "NFC"}});
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", steps}};
    return json.dump();
  };
  Tokenizer::Parse(nfc(63), "t.json");  // the sequence is one, too
  EXPECT_THAT(Refusal(nfc(64)), HasSubstr("more than 64 components"));

  json = Base();
  json["model"]["vocab"][std::string(8192, 'x')] = 11;
  EXPECT_EQ(Make(json).TokenText(11).size(), 8192u);
  json["model"]["vocab"][std::string(8193, 'x')] = 12;
  EXPECT_THAT(Refusal(json.dump()), HasSubstr("a token has 8193 bytes, at most 8192"));
  json = Base();
  json["added_tokens"].push_back({{"id", 11}, {"content", std::string(8193, 'x')}});
  EXPECT_THAT(Refusal(json.dump()), HasSubstr("a token has 8193 bytes, at most 8192"));

  std::string values = "[0";
  for (int i = 0; i < 6'000'000; ++i) values += ",0";
  EXPECT_THAT(Refusal(values), HasSubstr("more than 6000000 values"));
}

TEST(TokenizerFormat, TokensThatTheNormalizerMakesTheSame) {
  Json json = Base();
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"Regex", "[d-f]"}}}, {"content", "d"}};
  int id = 11;
  for (const char* token : {"ee", "fd", "df"}) {
    json["added_tokens"].push_back({{"id", id++}, {"content", token}});
  }
  EXPECT_THAT(Make(json).Encode("dda", false), ElementsAre(11, 0));
}

TEST(TokenizerRefusal, RegularExpressions) {
  const auto refusal = [](const std::string& pattern) {
    return Refusal(
        "/pre_tokenizer",
        Json{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}}
            .dump());
  };
  for (const char* bad : {"(", "[a", "a{2,1}", "*", "\\p{Nothing}", "(?<=a+)", ""}) {
    EXPECT_THAT(refusal(bad), HasSubstr("t.json: pre_tokenizer.pattern"));
  }
  // Oniguruma, for which the files are written, reads these differently.
  for (const char* other : {"\\h", "\\w+", "a\\b", "[a&&b]", "[a[b]]", "a{1,2}+", "(?m:.)",
                            "(*LIMIT_MATCH=1)a", "\\C", "a\\K", "[]a]", "[^]a]"}) {
    EXPECT_THAT(refusal(other), HasSubstr("not supported"));
  }
  EXPECT_THAT(refusal(std::string(4'097, 'a')), HasSubstr("at most 4096"));
  // Exponential backtracking ends in an error, not in hours.
  const Tokenizer slow = With("/pre_tokenizer", R"({"type": "Split", "behavior": "Isolated",
                                                   "pattern": {"Regex": "(a|aa)+$"}})");
  EXPECT_THROW(slow.Encode(std::string(200, 'a') + "c"), Error);
}

TEST(TokenizerRefusal, DeepNesting) {
  for (const int depth : {100, 2'000, 200'000}) {
    std::string text = R"({"normalizer": )";
    for (int i = 0; i < depth; ++i) text += R"({"type": "Sequence", "normalizers": [)";
    Refusal(text);
    for (int i = 0; i < depth; ++i) text += "]}";
    Refusal(text + "}");
  }
}

}  // namespace
}  // namespace nibble
