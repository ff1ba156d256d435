// SPDX-License-Identifier: Apache-2.0
// Damaged checkpoints that GPTQ, AWQ and compressed-tensors wrote: a model of one layer, 64 wide,
// whose linears have 4 bits in groups of 32, with one field or one tensor wrong.
#include <functional>

#include "tests/e2e_malformed_testing.h"

namespace nibble {
namespace {

using Shape = std::vector<int64_t>;

struct Format {
  const char* name;
  const char* method;
  const char* variant_key;
  const char* variant;
  const char* codes;  // suffixes of a linear's tensors
  const char* zeros;
  const char* scales;
  const char* groups;
  Shape codes_shape, zeros_shape, scales_shape;
  bool needs_zeros;
};

const Format kFormats[] = {
    {.name = "Gptq",
     .method = "gptq",
     .variant_key = "checkpoint_format",
     .variant = "gptq",
     .codes = ".qweight",
     .zeros = ".qzeros",
     .scales = ".scales",
     .groups = ".g_idx",
     .codes_shape = {8, 64},
     .zeros_shape = {2, 8},
     .scales_shape = {2, 64},
     .needs_zeros = true},
    {.name = "Awq",
     .method = "awq",
     .variant_key = "version",
     .variant = "gemm",
     .codes = ".qweight",
     .zeros = ".qzeros",
     .scales = ".scales",
     .groups = ".g_idx",
     .codes_shape = {64, 8},
     .zeros_shape = {2, 8},
     .scales_shape = {2, 64},
     .needs_zeros = true},
    {.name = "CompressedTensors",
     .method = "compressed-tensors",
     .variant_key = "format",
     .variant = "pack-quantized",
     .codes = ".weight_packed",
     .zeros = ".weight_zero_point",
     .scales = ".weight_scale",
     .groups = ".weight_g_idx",
     .codes_shape = {64, 8},
     .zeros_shape = {8, 2},
     .scales_shape = {64, 2},
     .needs_zeros = false},
};

const std::string kLayer = "model.layers.0.", kQ = kLayer + "self_attn.q_proj";

struct Stored {
  std::string dtype;
  Shape shape;
  std::string bytes;
};
using Tensors = std::map<std::string, Stored>;

// A tensor of any type with the same bytes everywhere; as fp16 all values are 0.0625.
Stored Filled(const std::string& dtype, const Shape& shape) {
  const std::map<std::string, size_t> sizes = {{"BOOL", 1}, {"U8", 1},  {"I16", 2}, {"F16", 2},
                                               {"I32", 4},  {"F32", 4}, {"I64", 8}};
  size_t size = sizes.at(dtype);
  for (const int64_t extent : shape) size *= static_cast<size_t>(extent);
  std::string bytes;
  for (size_t i = 0; i < size; ++i) bytes += i % 2 == 0 ? '\x00' : '\x2C';
  return {dtype, shape, bytes};
}

// A tensor with the group of each of 64 columns.
Stored Groups(const std::function<int32_t(int32_t)>& of) {
  Stored tensor = {"I32", {64}, ""};
  for (int32_t column = 0; column < 64; ++column) {
    const int32_t group = of(column);
    tensor.bytes.append(reinterpret_cast<const char*>(&group), sizeof group);
  }
  return tensor;
}

Tensors Good(const Format& f) {
  Tensors tensors = {{"model.embed_tokens.weight", Filled("F16", {8, 64})},
                     {"lm_head.weight", Filled("F16", {8, 64})},
                     {"model.norm.weight", Filled("F16", {64})}};
  for (const char* norm : {"input_layernorm.weight", "post_attention_layernorm.weight"}) {
    tensors[kLayer + norm] = Filled("F16", {64});
  }
  for (const char* linear : {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                             "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"}) {
    tensors[kLayer + linear + f.codes] = Filled("I32", f.codes_shape);
    tensors[kLayer + linear + f.zeros] = Filled("I32", f.zeros_shape);
    tensors[kLayer + linear + f.scales] = Filled("F16", f.scales_shape);
  }
  return tensors;
}

Json HeaderOf(const Tensors& tensors) {
  Json header = Json::object();
  size_t at = 0;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = std::exchange(at, at + tensor.bytes.size());
    header[name] = {
        {"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, at}}};
  }
  return header;
}

std::string FileOfTensors(const Tensors& tensors, const std::string& header) {
  std::string file = FileOf(header, 0);
  for (const auto& [name, tensor] : tensors) file += tensor.bytes;
  return file;
}
std::string FileOfTensors(const Tensors& tensors) {
  return FileOfTensors(tensors, HeaderOf(tensors).dump());
}

class MalformedCodes : public MalformedFormat, public testing::WithParamInterface<Format> {
 protected:
  void SetUp() override {
    MalformedFormat::SetUp();
    Write(config_, FileOfTensors(good_));
    ExpectAccepted(Inspect());
  }

  Arguments Inspect() const { return {"inspect", root_.string()}; }
  void Write(const Json& config, const std::string& file) const {
    Spill(Path("config.json"), config.dump());
    Spill(Path("model.safetensors"), file);
  }
  void Expect(const std::string& name, const Json& config, const std::string& file,
              const std::string& what) {
    Write(config, file);
    ExpectRefused(name, config.dump() + file, Inspect(), what);
  }

  // The functions below change tensors of q_proj.
  void ExpectWithout(const std::string& suffix, const std::string& what) {
    Tensors tensors = good_;
    tensors.erase(kQ + suffix);
    Expect("no " + suffix, config_, FileOfTensors(tensors), what);
  }
  void ExpectTensor(const std::string& name, const std::string& suffix, const Stored& tensor,
                    const std::string& what = kQ) {
    Tensors tensors = good_;
    tensors[kQ + suffix] = tensor;
    Expect(suffix + " " + name, config_, FileOfTensors(tensors), what);
  }
  // Expects a refusal for this type and shape, although the data is good.
  void ExpectTensor(const std::string& suffix, const std::string& dtype, const Shape& shape) {
    ExpectTensor(dtype + " " + Json(shape).dump(), suffix, Filled(dtype, shape));
  }
  // Changes a field of q_proj's codes in the header of the file.
  void ExpectEntry(const char* field, const Json& value) {
    Json header = HeaderOf(good_);
    header[kQ + f_.codes][field] = value;
    Expect(fmt::format("{} {}", field, value.dump()), config_, FileOfTensors(good_, header.dump()),
           kQ + f_.codes);
  }
  // Changes some fields of quantization_config.
  void ExpectQuantization(const Json& fields, const std::string& what) {
    Json config = config_;
    config["quantization_config"].update(fields);
    Expect(fields.dump().substr(0, 100), config, FileOfTensors(good_), what);
  }

  const Format& f_ = GetParam();
  const Tensors good_ = Good(f_);
  const Json config_ = {
      {"model_type", "llama"},
      {"hidden_size", 64},
      {"intermediate_size", 64},
      {"num_hidden_layers", 1},
      {"num_attention_heads", 2},
      {"vocab_size", 8},
      {"max_position_embeddings", 64},
      {"quantization_config", {{"quant_method", f_.method}, {f_.variant_key, f_.variant}}}};
};

TEST_P(MalformedCodes, TensorsAreRefusedInOneLine) {
  ExpectWithout(f_.codes, kQ + ".weight");
  ExpectWithout(f_.scales, kQ + f_.scales + " is missing");
  if (f_.needs_zeros) ExpectWithout(f_.zeros, kQ + f_.zeros + " is missing");
  const std::pair<const char*, Shape> tensors[] = {
      {f_.codes, f_.codes_shape}, {f_.zeros, f_.zeros_shape}, {f_.scales, f_.scales_shape}};
  for (const auto& [suffix, shape] : tensors) {
    const int64_t rows = shape[0], cols = shape[1];
    for (const char* dtype : {"BOOL", "U8", "I16", "I64"}) ExpectTensor(suffix, dtype, shape);
    const Shape others[] = {{},
                            {1},
                            {0, cols},
                            {cols, rows},
                            {512, 512},
                            {rows, cols, 1},
                            {rows + 1, cols},
                            {rows, cols - 1}};
    for (const Shape& other : others) {
      ExpectTensor(suffix, suffix == f_.scales ? "F16" : "I32", other);
    }
  }
  ExpectTensor(f_.groups, "I64", {64});
  ExpectTensor(f_.groups, "I32", {63});
  ExpectTensor("below 0", f_.groups, Groups([](int32_t) { return -1; }), "group -1 of 2");
  ExpectTensor("of another", f_.groups, Groups([](int32_t i) { return i / 16; }), "group 2 of 2");
  ExpectTensor("uneven", f_.groups, Groups([](int32_t i) { return i / 48; }), "groups of 48");
  ExpectTensor("of q alone", f_.groups, Groups([](int32_t i) { return i % 2; }), "layers.0");
  for (const auto& [name, half] : {std::pair{"NaN", "\x00\x7E"},
                                   {"infinite", "\x00\x7C"},
                                   {"below 0", "\x00\xAC"},
                                   {"0", "\x00\x00"}}) {
    Stored scales = good_.at(kQ + f_.scales);
    scales.bytes.replace(scales.bytes.size() - 2, 2, half, 2);
    ExpectTensor(name, f_.scales, scales, "is not a scale");
  }
  ExpectTensor(".extra", "F16", {64});
  ExpectTensor(".bias", "F16", {64});
  ExpectTensor(".bias", "F16", {63});
}

TEST_P(MalformedCodes, HeadersAreRefusedInOneLine) {
  for (const Json& dtype : Json::parse(R"(["I4", "i32", "F16", "", 3, null, ["I32"]])")) {
    ExpectEntry("dtype", dtype);
  }
  for (const Json& shape : Json::parse(
           R"(["8", 512, null, {}, [null], [[8, 64]], ["8", 64], [-8, -64], [8.5, 64], [8, 64, 0],
               [1099511627776, 1099511627776], [9223372036854775808], [18446744073709551615, 8],
               [1, 1, 1, 1, 1, 1, 1, 1, 512]])")) {
    ExpectEntry("shape", shape);
  }
  for (const Json& offsets : Json::parse(
           R"(["0", null, {}, [], [0], [0, 2048, 4096], [2048, 0], [-2048, 0], [0.5, 2048.5],
               [0, 2048], [0, 1099511627776], [1099511627776, 1099511629824],
               [18446744073709549568, 18446744073709551615]])")) {
    ExpectEntry("data_offsets", offsets);
  }
  ExpectEntry("surprise", 1);
  const std::string header = HeaderOf(good_).dump(), entry = TensorJson("a", "U8", "[0]", "[0,0]");
  const std::string whole = FileOfTensors(good_), file = Path("model.safetensors");
  Expect("twice", config_,
         FileOfTensors(good_, fmt::format("{{{0},{0},{1}", entry, header.substr(1))), file);
  for (const uint64_t length :
       {uint64_t{0}, uint64_t{header.size()} - 1, uint64_t{header.size()} + 1, uint64_t{1} << 40,
        uint64_t{1} << 63, ~uint64_t{0} - 7}) {
    Expect(fmt::format("header of {}", length), config_, FileOf(length, whole.substr(8), 0), file);
  }
  for (const size_t size : {size_t{0}, size_t{7}, size_t{8}, size_t{9}, header.size() + 7,
                            header.size() + 8, header.size() + 9, whole.size() - 1}) {
    Expect(fmt::format("cut to {}", size), config_, whole.substr(0, size), file);
  }
  Expect("a byte behind", config_, whole + "x", file);
}

// Values that fields of quantization_config must not have.
constexpr const char* kBadFields = R"({
  "quant_method": [null, true, 4, -1.5, [], {}, {"a": 1}, "", "GPTQ ", "gptq_v3", "bitsandbytes",
                   "fp8", "nibble", "\u001b[2J"],
  "variant": [true, 4, -1.5, [], {}, "", "marlin", "gptq_v3", "gemv", "gemv_fast",
              "float-quantized", "nvfp4-pack-quantized", "\u001b[2J"],
  "pack_dtype": [4, [], "", "int64", "int8"],
  "transform_config": [true, 4, "R1", {"a": 1}, {"config_groups": 1},
                       {"config_groups": {"R1": null}}],
  "sparsity_config": [true, 4, "2:4", {"a": 1}, {"format": 4}, {"format": "sparse-24-bitmask"}]
})";

TEST_P(MalformedCodes, ConfigsAreRefusedInOneLine) {
  const std::string file = Path("config.json");
  const Json bad = Json::parse(kBadFields);
  for (const auto& [name, values] : bad.items()) {
    const std::string field = name == "variant" ? f_.variant_key : name;
    for (const Json& value : values) ExpectQuantization({{field, value}}, file);
  }
  ExpectQuantization({{f_.variant_key, std::string(100'000, 'x')}}, file);
  Json deep = Json::array();
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  ExpectQuantization({{"quant_method", deep}}, file);
  if (std::string(f_.name) == "Gptq") {
    ExpectQuantization({{"desc_act", true}}, kQ + f_.groups + " is missing");
    ExpectQuantization({{"desc_act", "yes"}}, file);
  }
  // Codes of one format are refused under the name of another.
  for (const Format& other : kFormats) {
    if (std::string(other.name) == f_.name) continue;
    ExpectQuantization({{"quant_method", other.method}, {other.variant_key, other.variant}}, kQ);
  }
  for (const Json& all : Json::parse(R"([true, 4, "gptq", [], {}])")) {
    Json config = config_;
    config["quantization_config"] = all;
    Expect(all.dump(), config, FileOfTensors(good_), file);
  }
}

INSTANTIATE_TEST_SUITE_P(Table, MalformedCodes, testing::ValuesIn(kFormats),
                         [](const auto& format) { return format.param.name; });

}  // namespace
}  // namespace nibble
