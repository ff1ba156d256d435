// SPDX-License-Identifier: Apache-2.0
// Embeddings of models whose files say how they are pooled.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

// The vectors of some inputs, by a model with these files.
std::vector<std::vector<double>> VectorsOf(const std::map<std::string, std::string>& files,
                                           const Json& inputs) {
  TestService service({.files = files});
  const Json data = service.Ok("/v1/embeddings", {{"input", inputs}}).json["data"];
  std::vector<std::vector<double>> vectors;
  for (const Json& item : data) vectors.push_back(item["embedding"]);
  return vectors;
}

constexpr const char* kPooling = "1_Pooling/config.json";

TEST(Embeddings, ArePooledAsTheModelSays) {
  const Json inputs = {{5, 6, 7}, {5}, {8, 7}};
  const auto mean = VectorsOf({}, inputs),
             cls = VectorsOf({{kPooling, R"({"pooling_mode": "cls"})"}}, inputs),
             last = VectorsOf({{kPooling, R"({"pooling_mode_lasttoken": true})"}}, inputs);
  EXPECT_EQ(mean, VectorsOf({{kPooling, R"({"pooling_mode_mean_tokens": true})"}}, inputs));
  EXPECT_EQ(cls[0], cls[1]) << "of the first token, which sees no other";
  EXPECT_EQ(mean[1], cls[1]);
  EXPECT_EQ(mean[1], last[1]);
  EXPECT_NE(last[0], mean[0]);
  EXPECT_NE(last[0], cls[0]);
  const char* modules = R"([
      {"path": "", "type": "sentence_transformers.models.Transformer"},
      {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}])";
  const auto longer = VectorsOf(
      {{kPooling, R"({"pooling_mode": "lasttoken"})"}, {"modules.json", modules}}, inputs);
  double squares = 0;
  for (const double v : longer[0]) squares += v * v;
  EXPECT_GT(std::fabs(squares - 1), 0.1) << "no norm follows";
  for (size_t k = 0; k < longer[0].size(); ++k) {
    EXPECT_NEAR(longer[0][k], last[0][k] * std::sqrt(squares), 1e-5 * std::sqrt(squares));
  }
}

TEST(Embeddings, AreAllThatAnUnknownPoolingRefuses) {
  for (const auto& [text, name] : {std::pair(R"({"pooling_mode": "max"})", "\"max\""),
                                   {R"({"pooling_mode_lasttoken": "x"})", kPooling}}) {
    TestService service({.files = {{kPooling, text}}});
    const Reply refused = service.Post("/v1/embeddings", {{"input", "Hi"}});
    EXPECT_EQ(refused.status(), 400);
    const std::string message = refused.json["error"]["message"];
    EXPECT_THAT(message, testing::HasSubstr(name));
    EXPECT_THAT(message, testing::Not(testing::HasSubstr("\n")));
    service.Ok("/v1/chat/completions",
               {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}, {"max_tokens", 2}});
  }
}

// Qwen3-Embedding's tokenizer appends such a token.
TEST(Embeddings, EndWithTheTokenThatTheTokenizerAppends) {
  Json tokenizer = Json::parse(std::ifstream(std::string(kTinyModel) + "/tokenizer.json"));
  const std::string end = "<|end_of_text|>";
  const int32_t id = Tokenizer::Load(kTinyModel).TokenId(end).value();
  tokenizer["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"Sequence", {{"id", "A"}, {"type_id", 0}}}},
        {{"SpecialToken", {{"id", end}, {"type_id", 0}}}}}},
      {"pair", Json::array()},
      {"special_tokens", {{end, {{"id", end}, {"ids", {id}}, {"tokens", {end}}}}}}};
  std::vector<int32_t> ids = Tokenizer::Load(kTinyModel).Encode("The river", false);
  ids.push_back(id);
  const Json inputs = {"The river", ids};
  const auto vectors = VectorsOf(
      {{"tokenizer.json", tokenizer.dump()}, {kPooling, R"({"pooling_mode_lasttoken": true})"}},
      inputs);
  EXPECT_EQ(vectors[0], vectors[1]);
}

}  // namespace
}  // namespace nibble::serve
