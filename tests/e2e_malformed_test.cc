// SPDX-License-Identifier: Apache-2.0
// Hundreds of damaged and hostile inputs, one file or option at a time, given to the program: each
// ends in one printable line and exit code 1 or 2, within a second of processor time and 200 MB
// above the size of the file. The name of a case says what is damaged.
#include <cctype>
#include <cmath>
#include <limits>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

#ifdef NIBBLE_SLOW_BUILD  // sanitizers take time and memory of their own
constexpr double kMaxSeconds = 60, kMaxBytes = 2e9;
#else
constexpr double kMaxSeconds = 1, kMaxBytes = 200e6;
#endif

std::string Repeated(const std::string& text, size_t count) {
  std::string result;
  result.reserve(text.size() * count);
  for (size_t i = 0; i < count; ++i) result += text;
  return result;
}

class Malformed : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    Quantize("packed", Words("--rounding rtn --w-asym"));
    fs::copy(NIBBLE_SOURCE_DIR "/tests/data/architectures/llama2", Path("shards"));
  }
  void TearDown() override {
    EndToEnd::TearDown();
    RecordProperty("cases", cases_);
  }

  // Runs `arguments`, in which MODEL is a copy of `model` with one file replaced.
  void Expect(const std::string& name, const std::string& model, const std::string& file,
              const std::string& bytes, const std::string& arguments) {
    const std::string copy = Path("case");
    fs::remove_all(copy);
    fs::create_directory(copy);
    for (const auto& entry : fs::directory_iterator(Path(model))) {
      const fs::path to = fs::path(copy) / entry.path().filename();
      if (to.filename() != file) fs::create_hard_link(entry.path(), to);
    }
    Spill(copy + "/" + file, bytes);
    Arguments words = Words(arguments);
    for (std::string& word : words) {
      if (word == "MODEL") word = copy;
      if (word == "OUT") word = Path("case-out");
      if (word == "TEXT") word = kEvaluationText;
    }
    Check(file + ": " + name, Nibble(words, "hello\n"), static_cast<double>(bytes.size()));
    EXPECT_FALSE(fs::exists(Path("case-out"))) << name;
  }
  void ExpectUsage(const Arguments& arguments) {
    Check(testing::PrintToString(arguments), Nibble(arguments, "hello\n"), 0);
  }

  void Check(const std::string& name, const Result& r, double file_bytes) {
    ++cases_;
    EXPECT_TRUE(r.code == 1 || r.code == 2) << name << ": exit code " << r.code << "\n" << r.err;
    // Lines of progress and of advice may stand before.
    const size_t last = r.err.rfind("nibble: ");
    ASSERT_NE(last, r.err.npos) << name << "\n" << r.err;
    const std::string error = r.err.substr(last);
    EXPECT_EQ(std::ranges::count(error, '\n'), 1) << name << "\n" << r.err;
    EXPECT_LT(error.size(), 2000u) << name;
    for (const char c : error) {
      EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n') << name << "\n" << r.err;
    }
    EXPECT_LT(r.seconds, kMaxSeconds) << name;
    EXPECT_LT(r.peak_bytes, file_bytes + kMaxBytes) << name;
  }

  std::string ReadFileOf(const std::string& model, const std::string& file) const {
    return Slurp(Path(model + "/" + file));
  }
  // The text of a JSON file with `pointer` set to `value` ("" = removed).
  std::string Edited(const std::string& model, const std::string& file, const std::string& pointer,
                     const std::string& value) const {
    Json json = Json::parse(ReadFileOf(model, file));
    const Json::json_pointer at(pointer);
    if (value.empty()) {
      json.at(at.parent_pointer()).erase(at.back());
      return json.dump();
    }
    json[at] = "PLACE";  // numbers beyond a double can only be written as text
    std::string text = json.dump();
    return text.replace(text.find("\"PLACE\""), std::strlen("\"PLACE\""), value);
  }

  int cases_ = 0;
};

TEST_F(Malformed, JsonOfEveryFile) {
  const std::pair<const char*, std::string> bombs[] = {
      {"empty", ""},
      {"no JSON", "config"},
      {"an array", "[]"},
      {"null", "null"},
      {"cut", "{\"a\": [1, 2"},
      {"trailing comma", "{\"a\": 1,}"},
      {"two values", "{} {}"},
      {"invalid UTF-8", "{\"a\": \"\xff\xfe\"}"},
      {"deep arrays", "{\"a\": " + Repeated("[", 1'000'000)},
      {"deep objects", Repeated("{\"a\":", 1'000'000)},
      {"twice the same key", "{\"model_type\": \"llama\", \"model_type\": \"mistral\"}"},
      {"many small objects", "{\"a\": [" + Repeated("{},", 5'000'000) + "{}]}"},
      {"many zeros", "{\"a\": [" + Repeated("0,", 7'000'000) + "0]}"},
      {"long string", "{\"a\": \"" + Repeated("x", 15'000'000)},
      {"escapes in a message", "{\"model_type\": \"\\u001b[2J\\nx\"}"},
      {"zero byte", std::string("{\"a\0\": 1}", 9)}};
  for (const auto& [name, bytes] : bombs) {
    Expect(name, "small", "config.json", bytes, "inspect MODEL");
    Expect(name, "small", "tokenizer.json", bytes, "tokenize MODEL --text a");
    if (std::string(name) == "escapes in a message") continue;  // no file below has the field
    Expect(name, "shards", "model.safetensors.index.json", bytes, "inspect MODEL");
    Expect(name, "packed", "manifest.json", bytes, "inspect MODEL --verify");
    if (std::string(name) == "twice the same key") continue;  // the rest of these is optional
    Expect(name, "small", "generation_config.json", bytes,
           "generate MODEL --prompt a --max-tokens 1");
  }
}

TEST_F(Malformed, FieldsOfConfig) {
  const char* sizes[] = {"hidden_size",         "intermediate_size", "num_hidden_layers",
                         "num_attention_heads", "vocab_size",        "max_position_embeddings"};
  for (const std::string field : sizes) {
    for (const char* value : {"", "null", "\"256\"", "0", "-1", "2.5", "1e308",
                              "9223372036854775808", "2147483648", "[256]", "true", "777"}) {
      // Any context below its limit will do.
      if (field == "max_position_embeddings" && std::string(value) == "777") continue;
      Expect(field + " = " + value, "small", "config.json",
             Edited("small", "config.json", "/" + field, value), "inspect MODEL");
    }
  }
  const std::vector<std::pair<std::string, std::vector<std::string>>> fields = {
      {"model_type",
       {"", "null", "3", "\"gpt2\"", "\"\\u001b[2J\\n\"", "\"" + Repeated("x", 100000) + "\""}},
      {"num_key_value_heads", {"0", "-1", "3", "\"2\"", "1e3"}},
      {"head_dim", {"0", "-64", "7", "264", "\"64\"", "4611686018427387904"}},
      {"rms_norm_eps", {"0", "-1e-5", "1e308", "1e999", "\"x\"", "1e-40"}},
      {"rope_theta", {"0", "-1", "1e308", "1e-320", "\"x\"", "1e999"}},
      {"hidden_act", {"\"gelu\"", "3"}},
      {"tie_word_embeddings", {"\"no\"", "1"}},
      {"rope_scaling",
       {"[]", "\"linear\"", R"({"rope_type": "magic", "factor": 2})", R"({"type": "linear"})",
        R"({"type": "linear", "factor": 0})", R"({"type": "linear", "factor": 1e308})",
        R"({"rope_type": "llama3", "factor": 2})",
        R"({"rope_type": "llama3", "factor": 2, "low_freq_factor": 1,
                            "high_freq_factor": 1, "original_max_position_embeddings": 64})"}},
      {"quantization_config",
       {"{}", "[]", R"({"quant_method": "gptq"})", R"({"quant_method": "nibble"})"}}};
  for (const auto& [field, values] : fields) {
    for (const std::string& value : values) {
      Expect(field + " = " + value.substr(0, 40), "small", "config.json",
             Edited("small", "config.json", "/" + field, value), "inspect MODEL");
    }
  }
}

TEST_F(Malformed, FieldsOfThePlan) {
  const std::string q = "/quantization_config", gate = q + "/linears/layers.1.gate";
  const std::vector<std::pair<std::string, std::vector<std::string>>> fields = {
      {q + "/format_version", {"", "0", "99", "\"1\""}},
      {q + "/norms_folded", {"", "\"yes\"", "false"}},
      {q + "/linears", {"", "[]", "{}"}},
      {q + "/surprise", {"1"}},
      {q + "/cache/k/bits", {"", "0", "1", "9", "-4", "4.5", "\"4\""}},
      {q + "/cache/page_tokens", {"", "0", "128"}},
      {q + "/cache/rotation/outer", {"0", "-1", "3", "4611686018427387904"}},
      {gate, {"", "3"}},
      {gate + "/weights/bits", {"", "0", "3", "8", "17", "-4", "\"4\"", "1e3"}},
      {gate + "/weights/group", {"-32", "7", "96", "1048576", "\"32\""}},
      {gate + "/weights/symmetric", {"", "1", "true"}},
      {gate + "/weights/clip", {"", "-1", "2", "1e999", "\"1\""}},
      {gate + "/weights/sparse", {"true"}},
      {gate + "/activations/bits", {"0", "9"}},
      {gate + "/activations/clip", {"0", "-0.5"}},
      {gate + "/input_transform/inner", {"0", "2"}},
      {gate + "/input_transform/factors", {"3", R"([{"kind": "magic", "order": 256}])"}},
      {gate + "/gather", {"true", "3"}},
      {gate + "/tail", {"3", "{}"}},
      {gate + "/surprise", {"1"}}};
  for (const auto& [pointer, values] : fields) {
    for (const std::string& value : values) {
      Expect(pointer + " = " + value, "packed", "config.json",
             Edited("packed", "config.json", pointer, value), "inspect MODEL");
    }
  }
}

TEST_F(Malformed, Safetensors) {
  const std::string file = "model.safetensors", whole = ReadFileOf("small", file);
  for (const size_t size : {0, 1, 7, 8, 9, 100, 1000, 100'000, 1'000'000}) {
    Expect(fmt::format("cut to {}", size), "small", file, whole.substr(0, size), "inspect MODEL");
  }
  Expect("a byte behind", "small", file, whole + "x", "inspect MODEL");
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{100}, uint64_t{1} << 40,
                                uint64_t{1} << 63, ~uint64_t{0}, ~uint64_t{0} - 7}) {
    Expect(fmt::format("header of {}", length), "small", file, FileOf(length, whole.substr(8), 0),
           "inspect MODEL");
  }
  const auto header = [&](const std::string& name, const std::string& fields, size_t bytes) {
    Expect(name, "small", file, FileWith(fields, bytes), "inspect MODEL");
  };
  header("nothing", "", 0);
  header("unknown type", TensorJson("a", "F4", "[2]", "[0,1]"), 1);
  header("negative shape", TensorJson("a", "F32", "[-1]", "[0,4]"), 4);
  header("shape that overflows", TensorJson("a", "F32", "[4294967296,4294967296]", "[0,0]"), 0);
  header("shape of nine", TensorJson("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]"), 4);
  header("shape of a million",
         TensorJson("a", "F32", "[" + Repeated("1,", 1'000'000) + "1]", "[0,4]"), 4);
  header("fraction", TensorJson("a", "F32", "[1.5]", "[0,4]"), 4);
  header("offsets turned", TensorJson("a", "F32", "[1]", "[4,0]"), 4);
  header("offsets outside", TensorJson("a", "F32", "[1]", "[0,400]"), 4);
  header("one offset", TensorJson("a", "F32", "[1]", "[0]"), 4);
  header("hole", TensorJson("a", "U8", "[1]", "[1,2]"), 2);
  header("overlap",
         TensorJson("a", "U8", "[2]", "[0,2]") + "," + TensorJson("b", "U8", "[2]", "[1,3]"), 3);
  header("twice",
         TensorJson("a", "U8", "[1]", "[0,1]") + "," + TensorJson("a", "U8", "[1]", "[1,2]"), 2);
  header("metadata of numbers", R"("__metadata__":{"a":1})", 0);
  header("unknown field", R"("a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1})", 1);
  header("missing field", R"("a":{"dtype":"U8","shape":[1]})", 1);
  header("tensor is a number", R"("a":3)", 0);
  header("control character", TensorJson("a\\u001b[2J\\n", "U8", "[1]", "[0,1]"), 1);
  header("long name", TensorJson(Repeated("a", 10'000), "U8", "[1]", "[0,1]"), 1);
  std::string many;
  for (int i = 0; i < 400'000; ++i) {
    many += (i == 0 ? "" : ",") + TensorJson(std::to_string(i), "U8", "[0]", "[0,0]");
  }
  header("many tensors", many, 0);

  // Whole files that do not fit the config, and numbers that are none.
  const RawTensors good = RawTensors::Read(Path("small/" + file));
  const auto changed = [&](const std::string& name, const auto& change,
                           const std::string& verb = "inspect MODEL") {
    RawTensors tensors = good;
    change(tensors);
    tensors.Write(Path("changed"));
    Expect(name, "small", file, Slurp(Path("changed")), verb);
  };
  const std::string q = "model.layers.1.self_attn.q_proj.weight";
  changed("missing tensor",
          [&](RawTensors& t) { t.header["other"] = t.header[q], t.header.erase(q); });
  changed("other shape", [&](RawTensors& t) { t.header[q]["shape"] = {128, 512}; });
  changed("integers", [&](RawTensors& t) { t.header[q]["dtype"] = "I16"; });
  const std::vector<std::pair<std::string, std::string>> values = {
      {"NaN", "\xc0\x7f"}, {"infinity", "\x80\x7f"}, {"minus infinity", "\x80\xff"}};
  for (const char* tensor :
       {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.1.input_layernorm.weight", "model.layers.1.post_attention_layernorm.weight",
        "model.layers.1.self_attn.q_proj.weight", "model.layers.1.mlp.down_proj.weight"}) {
    for (const auto& [name, bf16] : values) {
      const auto poison = [&](RawTensors& t) {
        const size_t begin = t.header[tensor]["data_offsets"][0];
        // std::string() keeps the zero byte that a literal would end with.
        t.data.replace(begin + 10, 2, std::string(bf16.data(), 2));
      };
      for (const char* verb : {"quantize MODEL -o OUT --rounding rtn --rotation none",
                               "quantize MODEL -o OUT --rounding rtn",
                               "eval ppl MODEL --text TEXT --windows 1 --context 64"}) {
        changed(fmt::format("{} in {}: {}", name, tensor, verb), poison, verb);
      }
    }
  }
}

TEST_F(Malformed, Shards) {
  const std::string file = "model.safetensors.index.json";
  const std::string shard = "model-00001-of-00006.safetensors", text = ReadFileOf("shards", file);
  for (const std::string& name :
       {std::string("../model.safetensors"), std::string("/etc/passwd"), std::string(""),
        std::string("."), std::string(".."), std::string("absent.safetensors"),
        std::string("sub/a.safetensors"), std::string("a\\u0000b"), Repeated("a", 5000),
        std::string("config.json"), std::string("\\u001b[2J")}) {
    std::string changed = text;
    while (changed.find(shard) != changed.npos)
      changed.replace(changed.find(shard), shard.size(), name);
    Expect("shard " + name.substr(0, 30), "shards", file, changed, "inspect MODEL");
  }
  for (const char* index : {R"({"weight_map": 3})", R"({"weight_map": {"a": 3}})",
                            R"({"weight_map": {}})", R"({"metadata": {}})"}) {
    Expect(index, "shards", file, index, "inspect MODEL");
  }
  std::string many = "{\"weight_map\": {";
  for (int i = 0; i < 100'000; ++i) many += fmt::format("\"a{0}\": \"s{0}.safetensors\",", i);
  Expect("many shards", "shards", file, many + "\"a\": \"s\"}}", "inspect MODEL");
  Expect("shard of text", "shards", shard, "no tensors", "inspect MODEL");
}

TEST_F(Malformed, PackedPlanes) {
  const std::string file = "layer-00001.safetensors";
  const RawTensors good = RawTensors::Read(Path("packed/" + file));
  const auto changed = [&](const std::string& name, const auto& change) {
    RawTensors tensors = good;
    change(tensors);
    tensors.Write(Path("changed"));
    Expect(name, "packed", file, Slurp(Path("changed")), "inspect MODEL");
  };
  const std::string scales = "layers.1.q.scales", zeros = "layers.1.q.zeros";
  const std::pair<const char*, float> bad[] = {{"NaN", std::nanf("")},
                                               {"infinite", std::numeric_limits<float>::infinity()},
                                               {"zero", 0},
                                               {"negative", -1}};
  for (const auto& [name, value] : bad) {
    changed(std::string(name) + " scale", [&](RawTensors& t) {
      const size_t begin = t.header[scales]["data_offsets"][0];
      std::memcpy(t.data.data() + begin, &value, sizeof value);
    });
  }
  changed("missing plane", [&](RawTensors& t) {
    t.header["layers.1.q.other"] = t.header[zeros], t.header.erase(zeros);
  });
  changed("type of a plane", [&](RawTensors& t) { t.header[zeros]["dtype"] = "U8"; });
  changed("no digest", [&](RawTensors& t) { t.header["__metadata__"].erase("plan_sha256"); });
  changed("other digest", [&](RawTensors& t) { t.header["__metadata__"]["plan_sha256"] = "0"; });
  changed("no metadata", [&](RawTensors& t) { t.header.erase("__metadata__"); });
  changed("plane outside", [&](RawTensors& t) { t.header[zeros]["data_offsets"][1] = 1 << 30; });
  for (const char* entry : {R"({"bytes": -1, "sha256": "0"})", R"({"bytes": 1})", "3",
                            R"({"bytes": 1, "sha256": 3})", R"({"bytes": 1e300, "sha256": ""})"}) {
    Expect(entry, "packed", "manifest.json",
           fmt::format(R"({{"files": {{"config.json": {}}}}})", entry), "inspect MODEL --verify");
  }
  Expect("another folder", "packed", "manifest.json",
         R"({"files": {"../config.json": {"bytes": 1, "sha256": "0"}}})", "inspect MODEL --verify");
}

TEST_F(Malformed, GenerationConfigAndTexts) {
  for (const char* fields :
       {R"("temperature": -1)", R"("temperature": 1e308)", R"("temperature": "1")",
        R"("top_p": -5)", R"("top_p": 7)", R"("top_p": 1e999)", R"("top_k": -3)", R"("top_k": 1.5)",
        R"("top_k": 9223372036854775808)", R"("do_sample": "yes")", R"("eos_token_id": "x")",
        R"("eos_token_id": [1.5])", R"("eos_token_id": -1e300)"}) {
    Expect(fields, "small", "generation_config.json",
           "{\"do_sample\": true, " + std::string(fields) + "}",
           "generate MODEL --prompt a --max-tokens 1");
  }
  const std::string big = Path("text");
  for (const std::string& text : {std::string(""), std::string("\xff\xfe"), std::string("short")}) {
    Spill(big, text);
    ExpectUsage({"eval", "ppl", small_, "--text", big});
    ExpectUsage({"quantize", small_, "-o", Path("case-out"), "--calib", big});
  }
  fs::create_directory(Path("tasks"));
  const std::vector<std::string> lines = {
      "",
      "{",
      "[]",
      "null",
      "3",
      "{}",
      R"({"query": 3, "choices": ["a"], "gold": 0})",
      R"({"query": "q", "choices": [], "gold": 0})",
      R"({"query": "q", "choices": ["a"], "gold": 7})",
      R"({"query": "q", "choices": ["a", 3], "gold": 0})",
      R"({"query": "q", "gold": 0})",
      R"({"query": "q", "choices": ["a"], "gold": -1})",
      Repeated("[", 100'000),
      R"({"query": ")" + std::string("\xff") + R"(", "choices": ["a"], "gold": 0})"};
  for (const std::string& line : lines) {
    Spill(Path("tasks/piqa.jsonl"), line + "\n");
    ExpectUsage({"eval", "tasks", small_, "--tasks", "piqa", "--data", Path("tasks")});
  }
}

TEST_F(Malformed, TokenizersAndTemplates) {
  const auto tokenizer = [&](const std::string& pointer, const std::string& value) {
    Expect(pointer + " = " + value.substr(0, 60), "small", "tokenizer.json",
           Edited("small", "tokenizer.json", pointer, value),
           "tokenize MODEL --text aaaaaaaaaaaaaaaa");
  };
  const auto sequence = [](const std::string& step, int count) {
    return R"({"type": "Sequence", "normalizers": [)" +
           Repeated(step + ",", static_cast<size_t>(count - 1)) + step + "]}";
  };
  const std::string doubling =
      R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aa"})";
  tokenizer("/normalizer", sequence(doubling, 40));
  tokenizer("/normalizer",
            sequence(R"({"type": "Replace", "pattern": {"Regex": "a"}, "content": "aa"})", 40));
  tokenizer("/normalizer", sequence(R"({"type": "NFD"})", 100'000));
  tokenizer("/normalizer", R"({"type": "Magic"})");
  for (const char* pattern : {"(", "[", "a{99999}", "\\\\C", "(?R)", "(?<=a+)b"}) {
    tokenizer(
        "/pre_tokenizer",
        R"({"type": "Split", "behavior": "Isolated", "invert": false, "pattern": {"Regex": ")" +
            std::string(pattern) + "\"}}");
  }
  tokenizer("/pre_tokenizer", R"({"type": "Magic"})");
  tokenizer("/decoder", R"({"type": "Magic"})");
  tokenizer("/post_processor", R"({"type": "Magic"})");
  tokenizer("/model", "3");
  tokenizer("/model/type", "\"Unigram\"");
  for (const char* vocab : {"", "3", "{}", R"({"a": -1})", R"({"a": 1e300})", R"({"a": 0, "b": 0})",
                            R"({"a": 4294967296})", R"({"a": "0"})"}) {
    tokenizer("/model/vocab", vocab);
  }
  for (const char* merges :
       {"", "3", "[3]", "[\"a\"]", "[\"zq zq\"]", "[[\"a\"]]", "[[\"a\", 3]]"}) {
    tokenizer("/model/merges", merges);
  }
  for (const char* added : {"3", "[3]", R"([{"id": -1, "content": "x"}])", R"([{"content": "x"}])",
                            R"([{"id": 5, "content": ""}])"}) {
    tokenizer("/added_tokens", added);
  }
  const std::pair<const char*, std::string> templates[] = {
      {"empty loop",
       "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}"},
      {"long range", "{{ range(1000000000) | list }}"},
      {"doubling",
       "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% "
       "endfor %}"},
      {"repeat", "{{ 'a' * 1000000000 }}"},
      {"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"},
      {"parentheses", "{{ " + Repeated("(", 100'000) + "1" + Repeated(")", 100'000) + " }}"},
      {"nested ifs", Repeated("{% if 1 %}", 100'000)},
      {"minus signs", "{{ " + Repeated("-", 100'000) + "1 }}"},
      {"replace", "{{ ('a' * 1000000).replace('a', 'b' * 1000000) }}"},
      {"join", "{{ range(100000) | join('x' * 100000) }}"},
      {"unclosed", "{{ 1"},
      {"attribute", "{{ ''.__class__.__mro__ }}"},
      {"include", "{% include '/etc/passwd' %}"},
      {"division", "{{ 1 // 0 }}"},
      {"raise", "{{ raise_exception('\x1b[2J\n') }}"},
      {"power", "{{ 10 ** 100000 }}"}};
  for (const auto& [name, text] : templates) {
    const Json config = {{"bos_token", "<|begin_of_text|>"}, {"chat_template", text}};
    Expect(name, "small", "tokenizer_config.json", config.dump(), "chat MODEL --max-tokens 1");
  }
}

TEST_F(Malformed, CommandLines) {
  const std::string s = small_;
  for (const Arguments& arguments : std::vector<Arguments>{
           {},
           {"magic"},
           {"generate"},
           {"generate", s},

           {"generate", s, "--prompt", "\xff"},
           {"generate", s, "--prompt-ids", "-1"},
           {"generate", s, "--prompt-ids", "4096"},
           {"generate", s, "--prompt-ids", "x"},
           {"generate", s, "--prompt", "a", "--temperature", "nan"},
           {"generate", s, "--prompt", "a", "--temperature", "inf"},
           {"generate", s, "--prompt", "a", "--temperature", "-1"},
           {"generate", s, "--prompt", "a", "--top-p", "nan"},
           {"generate", s, "--prompt", "a", "--top-p", "2"},
           {"generate", s, "--prompt", "a", "--top-k", "-1"},
           {"generate", s, "--prompt", "a", "--max-tokens", "0"},
           {"generate", s, "--prompt", "a", "--threads", "-1"},
           {"generate", s, "--prompt", "a", "--threads", "100000"},
           {"generate", s, "--prompt", "a", "--device", "tpu"},
           {"generate", Path("absent"), "--prompt", "a"},
           {"generate", "/dev/null", "--prompt", "a"},
           {"tokenize", s},
           {"tokenize", s, "--file", Path("absent")},
           {"eval", "ppl", s, "--text", "/dev"},
           {"eval", "ppl", s, "--text", kEvaluationText, "--context", "0x"},
           {"eval", "ppl", s, "--text", kEvaluationText, "--context", "1000000"},
           {"eval", "ppl", s, "--text", kEvaluationText, "--windows", "-1"},
           {"eval", "tasks", s, "--tasks", "magic", "--data", Path("")},
           {"quantize", s},
           {"quantize", s, "-o", "/proc/none/out", "--rounding", "rtn"},
           {"quantize", s, "-o", Path("o"), "--w-bits", "1"},
           {"quantize", s, "-o", Path("o"), "--w-clip", "nan"},
           {"quantize", s, "-o", Path("o"), "--damp", "nan"},
           {"quantize", s, "-o", Path("o"), "--gptaq", "-1"},
           {"quantize", s, "-o", Path("o"), "--recipe", "magic"},
           {"quantize", s, "-o", Path("o"), "--seed", "-1"},
           {"quantize", s, "-o", Path("o"), "--rule", "(:w-bits=4"},
           {"quantize", s, "-o", Path("o"), "--rule", Repeated("(a*)*", 20) + "$:w-bits=4"},
           {"quantize", s, "-o", Path("o"), "--calib", Path("absent")},
           {"quantize", s, "-o", Path("o"), "--calib-windows", "0"},
           {"quantize", s, "-o", Path("o"), "--context", "100000"},
           {"serve", s, "--context", "100000"},
           {"inspect", "/etc/passwd"},
           {"repack", s},
           {"bench", "prefill", "--shape", "magic"}}) {
    ExpectUsage(arguments);
    EXPECT_FALSE(fs::exists(Path("o"))) << testing::PrintToString(arguments);
    EXPECT_FALSE(fs::exists(Path("o.partial"))) << testing::PrintToString(arguments);
  }
}

}  // namespace
}  // namespace nibble
