// SPDX-License-Identifier: Apache-2.0
// Damaged GGUF files: a model of one layer and eight tokens in which one key, one tensor or a few
// bytes are wrong.
#include <cmath>

#include "io/gguf_testing.h"
#include "tests/e2e_malformed_testing.h"

namespace nibble {
namespace {

using B = GgufBuilder;

constexpr uint32_t kU8 = 0, kU32 = 4, kI32 = 5, kF32 = 6, kBool = 7, kString = 8, kArray = 9,
                   kU64 = 10;
constexpr uint32_t kTensorF32 = 0, kTensorQ4_0 = 2, kTensorQ2K = 10;
constexpr uint64_t kWidth = 64, kTokens = 8, kMany = 1 << 24;

std::string Array(uint32_t type, uint64_t count, const std::string& items) {
  return B::Raw(type) + B::Raw(count) + items;
}
template <typename T>
std::string Repeat(T value, uint64_t count) {
  std::string bytes;
  for (uint64_t i = 0; i < count; ++i) bytes += B::Raw(value);
  return bytes;
}
std::string Tokens(const std::string& last) {
  std::string items;
  for (const char* token : {"<unk>", "<s>", "</s>", "\xE2\x96\x81", "a", "b", "c"}) {
    items += B::Text(token);
  }
  return Array(kString, kTokens, items + B::Text(last));
}
std::string Types(int32_t last) {
  return Array(kI32, kTokens,
               B::Raw(2) + B::Raw(3) + B::Raw(3) + Repeat(1, kTokens - 4) + B::Raw(last));
}

struct GgufKey {
  std::string name;
  uint32_t type;
  std::string value;
};

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> shape;
  uint32_t type = kTensorF32;
  float value = 0.5f;  // of all elements
};

struct GgufModel {
  std::vector<GgufKey> keys = {
      {"general.architecture", kString, B::Text("llama")},
      {"llama.block_count", kU32, B::Raw(1u)},
      {"llama.context_length", kU32, B::Raw(64u)},
      {"llama.embedding_length", kU32, B::Raw(64u)},
      {"llama.feed_forward_length", kU32, B::Raw(64u)},
      {"llama.attention.head_count", kU32, B::Raw(2u)},
      {"tokenizer.ggml.model", kString, B::Text("llama")},
      {"tokenizer.ggml.tokens", kArray, Tokens("d")},
      {"tokenizer.ggml.token_type", kArray, Types(1)},
      {"tokenizer.ggml.scores", kArray, Array(kF32, kTokens, Repeat(-1.0f, kTokens))},
      {"tokenizer.ggml.bos_token_id", kU32, B::Raw(1u)}};
  std::vector<GgufTensor> tensors = {{"token_embd.weight", {kTokens, kWidth}},
                                     {"output.weight", {kTokens, kWidth}},
                                     {"output_norm.weight", {kWidth}},
                                     {"blk.0.attn_norm.weight", {kWidth}},
                                     {"blk.0.ffn_norm.weight", {kWidth}},
                                     {"blk.0.attn_q.weight", {kWidth, kWidth}},
                                     {"blk.0.attn_k.weight", {kWidth, kWidth}},
                                     {"blk.0.attn_v.weight", {kWidth, kWidth}},
                                     {"blk.0.attn_output.weight", {kWidth, kWidth}},
                                     {"blk.0.ffn_gate.weight", {kWidth, kWidth}},
                                     {"blk.0.ffn_up.weight", {kWidth, kWidth}},
                                     {"blk.0.ffn_down.weight", {kWidth, kWidth}}};

  B Build() const {
    B b;
    for (const GgufKey& key : keys) b.Key(key.name, key.type, key.value);
    for (const GgufTensor& tensor : tensors) {
      uint64_t elements = 1;
      for (const uint64_t extent : tensor.shape) elements *= extent;
      b.Tensor(tensor.name, tensor.shape, tensor.type, Repeat(tensor.value, elements));
    }
    return b;
  }
  std::string Bytes() const { return Build().Bytes(); }
};

// Replaces the item with the same name, if there is one, and puts `item` behind all others.
template <typename T>
void Put(const T& item, std::vector<T>* list) {
  const auto same = [&](const T& other) { return other.name == item.name; };
  std::erase_if(*list, same);
  list->push_back(item);
}

struct BadGgufKey {
  GgufKey key;
  const char* what;
};

BadGgufKey BadNumber(const char* name, uint32_t value, const char* what) {
  return {{name, kU32, B::Raw(value)}, what};
}

std::vector<BadGgufKey> BadModelKeys() {
  return {
      {{"general.architecture", kString, B::Text("mamba")}, "\"mamba\" is not read"},
      {{"general.architecture", kString, B::Text("\x1B[2J")}, "general.architecture"},
      {{"general.architecture", kU32, B::Raw(1u)}, "general.architecture must be a string"},
      BadNumber("general.alignment", 0, "general.alignment 0"),
      BadNumber("general.alignment", 24, "general.alignment 24"),
      BadNumber("split.count", 3, "name the first"),
      BadNumber("split.count", ~0u, "name the first"),
      BadNumber("llama.block_count", 0, "num_hidden_layers"),
      BadNumber("llama.block_count", 2, "blk.1."),
      BadNumber("llama.block_count", ~0u, "num_hidden_layers"),
      {{"llama.block_count", kF32, B::Raw(1.0f)}, "llama.block_count must be an integer"},
      {{"llama.block_count", kU64, B::Raw(~uint64_t{0})}, "llama.block_count must be an integer"},
      {{"llama.block_count", kArray, Array(kU32, 1, B::Raw(1u))}, "must be one value"},
      BadNumber("llama.context_length", 0, "max_position_embeddings"),
      BadNumber("llama.embedding_length", 0, "hidden_size"),
      BadNumber("llama.embedding_length", 128, "token_embd.weight has shape"),
      {{"llama.embedding_length", kI32, B::Raw(-64)}, "hidden_size"},
      BadNumber("llama.feed_forward_length", 65, "has shape"),
      {{"llama.feed_forward_length", kString, B::Text("64")}, "must be an integer"},
      BadNumber("llama.attention.head_count", 0, "num_attention_heads"),
      BadNumber("llama.attention.head_count", 3, "head_dim = 21"),
      BadNumber("llama.attention.head_count_kv", 0, "cannot share 0"),
      BadNumber("llama.attention.head_count_kv", 1, "blk.0.attn_k.weight has shape"),
      BadNumber("llama.attention.key_length", 0, "head_dim = 0"),
      BadNumber("llama.rope.dimension_count", 7, "partial_rotary_factor"),
      {{"llama.attention.layer_norm_rms_epsilon", kF32, B::Raw(NAN)}, "must be a number"},
      {{"llama.attention.layer_norm_rms_epsilon", kF32, B::Raw(-1.0f)}, "rms_norm_eps"},
      {{"llama.rope.freq_base", kF32, B::Raw(0.0f)}, "rope_theta"},
      {{"llama.rope.freq_base", kBool, B::Raw('\1')}, "must be a number"},
      {{"llama.rope.scaling.type", kString, B::Text("magic")}, "\"magic\""},
      {{"llama.rope.scaling.type", kString, B::Text("linear")}, "with a factor"},
      BadNumber("llama.expert_count", 8, "llama.expert_used_count is missing"),
  };
}

std::vector<BadGgufKey> BadTokenizerKeys() {
  return {
      {{"tokenizer.ggml.model", kString, B::Text("")}, "tokenizer.ggml.model \"\""},
      {{"tokenizer.ggml.model", kBool, B::Raw('\1')}, "tokenizer.ggml.model must be a string"},
      {{"tokenizer.ggml.tokens", kArray, Array(kString, 0, "")}, "tokens is missing"},
      {{"tokenizer.ggml.tokens", kArray, Array(kU32, 1, B::Raw(1u))}, "must be strings"},
      {{"tokenizer.ggml.tokens", kArray, Tokens("a")}, "stands twice"},
      {{"tokenizer.ggml.tokens", kArray, Tokens("\xFF")}, "tokens is not valid UTF-8"},
      {{"tokenizer.ggml.tokens", kArray, Tokens(std::string(1 << 14, 'x'))}, "16384 bytes"},
      {{"tokenizer.ggml.token_type", kArray, Types(0)}, "type 0 of piece 7"},
      {{"tokenizer.ggml.token_type", kArray, Types(7)}, "type 7 of piece 7"},
      {{"tokenizer.ggml.token_type", kArray, Types(-1)}, "type -1 of piece 7"},
      {{"tokenizer.ggml.token_type", kArray, Types(2)}, "2 pieces are the unknown one"},
      {{"tokenizer.ggml.token_type", kArray, Array(kI32, 1, B::Raw(1))}, "has 1 items, expected 8"},
      {{"tokenizer.ggml.token_type", kArray, Array(kU8, kMany, std::string(kMany, '\1'))},
       "has 16777216 items, expected 8"},
      {{"tokenizer.ggml.token_type", kF32, B::Raw(1.0f)}, "token_type must be an array"},
      {{"tokenizer.ggml.scores", kArray, Array(kF32, 2, Repeat(0.0f, 2))},
       "has 2 items, expected 8"},
      {{"tokenizer.ggml.scores", kArray, Array(kF32, 8, Repeat(NAN, 8))}, "must be numbers"},
      {{"tokenizer.ggml.scores", kArray, Array(kF32, 8, Repeat(-INFINITY, 8))}, "must be numbers"},
      BadNumber("tokenizer.ggml.bos_token_id", 8, "bos_token_id 8 is none of 8 tokens"),
      {{"tokenizer.ggml.bos_token_id", kI32, B::Raw(-1)}, "bos_token_id -1 is none of 8 tokens"},
      {{"tokenizer.ggml.add_bos_token", kBool, B::Raw('\2')}, "must be true or false"},
      {{"tokenizer.ggml.add_space_prefix", kString, B::Text("")}, "must be true or false"},
  };
}

struct BadTensor {
  GgufTensor tensor;
  const char* what;
};

std::vector<BadTensor> BadTensors() {
  return {{{"blk.0.attn_q.weight", {kWidth, 32}}, "has shape [64, 32], expected [64, 64]"},
          {{"blk.0.attn_q.weight", {kWidth}}, "has shape [64], expected [64, 64]"},
          {{"blk.0.attn_q.weight", {kWidth, kWidth, 1}}, "has shape [64, 64, 1]"},
          {{"blk.0.attn_q.weight", {kWidth, kWidth}, kTensorQ2K}, "tensor type 10 is not read"},
          {{"blk.0.attn_q.weight", {kWidth, kWidth}, 1u << 31}, "tensor type 2147483648"},
          {{"blk.0.attn_q.weight", {16, 16}, kTensorQ4_0}, "rows of 16 are not whole blocks"},
          {{"blk.0.attn_norm.weight", {kWidth, 1}}, "has shape [64, 1]"},
          {{"blk.0.attn_norm.weight", {kWidth}, kTensorF32, NAN}, "blk.0.attn_norm.weight"},
          {{"output_norm.weight", {kWidth}, kTensorF32, -INFINITY}, "output_norm.weight"},
          {{"token_embd.weight", {kTokens, kWidth}, kTensorF32, NAN}, "token_embd.weight"},
          {{"token_embd.weight", {0, kWidth}}, "an extent of 0"},
          {{"blk.0.attn_sinks.weight", {2}}, "is not part of a llama model"},
          {{"blk.1.attn_norm.weight", {kWidth}}, "is not part of a llama model"},
          {{"rope_freqs.weight", {16}, kTensorF32, NAN}, "rope_freqs[0]"},
          {{"rope_factors_long.weight", {16}}, "no tensor rope_factors_short.weight"},
          {{std::string(2000, 'n'), {1}}, "is not a plain name"},
          {{"a\nb", {1}}, "is not a plain name"}};
}

// Tensor infos without data and keys that reach beyond the file, added behind good ones.
struct Addition {
  const char* name;
  void (*add)(B& b);
  const char* what;
};

const Addition kAdditions[] = {
    {"data at 0", [](B& b) { b.Info("t", {8}, kTensorF32, 0); }, "expected at"},
    {"data at 32", [](B& b) { b.Info("t", {8}, kTensorF32, 32); }, "expected at"},
    {"data at 1", [](B& b) { b.Info("t", {8}, kTensorF32, 1); }, "expected at"},
    {"data behind the file", [](B& b) { b.Info("t", {8}, kTensorF32, 1 << 30); }, "expected at"},
    {"data at 2^64 - 1", [](B& b) { b.Info("t", {8}, kTensorF32, ~uint64_t{0}); }, "expected at"},
    {"no dimensions", [](B& b) { b.Info("t", {}, kTensorF32, 0); }, "0 dimensions"},
    {"nine dimensions", [](B& b) { b.Info("t", std::vector<uint64_t>(9, 1), kTensorF32, 0); },
     "9 dimensions"},
    {"2^64 - 1 elements", [](B& b) { b.Info("t", {~uint64_t{0}}, kTensorF32, 0); }, "an extent"},
    {"2^80 elements",
     [](B& b) { b.Info("t", std::vector<uint64_t>(2, 1ull << 40), kTensorF32, 0); }, "too large"},
    {"tensor twice", [](B& b) { b.Info("output.weight", {8}, kTensorF32, 0); }, "stands twice"},
    {"key twice", [](B& b) { b.String("general.architecture", "llama"); }, "stands twice"},
    {"key without a name", [](B& b) { b.Integer("", 0); }, "is not a plain name"},
    {"value type 13", [](B& b) { b.Key("k", 13, ""); }, "k: value type 13"},
    {"array of arrays", [](B& b) { b.Key("k", kArray, Array(kArray, 1, "")); }, "k: value type 9"},
    {"2^64 - 1 numbers", [](B& b) { b.Key("k", kArray, Array(kU32, ~uint64_t{0}, "")); },
     "do not fit into the file"},
    {"2^64 - 1 strings", [](B& b) { b.Key("k", kArray, Array(kString, ~uint64_t{0}, "")); },
     "truncated"},
    {"2^64 - 1 bytes", [](B& b) { b.Key("k", kString, B::Raw(~uint64_t{0})); }, "truncated"},
    {"text that is no UTF-8", [](B& b) { b.String("k", "\xC3("); }, "k is not valid UTF-8"},
};

class MalformedGguf : public MalformedFormat {
 protected:
  void SetUp() override {
    MalformedFormat::SetUp();
    Spill(Path("m.gguf"), GgufModel().Bytes());
    ExpectAccepted(Inspect());
    ExpectAccepted(Tokenize());
  }
  // `inspect` reads everything but the tokenizer, `tokenize` only the tokenizer.
  Arguments Inspect() const { return {"inspect", Path("m.gguf")}; }
  Arguments Tokenize() const { return {"tokenize", Path("m.gguf"), "--text", "a"}; }
  void Expect(const std::string& name, const std::string& bytes, const Arguments& arguments,
              const std::string& what) {
    Spill(Path("m.gguf"), bytes);
    ExpectRefused(name, bytes, arguments, what);
  }
  void ExpectKeys(const std::vector<BadGgufKey>& keys, const Arguments& arguments) {
    for (const auto& [key, what] : keys) {
      GgufModel model;
      Put(key, &model.keys);
      Expect(key.name + ": " + what, model.Bytes(), arguments, what);
    }
  }
};

TEST_F(MalformedGguf, KeysAreRefusedInOneLine) {
  ExpectKeys(BadModelKeys(), Inspect());
  ExpectKeys(BadTokenizerKeys(), Tokenize());
  // Keys without which there is no model.
  for (size_t i = 0; i <= 5; ++i) {
    GgufModel model;
    const std::string name = model.keys[i].name;
    if (name == "llama.feed_forward_length") continue;  // a mixture has another key for it
    model.keys.erase(model.keys.begin() + static_cast<ptrdiff_t>(i));
    Expect("no " + name, model.Bytes(), Inspect(), name);
  }
}

TEST_F(MalformedGguf, TensorsAreRefusedInOneLine) {
  for (const auto& [tensor, what] : BadTensors()) {
    GgufModel model;
    Put(tensor, &model.tensors);
    Expect(tensor.name + ": " + what, model.Bytes(), Inspect(), what);
  }
  for (const auto& [name, add, what] : kAdditions) {
    B b = GgufModel().Build();
    add(b);
    Expect(name, b.Bytes(), Inspect(), what);
  }
  for (size_t i = 0; i < GgufModel().tensors.size(); ++i) {
    GgufModel model;
    const std::string name = model.tensors[i].name;
    if (name == "output.weight") continue;  // then it is the embedding
    model.tensors.erase(model.tensors.begin() + static_cast<ptrdiff_t>(i));
    Expect("no " + name, model.Bytes(), Inspect(), name);
  }
}

TEST_F(MalformedGguf, BytesAreRefusedInOneLine) {
  const std::string whole = GgufModel().Bytes();
  // Behind and within each part: magic, version, counts, keys, infos, data.
  std::vector<size_t> cuts = {4, 6, 8, 12, 16, 20, whole.size() / 2, whole.size() - 1};
  for (const char* name : {"general.architecture", "llama.block_count", "tokenizer.ggml.tokens",
                           "token_embd.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"}) {
    const size_t at = whole.find(name);
    for (const size_t cut : {at - 8, at - 1, at, at + 5, at + std::strlen(name) + 2}) {
      cuts.push_back(cut);
    }
  }
  for (const size_t cut : cuts) {
    Expect(fmt::format("cut to {}", cut), whole.substr(0, cut), Inspect(), "truncated");
  }
  struct {
    const char* name;
    size_t at;
    std::string bytes;
    const char* what;
  } const patches[] = {{"magic", 0, "GGML", "not a GGUF file"},
                       {"big endian", 4, std::string("\0\0\0\3", 4), "GGUF version 50331648"},
                       {"version 0", 4, B::Raw(0u), "GGUF version 0"},
                       {"version 2", 4, B::Raw(2u), "GGUF version 2"},
                       {"version 4", 4, B::Raw(4u), "GGUF version 4"},
                       {"a tensor more", 8, B::Raw(uint64_t{13}), "m.gguf: "},
                       {"2^20 tensors", 8, B::Raw(uint64_t{1} << 20), "over 262144 tensors"},
                       {"2^64 - 1 tensors", 8, B::Raw(~uint64_t{0}), "over 262144 tensors"},
                       {"a key more", 16, B::Raw(uint64_t{12}), "m.gguf: "},
                       {"a key less", 16, B::Raw(uint64_t{10}), "m.gguf: "},
                       {"2^64 - 1 keys", 16, B::Raw(~uint64_t{0}), "over 65536 keys"},
                       {"name of 2^63 bytes", 24, B::Raw(uint64_t{1} << 63), "truncated"}};
  for (const auto& [name, at, bytes, what] : patches) {
    std::string patched = whole;
    Expect(name, patched.replace(at, bytes.size(), bytes), Inspect(), what);
  }
  Expect("empty", "", Inspect(), "not a GGUF file");
  Expect("three bytes", "GGU", Inspect(), "not a GGUF file");
}

}  // namespace
}  // namespace nibble
