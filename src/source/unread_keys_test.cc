// SPDX-License-Identifier: Apache-2.0
#include "source/unread_keys.h"

#include <gmock/gmock.h>

#include <fstream>

#include "io/gguf_testing.h"
#include "io/io_testing.h"
#include "source/gguf_source.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr KeyRule kRules[] = {
    {"harmless harm*"}, {"scale", Effect::kAnswers, "0 1"}, {"causal", Effect::kRefused, "true"}};

UnreadKeys Judge(const Json& object) {
  UnreadKeys found;
  for (const auto& [key, value] : object.items()) JudgeKey(key, value, kRules, "d: ", found);
  return found;
}

TEST(UnreadKeys, GoWhereTheirRuleWantsThem) {
  const UnreadKeys found =
      Judge({{"harmless", 1}, {"harmful", 2}, {"scale", 2}, {"causal", false}, {"else", "x"}});
  EXPECT_THAT(found.answers, ElementsAre("d: scale = 2"));
  EXPECT_THAT(found.refused, ElementsAre("d: causal = false"));
  EXPECT_THAT(found.unknown, ElementsAre("d: else = \"x\""));
}

TEST(UnreadKeys, WithValuesThatSayNothingAreNotTold) {
  for (const Json& scale : {Json(1), Json(1.0), Json(0), Json({1, 1.0}), Json(nullptr),
                            Json::array(), Json::object()}) {
    const UnreadKeys found = Judge({{"scale", scale}, {"causal", true}, {"else", nullptr}});
    EXPECT_THAT(found.answers, IsEmpty()) << scale;
    EXPECT_THAT(found.refused, IsEmpty());
    EXPECT_THAT(found.unknown, IsEmpty());
  }
  EXPECT_THAT(Judge({{"scale", {1, 2}}}).answers, ElementsAre("d: scale = [1,2]"));
}

TEST(UnreadKeys, AreOneShortLineWhateverStandsThere) {
  const std::string text = std::string(100, 'x');
  EXPECT_THAT(Judge({{"else", text}}).unknown, ElementsAre("d: else"));
  EXPECT_THAT(Judge({{"a\nb", "c\nd\xff"}}).unknown,
              ElementsAre(testing::Not(testing::HasSubstr("\n"))));
}

class UnreadFileKeys : public TemporaryDirectoryTest {
 protected:
  UnreadKeys Find(const std::function<void(GgufBuilder&)>& keys, const char* architecture) const {
    GgufBuilder b;
    b.String("general.architecture", architecture);
    keys(b);
    b.Write(Path("m.gguf"));
    UnreadKeys found;
    FindUnreadDocumentKeys(Path("m.gguf"), found);
    return found;
  }
};

TEST_F(UnreadFileKeys, OfGgufAreJudgedByArchitecture) {
  const auto window = [](const char* name) {
    return [name](GgufBuilder& b) {
      b.Integer(fmt::format("{}.attention.sliding_window", name), 512);
      b.Integer(fmt::format("{}.block_count", name), 2);
      b.String("general.name", "x");
      b.String("tokenizer.ggml.pre", "x");
    };
  };
  EXPECT_THAT(Find(window("gemma2"), "gemma2").answers, IsEmpty());
  EXPECT_THAT(Find(window("llama"), "llama").answers,
              ElementsAre("llama.attention.sliding_window = 512"));
  EXPECT_THAT(Find(window("gemma2"), "llama").unknown,
              ElementsAre("gemma2.attention.sliding_window = 512", "gemma2.block_count = 2"));
}

TEST_F(UnreadFileKeys, OfGgufMayStandForAnotherNetwork) {
  const UnreadKeys found = Find(
      [](GgufBuilder& b) {
        b.Bool("llama.attention.causal", false);
        b.Integer("llama.expert_group_count", 1);
        b.Integer("llama.leading_dense_block_count", 3);
        b.Bool("llama.rope.scaling.finetuned", false);
        b.Real("llama.logit_scale", 0.5f);
        b.Numbers<uint8_t>("llama.layers_of_some_kind", 7, {1, 0, 1});
        b.Strings("llama.names", {"a", "b"});
      },
      "llama");
  EXPECT_THAT(found.refused,
              ElementsAre("llama.attention.causal = false", "llama.leading_dense_block_count = 3",
                          "llama.logit_scale = 0.5"));
  EXPECT_THAT(found.unknown, ElementsAre("llama.layers_of_some_kind = [true,false,true]",
                                         "llama.names = [\"a\",\"b\"]"));
  // Granite's key that switches RoPE off.
  const auto granite =
      Find([](GgufBuilder& b) { b.Bool("granite.rope.scaling.finetuned", false); }, "granite");
  EXPECT_THAT(granite.refused, ElementsAre("granite.rope.scaling.finetuned = false"));
}

TEST_F(UnreadFileKeys, OfHowAnswersAreDrawnAreTold) {
  const UnreadKeys found = Find(
      [](GgufBuilder& b) {
        b.Real("general.sampling.temp", 0.6f);
        b.Integer("general.sampling.mirostat", 2);
        b.Real("general.sampling.mirostat_tau", 5);
        b.Real("general.sampling.xtc_probability", 0);
        b.String("general.sampling.sequence", "top_k;temperature");
      },
      "llama");
  EXPECT_THAT(found.answers, ElementsAre("general.sampling.mirostat = 2",
                                         "general.sampling.sequence = \"top_k;temperature\""));
  EXPECT_THAT(found.unknown, IsEmpty());
}

TEST_F(UnreadFileKeys, OfADirectoryAreThoseOfItsDocuments) {
  std::ofstream(Path("generation_config.json"))
      << R"({"temperature": 1, "num_beams": 1, "bad_words_ids": [[7]], "max_length": 9, "x": 1})";
  std::ofstream(Path("tokenizer_config.json"))
      << R"({"chat_template": "x", "split_special_tokens": true, "model_max_length": 1})";
  UnreadKeys found;
  FindUnreadDocumentKeys(root_.string(), found);
  EXPECT_THAT(found.answers, ElementsAre("generation_config.json: bad_words_ids = [[7]]",
                                         "tokenizer_config.json: split_special_tokens = true"));
  EXPECT_THAT(found.unknown, ElementsAre("generation_config.json: x = 1"));
  // Parameters of sampling have no effect unless the file sets do_sample.
  for (const auto& [fields, reported] :
       {std::pair(R"({"do_sample": true, "temperature": 0.6, "top_k": 20})", 0),
        {R"({"temperature": 0.6, "top_k": 20, "top_p": 1.0})", 2},
        {R"({"do_sample": false, "temperature": 1.0, "top_k": 50, "top_p": 1.0})", 0}}) {
    std::ofstream(Path("generation_config.json")) << fields;
    found.answers.clear();
    FindUnreadDocumentKeys(root_.string(), found);
    EXPECT_EQ(found.answers.size(), static_cast<size_t>(reported + 1)) << fields;
  }
  // A network does without these documents, so damaged ones are no error.
  for (const char* damaged : {"{", "[1]", "{\"x\": 1, \"x\": 1}"}) {
    std::ofstream(Path("generation_config.json")) << damaged;
    found.unknown.clear();
    EXPECT_EQ(ErrorOf([&] { FindUnreadDocumentKeys(root_.string(), found); }), "");
    EXPECT_THAT(found.unknown, IsEmpty());
  }
}

}  // namespace
}  // namespace nibble
