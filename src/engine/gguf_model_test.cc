// SPDX-License-Identifier: Apache-2.0
// samples/tiny and known tokenizers as GGUF files, as converters write them, against the originals.
#include <cmath>

#include "base/file.h"
#include "engine/gguf_model_testing.h"
#include "io/io_testing.h"
#include "models/import/open_network.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace nibble {
namespace {

using testing::HasSubstr;

class GgufSource : public TemporaryDirectoryTest {
 protected:
  GgufBuilder Tiny(int64_t last = 6) { return TinyGguf(tiny_, last); }
  void ExpectTiny(const Network& net) {
    const ModelConfig &c = net.config, &expected = tiny_.config;
    EXPECT_EQ(c.context, expected.context);
    EXPECT_EQ(c.norm_eps, expected.norm_eps);
    EXPECT_EQ(c.ropes[0].theta, expected.ropes[0].theta);
    EXPECT_EQ(BytesOf(net.embedding.values), BytesOf(tiny_.embedding.values));
    EXPECT_EQ(BytesOf(net.head.weights.values), BytesOf(tiny_.head.weights.values));
    EXPECT_EQ(BytesOf(net.final_norm), BytesOf(tiny_.final_norm));
    ASSERT_EQ(net.layers.size(), tiny_.layers.size());
    for (size_t i = 0; i < net.layers.size(); ++i) {
      EXPECT_EQ(BytesOf(net.layers[i].vectors[LayerVector::kMlpNorm]),
                BytesOf(tiny_.layers[i].vectors[LayerVector::kMlpNorm]));
      for (const Role role : kLayerRoles) {
        EXPECT_EQ(BytesOf(net.layers[i][role].weights.values),
                  BytesOf(tiny_.layers[i][role].weights.values))
            << i << " " << RoleName(role);
      }
    }
  }
  std::string Refusal(const GgufBuilder& b) {
    b.Write(Path("bad.gguf"));
    return ErrorOf([&] {
      OpenNetwork(Path("bad.gguf"));
      Tokenizer::Load(Path("bad.gguf"));
      ChatTemplate::Load(Path("bad.gguf"));
    });
  }

  const Network tiny_ = OpenNetwork(kTinyModel);
};

TEST_F(GgufSource, IsTheModelItWasMadeOf) {
  Tiny().Write(Path("tiny.gguf"));
  ExpectTiny(OpenNetwork(Path("tiny.gguf")));
  const Tokenizer tokenizer = Tokenizer::Load(Path("tiny.gguf")),
                  original = Tokenizer::Load(kTinyModel);
  const std::string text = ReadFile(NIBBLE_SOURCE_DIR "/samples/calibration.txt", 1 << 24);
  EXPECT_EQ(tokenizer.Encode(text), original.Encode(text));
  EXPECT_EQ(tokenizer.vocab_size(), original.vocab_size());
  const auto chat = ChatTemplate::Load(Path("tiny.gguf"));
  ASSERT_TRUE(chat);
  EXPECT_EQ(chat->Render(std::vector<ChatMessage>{{"user", "hi"}}, false), "<|begin_of_text|>hi");
  const Json generation = ParseJson(GetDocument(Path("tiny.gguf"), "generation_config.json"), "");
  EXPECT_EQ(generation["eos_token_id"], Json({1}));
}

// Linears of the file have MXFP4, among them q and k, whose rows stand in RoPE's pairs.
TEST_F(GgufSource, Mxfp4StaysWhatItIs) {
  Network blocks = OpenNetwork(kTinyModel), floats = OpenNetwork(kTinyModel);
  Rng rng(6);
  for (const Role role : {Role::kQ, Role::kK, Role::kUp}) {
    Tensor& stored = blocks.layers[0][role].weights.values;
    std::vector<uint8_t> bytes;
    for (int64_t i = 0; i < stored.elements() / 32; ++i) {
      bytes.push_back(static_cast<uint8_t>(118 + rng.Below(4)));
      for (int j = 0; j < 16; ++j) bytes.push_back(static_cast<uint8_t>(rng.Below(256)));
    }
    const auto count = static_cast<int64_t>(bytes.size());
    const Tensor raw = Tensor::Of(DType::kU8, {count}, std::move(bytes));
    stored = {DType::kMxfp4, stored.shape, raw.data, raw.owner};
    floats.layers[0][role].weights.values =
        Tensor::Of(DType::kF32, stored.shape, ToF32(stored).data);
  }
  TinyGguf(blocks).Write(Path("blocks.gguf"));
  TinyGguf(floats).Write(Path("floats.gguf"));
  const Network source = OpenNetwork(Path("blocks.gguf"));
  EXPECT_EQ(source.stored_codes, "MXFP4");
  EXPECT_EQ(FormatText(source.layers[0][Role::kQ].weights.format), "4 g32 e2m1");
  const auto logits = [&](const char* file) {
    return AllLogits(*LoadModel(Path(file), "cpu", true), std::vector<int32_t>{3, 60, 0, 17, 42});
  };
  EXPECT_EQ(logits("blocks.gguf"), logits("floats.gguf"));
}

TEST_F(GgufSource, SplitFilesAreOneModel) {
  GgufBuilder first = Tiny(2), second;
  first.Integer("split.count", 2), first.Integer("split.no", 0);
  second.Integer("split.count", 2), second.Integer("split.no", 1);
  AddLayers(second, tiny_, 2, 6);
  first.Write(Path("t-00001-of-00002.gguf"));
  EXPECT_THAT(ErrorOf([&] { OpenNetwork(Path("t-00001-of-00002.gguf")); }),
              HasSubstr("t-00002-of-00002.gguf"));
  second.Write(Path("t-00002-of-00002.gguf"));
  ExpectTiny(OpenNetwork(Path("t-00001-of-00002.gguf")));
  EXPECT_THAT(ErrorOf([&] { OpenNetwork(Path("t-00002-of-00002.gguf")); }),
              HasSubstr("name the first"));
  first.Write(Path("t-00002-of-00002.gguf"));
  EXPECT_THAT(ErrorOf([&] { OpenNetwork(Path("t-00001-of-00002.gguf")); }),
              HasSubstr("split.no is not 1"));
  EXPECT_THAT(ErrorOf([&] { OpenNetwork(root_.string()); }),
              HasSubstr("name one of its files: t-00001-of-00002.gguf"));
}

TEST_F(GgufSource, ByteLevelTokenizersAreTheirTokenizerJson) {
  const std::string path = NIBBLE_SOURCE_DIR "/tests/data/tokenizers/gpt2.json";
  const Json json = ReadJsonFile(path);
  GgufBuilder b;
  AddTokenizer(b, json, "gpt2", "gpt-2");
  b.Write(Path("t.gguf"));
  const Tokenizer expected = Tokenizer::Parse(ReadFile(path, 1 << 20), path);
  const Tokenizer found = Tokenizer::Load(Path("t.gguf"));
  for (const char* text :
       {"", "Hello, world's 12345 words", "  a\n\n b\t<|endoftext|>", "na\xC3\xAF"}) {
    EXPECT_EQ(found.Encode(text), expected.Encode(text)) << text;
  }
}

// Scores are the order in which SentencePiece joins: "ab" before "bc".
TEST_F(GgufSource, SentencePieceJoinsByScore) {
  GgufBuilder b;
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  for (int i = 0; i < 256; ++i) tokens.push_back(fmt::format("<0x{:02X}>", i));
  std::vector<int32_t> types(tokens.size(), 6);
  types[0] = 2, types[1] = types[2] = 3;
  std::vector<float> scores(tokens.size(), 0);
  const auto add = [&](const char* token, float score) {
    tokens.push_back(token), types.push_back(1), scores.push_back(score);
    return static_cast<int32_t>(tokens.size()) - 1;
  };
  const int32_t space = add("\xE2\x96\x81", -9), a = add("a", -9), c = add("c", -9);
  add("b", -9);
  const int32_t bc = add("bc", -2), ab = add("ab", -1),
                space_ab =
                    add("\xE2\x96\x81"
                        "ab",
                        -3);
  b.String("tokenizer.ggml.model", "llama");
  b.Strings("tokenizer.ggml.tokens", tokens);
  b.Numbers("tokenizer.ggml.token_type", 5, types);
  b.Numbers("tokenizer.ggml.scores", 6, scores);
  b.Integer("tokenizer.ggml.bos_token_id", 1);
  b.Write(Path("t.gguf"));
  const Tokenizer t = Tokenizer::Load(Path("t.gguf"));
  EXPECT_EQ(t.Encode("abc"), (std::vector<int32_t>{1, space_ab, c}));
  EXPECT_EQ(t.Encode("aabc bc"), (std::vector<int32_t>{1, space, a, ab, c, space, bc}));
  EXPECT_EQ(t.Encode("x"), (std::vector<int32_t>{1, space, 3 + 'x'}));
  EXPECT_EQ(t.Decode(t.Encode("abc x"), true), "abc x");
}

TEST_F(GgufSource, Llama3ScalesFrequenciesByItsLaw) {
  GgufBuilder good = Tiny();
  // The factors as the converter writes them: torch's inv_freq through transformers' law, head_dim
  // 64.
  std::vector<float> divisors;
  for (int i = 0; i < 32; ++i) {
    const double frequency = std::pow(10000.0, -i / 32.0), length = 2 * M_PI / frequency;
    const double smooth = (8192 / length - 1) / 3;
    divisors.push_back(static_cast<float>(length < 2048   ? 1
                                          : length > 8192 ? 8
                                                          : 1 / ((1 - smooth) / 8 + smooth)));
  }
  const auto bytes = [&] {
    return std::string(reinterpret_cast<const char*>(divisors.data()), divisors.size() * 4);
  };
  good.Tensor("rope_freqs.weight", {32}, kF32, bytes());
  good.Write(Path("good.gguf"));
  const RopeSpec rope = OpenNetwork(Path("good.gguf")).config.ropes[0];
  EXPECT_EQ(rope.type, "llama3");
  EXPECT_EQ(rope.factor, 8);
  EXPECT_EQ(rope.original_context, 8192);
  divisors[20] *= 1.01f;
  GgufBuilder bad = Tiny();
  bad.Tensor("rope_freqs.weight", {32}, kF32, bytes());
  EXPECT_THAT(Refusal(bad), HasSubstr("rope_freqs[20]"));
}

TEST_F(GgufSource, WhatItCannotSayIsRefusedByName) {
  const auto refusal = [&](auto&& change) {
    GgufBuilder b;
    change(b);
    return Refusal(b);
  };
  EXPECT_THAT(refusal([](GgufBuilder& b) { b.String("general.architecture", "mamba"); }),
              HasSubstr("\"mamba\" is not read; this build reads llama"));
  EXPECT_THAT(refusal([](GgufBuilder&) {}), HasSubstr("general.architecture"));
  EXPECT_THAT(refusal([](GgufBuilder& b) { b.String("general.architecture", "llama"); }),
              HasSubstr("no tensor token_embd.weight"));
  GgufBuilder odd = Tiny();
  odd.Tensor("blk.0.attn_sinks.weight", {8}, kF32, std::string(32, 0));
  EXPECT_THAT(Refusal(odd), HasSubstr("blk.0.attn_sinks.weight is not part"));
  GgufBuilder missing = Tiny(5);
  EXPECT_THAT(Refusal(missing), HasSubstr("blk.5"));
  GgufBuilder scaled = Tiny();
  scaled.String("llama.rope.scaling.type", "yarn");
  EXPECT_THAT(Refusal(scaled), HasSubstr("\"yarn\""));
  GgufBuilder token = Tiny();
  token.Integer("tokenizer.ggml.unknown_token_id", 5000);
  EXPECT_THAT(Refusal(token), HasSubstr("unknown_token_id 5000 is none of 4096"));
}

TEST_F(GgufSource, BadTokenizersAreRefusedByName) {
  const auto refusal = [&](auto&& change) {
    GgufBuilder b;
    change(b);
    b.Write(Path("t.gguf"));
    return ErrorOf([&] { Tokenizer::Load(Path("t.gguf")); });
  };
  EXPECT_THAT(refusal([](GgufBuilder&) {}), HasSubstr("tokens is missing"));
  EXPECT_THAT(refusal([](GgufBuilder& b) { b.Strings("tokenizer.ggml.tokens", {"a"}); }),
              HasSubstr("tokenizer.ggml.model \"\""));
  EXPECT_THAT(refusal([](GgufBuilder& b) {
                b.Strings("tokenizer.ggml.tokens", {"a"});
                b.String("tokenizer.ggml.model", "gpt2");
              }),
              HasSubstr("pre \"default\" is not known; this build reads gpt-2"));
  EXPECT_THAT(refusal([](GgufBuilder& b) {
                b.Strings("tokenizer.ggml.tokens", {"a"});
                b.Numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 1});
              }),
              HasSubstr("token_type has 2 items, expected 1"));
  EXPECT_THAT(refusal([](GgufBuilder& b) {
                b.Strings("tokenizer.ggml.tokens", {"a"});
                b.String("tokenizer.ggml.model", "llama");
              }),
              HasSubstr("scores is missing"));
  EXPECT_THAT(refusal([](GgufBuilder& b) {
                b.Strings("tokenizer.ggml.tokens", {std::string(1 << 16, 'a')});
                b.Integer("tokenizer.ggml.bos_token_id", 0);
                b.Numbers<float>("tokenizer.ggml.scores", 6, {0});
                b.String("tokenizer.ggml.model", "llama");
              }),
              HasSubstr("a token has 65536 bytes"));
  EXPECT_THAT(refusal([](GgufBuilder& b) {
                b.Strings("tokenizer.ggml.tokens", {"a", "a"});
                b.String("tokenizer.ggml.model", "gpt2");
                b.String("tokenizer.ggml.pre", "gpt-2");
              }),
              HasSubstr("stands twice"));
}

}  // namespace
}  // namespace nibble
