// SPDX-License-Identifier: Apache-2.0
// Tests config.json and generation_config.json of GGUF files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "io/gguf_testing.h"
#include "io/io_testing.h"
#include "source/gguf_source.h"

namespace nibble {
namespace {

using testing::HasSubstr;

class GgufDocuments : public TemporaryDirectoryTest {
 protected:
  using Keys = std::function<void(GgufBuilder&)>;
  GgufFile Open(const Keys& keys) const {
    GgufBuilder b;
    keys(b);
    b.Write(Path("m.gguf"));
    return GgufFile(Path("m.gguf"));
  }
  // Ids that end a text in a file with these tokens.
  Json Ends(const std::string& architecture, const std::vector<std::string>& tokens,
            const Keys& keys) const {
    const GgufFile file = Open([&](GgufBuilder& b) {
      b.String("general.architecture", architecture);
      b.Strings("tokenizer.ggml.tokens", tokens);
      keys(b);
    });
    return GgufGenerationConfig(file).value("eos_token_id", Json());
  }
  Json Config(const std::string& architecture, const Keys& keys, int layers = 1) const {
    std::vector<GgufFile> files;
    files.push_back(Open([&](GgufBuilder& b) {
      b.String("general.architecture", architecture);
      const std::string prefix = architecture + ".";
      for (const auto& [name, value] : {std::pair("attention.head_count", 4),
                                        {"embedding_length", 64},
                                        {"block_count", layers},
                                        {"context_length", 4096}}) {
        b.Integer(prefix + name, static_cast<uint32_t>(value));
      }
      keys(b);
      b.Tensor("token_embd.weight", {8, 64}, 0, std::string(8 * 64 * 4, '\0'));
    }));
    return GgufConfig(files);
  }
};

TEST_F(GgufDocuments, AllTokensThatEndATurnEndAnAnswer) {
  const std::vector<std::string> tokens = {"a", "</s>", "<|end|>", "<|im_end|>", "b"};
  const auto eos = [](GgufBuilder& b) { b.Integer("tokenizer.ggml.eos_token_id", 1); };
  EXPECT_EQ(Ends("llama", {"a", "</s>"}, eos), Json({1}));
  EXPECT_EQ(Ends("phi3", tokens, eos), Json({1, 2, 3})) << "by their texts";
  EXPECT_EQ(Ends("gpt-oss", {"a", "<|return|>", "<|end|>", "<|call|>"}, eos), Json({1, 3}))
      << "<|end|> ends a message of several";
  EXPECT_EQ(Ends("llama", {"a", "b", "c", "d"},
                 [](GgufBuilder& b) {
                   b.Integer("tokenizer.ggml.eos_token_id", 1);
                   b.Integer("tokenizer.ggml.eot_token_id", 1);
                   b.Integer("tokenizer.ggml.eom_token_id", 3);
                   b.Numbers<uint32_t>("tokenizer.ggml.eos_token_ids", 4, {2, 3});
                 }),
            Json({1, 3, 2}));
}

TEST_F(GgufDocuments, EndsThatAreNoTokensAreRefused) {
  for (const char* name : {"bos", "eos", "eot", "eom"}) {
    const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
    const auto error = ErrorOf([&] {
      Ends("llama", {"a", "b"}, [&](GgufBuilder& b) { b.Integer(key, UINT32_MAX); });
    });
    EXPECT_THAT(error, HasSubstr(key + " 4294967295 is none of 2 tokens"));
    EXPECT_THAT(ErrorOf([&] {
                  Ends("llama", {"a"}, [&](GgufBuilder& b) { b.Numbers<uint32_t>(key, 4, {0}); });
                }),
                HasSubstr(key + " must be one value"));
  }
  EXPECT_THAT(ErrorOf([&] {
                Ends("llama", {"a"}, [](GgufBuilder& b) {
                  b.Numbers<uint32_t>("tokenizer.ggml.eos_token_ids", 4, {0, 7});
                });
              }),
              HasSubstr("eos_token_ids 7 is none of 1 tokens"));
}

TEST_F(GgufDocuments, AnswersAreDrawnAsAFileSays) {
  const auto generation = [&](const Keys& keys) { return GgufGenerationConfig(Open(keys)); };
  EXPECT_EQ(generation([](GgufBuilder& b) {
              b.Key("general.sampling.top_k", 5, GgufBuilder::Raw<int32_t>(20));
              b.Real("general.sampling.top_p", 0.95f);
              b.Real("general.sampling.temp", 0.6f);
              b.Real("general.sampling.min_p", 0.01f);
              b.Real("general.sampling.penalty_repeat", 1.05f);
            }),
            Json({{"temperature", 0.6},
                  {"top_p", 0.95},
                  {"min_p", 0.01},
                  {"repetition_penalty", 1.05},
                  {"top_k", 20},
                  {"do_sample", true}}));
  EXPECT_EQ(generation([](GgufBuilder& b) {
              b.Key("general.sampling.top_k", 5, GgufBuilder::Raw<int32_t>(-1));
            }),
            Json({{"top_k", 0}, {"do_sample", true}}));
  EXPECT_FALSE(generation([](GgufBuilder& b) {
                 b.Real("general.sampling.penalty_repeat", 1.1f);
               }).contains("do_sample"));
}

TEST_F(GgufDocuments, ScalesOfPositions) {
  EXPECT_EQ(
      Config("llama", [](GgufBuilder& b) { b.Real("llama.rope.scale_linear", 4); })["rope_scaling"],
      Json({{"rope_type", "linear"}, {"factor", 4.0}}))
      << "the key of 2023";
  for (const float factor : {0.0f, 1.0f, 8.0f}) {
    EXPECT_EQ(Config("llama",
                     [&](GgufBuilder& b) {
                       b.Real("llama.rope.scaling.factor", factor);
                     })["rope_scaling"],
              factor > 1 ? Json({{"rope_type", "linear"}, {"factor", 8.0}}) : Json());
  }
  const auto yarn = [&](const Keys& more) {
    return Config("llama", [&](GgufBuilder& b) {
      b.String("llama.rope.scaling.type", "yarn");
      b.Real("llama.rope.scaling.factor", 4);
      b.Integer("llama.rope.scaling.original_context_length", 1024);
      more(b);
    })["rope_scaling"];
  };
  const Json plain = yarn([](GgufBuilder&) {});
  EXPECT_FALSE(plain.contains("beta_fast") || plain.contains("attention_factor"));
  const Json full = yarn([](GgufBuilder& b) {
    b.Real("llama.rope.scaling.yarn_beta_fast", 16);
    b.Real("llama.rope.scaling.yarn_beta_slow", 2);
    b.Real("llama.rope.scaling.yarn_attn_factor", 0.5);
    b.Real("llama.rope.scaling.yarn_ext_factor", 1);
  });
  EXPECT_EQ(full["beta_fast"], 16.0);
  EXPECT_EQ(full["beta_slow"], 2.0);
  EXPECT_DOUBLE_EQ(full["attention_factor"], 0.5 * (0.1 * std::log(4.0) + 1));
  EXPECT_THAT(ErrorOf([&] {
                yarn([](GgufBuilder& b) { b.Real("llama.rope.scaling.yarn_ext_factor", 0.5); });
              }),
              HasSubstr("yarn_ext_factor = 0.5 is not understood"));
}

TEST_F(GgufDocuments, APatternOfWordsThatIsNotNamedIsTheArchitectures) {
  const auto tokenizer = [&](const std::string& architecture, const char* pre) {
    return GgufTokenizer(Open([&](GgufBuilder& b) {
      b.String("general.architecture", architecture);
      b.String("tokenizer.ggml.model", "gpt2");
      b.Strings("tokenizer.ggml.tokens", {"a", "b"});
      b.Integer("tokenizer.ggml.bos_token_id", 0);
      if (pre != nullptr) b.String("tokenizer.ggml.pre", pre);
    }));
  };
  for (const auto& [architecture, pre] : {std::pair("llama", "llama-bpe"),
                                          {"qwen2", "qwen2"},
                                          {"qwen3moe", "qwen2"},
                                          {"granite", "refact"},
                                          {"gpt-oss", "gpt-4o"}}) {
    for (const char* none : {static_cast<const char*>(nullptr), "default"}) {
      testing::internal::CaptureStderr();
      EXPECT_EQ(tokenizer(architecture, none), tokenizer(architecture, pre)) << architecture;
      EXPECT_THAT(testing::internal::GetCapturedStderr(),
                  HasSubstr(fmt::format("\"{}\" is assumed", pre)));
    }
  }
  EXPECT_EQ(tokenizer("granite", "refact"), tokenizer("granite", "starcoder"));
  EXPECT_THAT(ErrorOf([&] { tokenizer("olmo2", "default"); }), HasSubstr("\"default\""));
  EXPECT_THAT(ErrorOf([&] { tokenizer("llama", "no-such"); }), HasSubstr("\"no-such\""));
}

TEST_F(GgufDocuments, AnEmptyTokenIsSaid) {
  testing::internal::CaptureStderr();
  GgufTokenizer(Open([&](GgufBuilder& b) {
    b.String("general.architecture", "llama");
    b.String("tokenizer.ggml.model", "gpt2");
    b.String("tokenizer.ggml.pre", "llama-bpe");
    b.Strings("tokenizer.ggml.tokens", {"a", "", "b"});
    b.Integer("tokenizer.ggml.bos_token_id", 0);
  }));
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("token 1 of tokenizer.ggml.tokens"));
}

TEST_F(GgufDocuments, WhatAFileLeavesOutIsAsItsProgramHasIt) {
  const Json config = Config("llama", [](GgufBuilder&) {});
  EXPECT_EQ(config["num_key_value_heads"], 4);
  EXPECT_EQ(config["rope_theta"], 10000);
  EXPECT_EQ(config["rms_norm_eps"], 1e-6);
  EXPECT_EQ(config["rope_scaling"], Json());
}

// Only in the 27B models scores are scaled by hidden_size / heads.
TEST_F(GgufDocuments, TheScaleOfGemmasScores) {
  const auto scale = [&](const std::string& architecture, int layers) {
    return Config(
        architecture,
        [&](GgufBuilder& b) {
          b.Integer(architecture + ".attention.sliding_window", 512);
          b.Integer(architecture + ".attention.key_length", 32);
        },
        layers)["query_pre_attn_scalar"];
  };
  EXPECT_EQ(scale("gemma2", 46), 16);
  EXPECT_EQ(scale("gemma2", 62), 32);
  EXPECT_EQ(scale("gemma3", 62), 16);
  EXPECT_EQ(scale("gemma3", 46), 32);
}

TEST_F(GgufDocuments, GptOssTurnsUnboundedFrequencies) {
  for (const std::string architecture : {"gpt-oss", "llama"}) {
    const Json scaling = Config(architecture, [&](GgufBuilder& b) {
      b.String(architecture + ".rope.scaling.type", "yarn");
      b.Real(architecture + ".rope.scaling.factor", 32);
      b.Integer(architecture + ".rope.scaling.original_context_length", 4096);
    })["rope_scaling"];
    EXPECT_EQ(scaling.value("truncate", true), architecture == "llama");
  }
}

TEST_F(GgufDocuments, TemplatesHaveTheirNames) {
  const auto templates = [&](bool plain) {
    return GgufTokenizerConfig(Open([&](GgufBuilder& b) {
      if (plain) b.String("tokenizer.chat_template", "plain");
      b.String("tokenizer.chat_template.tool_use", "tools");
    }))["chat_template"];
  };
  EXPECT_EQ(templates(true), Json::parse(R"([{"name": "default", "template": "plain"},
                                             {"name": "tool_use", "template": "tools"}])"));
  EXPECT_EQ(templates(false)[0], Json::parse(R"({"name": "default", "template": "tools"})"));
}

TEST_F(GgufDocuments, TokensThatAreNotMadeByMerging) {
  const Json tokenizer = Json::parse(GgufTokenizer(Open([](GgufBuilder& b) {
    b.String("tokenizer.ggml.model", "gpt2");
    b.String("tokenizer.ggml.pre", "gpt-2");
    b.Strings("tokenizer.ggml.tokens", {"a", "<unk>", "<s>", "mine", "gone"});
    b.Numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 2, 3, 4, 5});
  })));
  std::vector<std::pair<int, bool>> added;
  for (const Json& token : tokenizer["added_tokens"]) {
    added.emplace_back(token["id"], token["special"]);
  }
  EXPECT_EQ(added, (std::vector<std::pair<int, bool>>{{1, true}, {2, true}, {3, false}}));
}

TEST_F(GgufDocuments, TheWindowOfPhi3) {
  const auto window = [&](uint32_t tokens) {
    return Config("phi3",
                  [&](GgufBuilder& b) { b.Integer("phi3.attention.sliding_window", tokens); })
        .value("sliding_window", 0);
  };
  EXPECT_EQ(window(2047), 2047);
  EXPECT_EQ(window(0), 0) << "none";
}

// Ollama's files of Gemma 3 have no bases of RoPE, or have them under other keys.
TEST_F(GgufDocuments, BasesOfGemmasPositions) {
  const auto bases = [&](const std::string& architecture, const Keys& keys) {
    const Json config = Config(architecture, [&](GgufBuilder& b) {
      b.Integer(architecture + ".attention.sliding_window", 512);
      keys(b);
    });
    return std::pair<double, double>(config["rope_theta"], config["rope_local_base_freq"]);
  };
  const auto none = [](GgufBuilder&) {};
  EXPECT_EQ(bases("gemma3", none), std::pair(1e6, 1e4));
  EXPECT_EQ(bases("gemma2", none), std::pair(1e4, 1e4));
  EXPECT_EQ(bases("gemma3",
                  [](GgufBuilder& b) {
                    b.Real("gemma3.rope.global.freq_base", 5e5f);
                    b.Real("gemma3.rope.local.freq_base", 2e4f);
                  }),
            std::pair(5e5, 2e4));
  EXPECT_EQ(bases("gemma3",
                  [](GgufBuilder& b) {
                    b.Real("gemma3.rope.freq_base", 8e5f);
                    b.Real("gemma3.rope.freq_base_swa", 3e4f);
                  }),
            std::pair(8e5, 3e4));
}

TEST_F(GgufDocuments, LayersWithAWindowAreTheFiles) {
  const auto types = [&](const std::string& architecture, const Keys& pattern) {
    return Config(
        architecture,
        [&](GgufBuilder& b) {
          b.Integer(architecture + ".attention.sliding_window", 512);
          pattern(b);
        },
        4);
  };
  const std::string key = "gemma3.attention.sliding_window_pattern";
  const std::string sees_all = "full_attention", window = "sliding_attention";
  EXPECT_FALSE(types("gemma3", [](GgufBuilder&) {}).contains("layer_types"));
  EXPECT_EQ(types("gemma3", [&](GgufBuilder& b) { b.Integer(key, 3); })["layer_types"],
            Json({window, window, sees_all, window}));
  EXPECT_EQ(types("gemma3",
                  [&](GgufBuilder& b) {
                    b.Numbers<uint8_t>(key, 7, {0, 1, 1, 0});
                  })["layer_types"],
            Json({sees_all, window, window, sees_all}));
  EXPECT_EQ(types("gemma2",
                  [&](GgufBuilder& b) {
                    b.Numbers<uint32_t>("gemma2.attention.sliding_window_pattern", 4, {1, 0, 0, 1});
                  })["layer_types"],
            Json({window, sees_all, sees_all, window}));
  EXPECT_THAT(ErrorOf([&] {
                types("gemma3", [&](GgufBuilder& b) { b.Numbers<uint8_t>(key, 7, {0, 1}); });
              }),
              HasSubstr("has 2 items for 4 layers"));
  EXPECT_THAT(ErrorOf([&] {
                types("gemma3", [&](GgufBuilder& b) { b.Strings(key, {"a", "b", "c", "d"}); });
              }),
              HasSubstr("must be true or false"));
}

}  // namespace
}  // namespace nibble
