// SPDX-License-Identifier: Apache-2.0
// The pooling that a model's files ask for, and the vector of a text.
#include "engine/pooling.h"

#include <filesystem>
#include <fstream>

#include "io/gguf_testing.h"
#include "io/io_testing.h"
#include "source/model_source.h"
#include "source/pooling_document.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Tokens = Pooling::Tokens;

constexpr const char* kModules = R"([
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "pool", "type": "sentence_transformers.models.Pooling"})";

class PoolingTest : public TemporaryDirectoryTest {
 protected:
  void Write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::ofstream(root_ / name) << text;
  }
  Pooling Load() const { return LoadPooling(root_.string()); }
  Pooling LoadMode(const std::string& text) const {
    Write("1_Pooling/config.json", text);
    return Load();
  }
  // The pooling of kModules with `more` behind.
  Pooling LoadModules(const std::string& more) const {
    Write("modules.json", kModules + more + "]");
    return Load();
  }
  Pooling LoadGguf(uint32_t type) const {
    GgufBuilder b;
    b.String("general.architecture", "qwen3");
    b.Integer("qwen3.pooling_type", type);
    b.Write(Path("m.gguf"));
    return LoadPooling(Path("m.gguf"));
  }
};

TEST_F(PoolingTest, WithoutAWordItIsTheMeanOfLengthOne) {
  const Pooling pooling = Load();
  EXPECT_EQ(pooling.problem, "");
  EXPECT_EQ(pooling.tokens, Tokens::kAll);
  EXPECT_TRUE(pooling.normalize);
  EXPECT_EQ(PoolingText(root_.string()), "");
}

TEST_F(PoolingTest, ModesAreReadInBothForms) {
  for (const auto& [text, tokens] :
       {std::pair(R"({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false})",
                  Tokens::kFirst),
        {R"({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true})", Tokens::kAll},
        {R"({"word_embedding_dimension": 8, "pooling_mode_lasttoken": true})", Tokens::kLast},
        {R"({"pooling_mode": "lasttoken", "include_prompt": true})", Tokens::kLast},
        {R"({"pooling_mode": ["cls"], "pooling_mode_mean_tokens": true})", Tokens::kFirst},
        {R"({"embedding_dimension": 8})", Tokens::kAll}}) {
    const Pooling pooling = LoadMode(text);
    EXPECT_EQ(pooling.problem, "") << text;
    EXPECT_EQ(pooling.tokens, tokens) << text;
    EXPECT_TRUE(pooling.normalize);
  }
}

TEST_F(PoolingTest, ModesThatAreNotSupportedAreNamed) {
  for (const auto& [text, name] :
       {std::pair(R"({"pooling_mode_weightedmean_tokens": true})", "\"weightedmean\""),
        {R"({"pooling_mode_mean_sqrt_len_tokens": true})", "\"mean_sqrt_len_tokens\""},
        {R"({"pooling_mode_max_tokens": true})", "\"max\""},
        {R"({"pooling_mode_cls_token": true, "pooling_mode_lasttoken": true})",
         "\"cls + lasttoken\""},
        {R"({"pooling_mode": "new"})", "\"new\""},
        {R"({"pooling_mode": []})", "\"\""}}) {
    EXPECT_THAT(LoadMode(text).problem, testing::AllOf(HasSubstr(root_.string()), HasSubstr(name)));
  }
}

TEST_F(PoolingTest, DamagedFilesAreNamed) {
  for (const char* text : {"", "{", "[]", R"({"pooling_mode_cls_token": 1})",
                           R"({"pooling_mode": 3})", R"({"pooling_mode": [3]})"}) {
    EXPECT_THAT(LoadMode(text).problem, HasSubstr("1_Pooling/config.json")) << text;
    EXPECT_THROW(GetDocument(root_.string(), kPoolingName), Error) << text;
  }
  for (const char* text : {"{}", R"([{"path": "a"}])", R"([3])", "[",
                           R"([{"type": "sentence_transformers.models.Pooling"}])",
                           R"([{"type": "sentence_transformers.models.Pooling", "path": ".."}])",
                           R"([{"type": "sentence_transformers.models.Pooling", "path": "/a"}])"}) {
    Write("modules.json", text);
    EXPECT_THAT(Load().problem, HasSubstr("modules.json")) << text;
  }
  EXPECT_THAT(LoadModules("").problem, HasSubstr("pool/config.json")) << "it is not there";
}

TEST_F(PoolingTest, ModulesSayWhereItIsAndWhatFollows) {
  Write("pool/config.json", R"({"pooling_mode_lasttoken": true})");
  Write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");  // of something else
  EXPECT_FALSE(LoadModules("").normalize);
  EXPECT_EQ(PoolingText(root_.string()), "lasttoken");
  for (const char* type : {"models.Normalize", "base.modules.normalize.Normalize"}) {
    const Pooling pooling =
        LoadModules(fmt::format(R"(, {{"path": "2", "type": "sentence_transformers.{}"}})", type));
    EXPECT_EQ(pooling.problem, "");
    EXPECT_TRUE(pooling.normalize);
    EXPECT_EQ(pooling.tokens, Tokens::kLast);
  }
  EXPECT_EQ(PoolingText(root_.string()), "lasttoken, of length 1");
  for (const char* type : {"sentence_transformers.models.Dense", "custom_st.Transformer"}) {
    const Pooling pooling = LoadModules(fmt::format(R"(, {{"path": "2_X", "type": "{}"}})", type));
    EXPECT_THAT(pooling.problem, HasSubstr(type));
    EXPECT_THAT(PoolingText(root_.string()), HasSubstr(type));
  }
  Write("modules.json", R"([{"type": "sentence_transformers.models.Transformer"}])");
  EXPECT_THAT(Load().problem, HasSubstr("\"none\""));
}

TEST_F(PoolingTest, GgufFilesSayItInAKey) {
  EXPECT_EQ(LoadGguf(1).tokens, Tokens::kAll);
  EXPECT_EQ(LoadGguf(2).tokens, Tokens::kFirst);
  EXPECT_EQ(LoadGguf(3).tokens, Tokens::kLast);
  EXPECT_EQ(LoadGguf(3).problem, "");
  EXPECT_TRUE(LoadGguf(3).normalize);
  EXPECT_THAT(LoadGguf(0).problem, HasSubstr("\"none\""));
  EXPECT_THAT(LoadGguf(4).problem, HasSubstr("\"rank\""));
  EXPECT_THAT(LoadGguf(5).problem, HasSubstr("qwen3.pooling_type 5"));
  GgufBuilder b;
  b.String("general.architecture", "qwen3");
  b.Write(Path("m.gguf"));
  EXPECT_FALSE(FindDocument(Path("m.gguf"), kPoolingName));
}

// Quantized checkpoints have pooling.json itself.
TEST_F(PoolingTest, TheDocumentItselfComesFirst) {
  Write("1_Pooling/config.json", R"({"pooling_mode_cls_token": true})");
  const std::string said = GetDocument(root_.string(), kPoolingName);
  Write("pooling.json", said);
  std::filesystem::remove_all(root_ / "1_Pooling");
  EXPECT_EQ(Load().tokens, Tokens::kFirst);
  for (const char* text :
       {"", "[]", "{}", R"({"pooling_mode": "cls"})", R"({"pooling_mode": "cls", "normalize": 1})",
        R"({"pooling_mode": "cls", "normalize": true, "scale": 2})"}) {
    Write("pooling.json", text);
    EXPECT_THAT(Load().problem, HasSubstr("pooling.json")) << text;
  }
}

TEST(PoolingVector, IsAMeanOrAState) {
  const std::vector<double> sum = {3, -4};
  EXPECT_THAT((Pooling{.normalize = false}.Vector(sum, 2)), ElementsAre(1.5f, -2));
  EXPECT_THAT((Pooling{.tokens = Tokens::kLast, .normalize = false}.Vector(sum, 2)),
              ElementsAre(3, -4));
  EXPECT_THAT((Pooling{}.Vector(sum, 2)), ElementsAre(0.6f, -0.8f));
  EXPECT_THAT((Pooling{}.Vector(std::vector<double>{0, 0}, 2)), ElementsAre(0, 0));
}

}  // namespace
}  // namespace nibble
