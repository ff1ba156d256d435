// SPDX-License-Identifier: Apache-2.0
#include "models/import/stored_codes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error_testing.h"
#include "base/half.h"
#include "base/rng.h"
#include "io/io_testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;

const std::string kGolden = NIBBLE_SOURCE_DIR "/tests/golden/stored_codes.safetensors";

Json Config(const std::string& linear) {
  if (linear.starts_with("gptq")) {
    const bool v2 = linear.ends_with("_v2");
    return {{"quant_method", "gptq"}, {"checkpoint_format", v2 ? "gptq_v2" : "gptq"}};
  }
  if (linear.starts_with("awq")) return {{"quant_method", "awq"}, {"version", "GEMM"}};
  return {{"quant_method", "compressed-tensors"},
          {"format", linear.starts_with("int") ? "int-quantized" : "pack-quantized"}};
}

struct Golden {
  const char* linear;
  FormatSpec format;
  bool gather = false;
};
const Golden kGoldens[] = {
    {"gptq4", {.bits = 4, .symmetric = false, .group = 32}},
    {"gptq4_zero", {.bits = 4, .symmetric = false, .group = 32}},
    {"gptq4_symmetric", {.bits = 4}},
    {"gptq2", {.bits = 2, .symmetric = false, .group = 32}},
    {"gptq3", {.bits = 3, .symmetric = false, .group = 32}},
    {"gptq8", {.bits = 8, .symmetric = false, .group = 32}},
    {"gptq4_act_order", {.bits = 4, .symmetric = false, .group = 32}, true},
    {"gptq4_v2", {.bits = 4, .symmetric = false, .group = 32}},
    {"gptq3_v2", {.bits = 3, .symmetric = false, .group = 32}},
    {"awq4", {.bits = 4, .symmetric = false, .group = 32}},
    {"awq4_row", {.bits = 4, .symmetric = false}},
    {"packed4", {.bits = 4, .group = 32}},
    {"packed4_zeros", {.bits = 4, .symmetric = false, .group = 32}},
    {"packed4_row", {.bits = 4, .symmetric = false}},
    {"packed3", {.bits = 3, .symmetric = false, .group = 32}},
    {"packed8", {.bits = 8, .symmetric = false, .group = 32}},
    {"int8", {.bits = 8}},
    {"int8_zeros", {.bits = 8, .symmetric = false}},
};

// Rounds to the type of the packages' own result.
float RoundedTo(DType dtype, float value) {
  if (dtype == DType::kF16) return F32FromF16(F16FromF32(value));
  if (dtype == DType::kBf16) return F32FromBf16(Bf16FromF32(value));
  return value;
}

// Scales have at most 11 bits (fp32 ones stand in rows and are kept), differences of codes and zero
// points 9: products are exact in fp32, and the packages round them once.
TEST(StoredCodes, MeanWhatThePackagesMakeOfThem) {
  const SafetensorsFile file(kGolden);
  const TensorStore store("golden", {}, file.tensors());
  for (const Golden& golden : kGoldens) {
    SCOPED_TRACE(golden.linear);
    const std::string name = golden.linear;
    const Tensor& expected = store.Get(name + ".expected");
    std::set<std::string> used = {name + ".expected"};
    const StoredCodes codes(Config(name), "config.json");
    ASSERT_TRUE(codes.Has(store, name));
    const PackedLinear linear = codes.Read(store, name, expected.shape[0], expected.shape[1], used);
    EXPECT_EQ(linear.weights.format, golden.format) << FormatText(linear.weights.format);
    EXPECT_EQ(!linear.input.gather.empty(), golden.gather);
    const std::vector<float> values = ToF32(InFloats(linear).weights.values).data;
    const std::vector<float> theirs = ToF32(expected).data;
    int different = 0;
    for (size_t i = 0; i < theirs.size(); ++i)
      different += RoundedTo(expected.dtype, values[i]) != theirs[i];
    EXPECT_EQ(different, 0);
    for (const auto& [tensor, view] : file.tensors())
      EXPECT_TRUE(!tensor.starts_with(name + ".") || used.contains(tensor)) << tensor;
  }
}

std::string ConfigError(const Json& config) {
  return ErrorOf([&] { StoredCodes(config, "config.json"); });
}

// Words of zeros or codes that other widths would fill as well (of few outputs, or of seven bits in
// the packing of old versions) have the width that the config names.
TEST(StoredCodes, WidthsAreThoseOfTheConfig) {
  const auto config = [](int bits) -> Json {
    const Json weights = {{"num_bits", bits}};
    return {{"quant_method", "compressed-tensors"},
            {"format", "pack-quantized"},
            {"config_groups", {{"group_0", {{"weights", weights}}}}}};
  };
  // Code or zero i is i % 16 - 8, [12, 16] with a zero point a row: two words of 4 or 5 bits.
  const auto stream = [](int64_t rows, int64_t words) {
    return Tensor::Of(DType::kI32, {rows, words},
                      std::vector<uint32_t>(static_cast<size_t>(rows * words), 0x76543210));
  };
  std::map<std::string, Tensor> tensors;
  tensors["x.weight_packed"] = stream(12, 2);
  tensors["x.weight_zero_point"] = stream(2, 1);
  tensors["x.weight_scale"] = Tensor::Of(DType::kF32, {12, 1}, std::vector<float>(12, 1.0f));
  tensors["y.weight_packed"] = stream(12, 16);
  const TensorStore store("m", {}, tensors);
  std::set<std::string> used;
  const PackedLinear linear = StoredCodes(config(4), "c").Read(store, "x", 12, 16, used);
  EXPECT_EQ(linear.weights.format, (FormatSpec{.bits = 4, .symmetric = false}));
  const std::vector<float> values = ToF32(InFloats(linear).weights.values).data;
  for (size_t row = 0; row < 12; ++row) {
    for (size_t col = 0; col < 16; ++col) {
      EXPECT_EQ(values[row * 16 + col], static_cast<float>(col % 8) - static_cast<float>(row % 8));
    }
  }
  EXPECT_THAT(ErrorOf([&] { StoredCodes(config(7), "c").Read(store, "y", 12, 64, used); }),
              HasSubstr("y.weight_packed is I32 [12, 16]"))
      << "8 bits fit";
  EXPECT_THAT(ErrorOf([&] { StoredCodes(config(9), "c"); }), HasSubstr("num_bits 9"));
}

TEST(StoredCodes, UnknownVariantsAreNamed) {
  EXPECT_THAT(ConfigError({{"quant_method", "bitsandbytes"}}),
              HasSubstr("\"bitsandbytes\" cannot be read, only nibble, gptq, awq, "
                        "compressed-tensors"));
  EXPECT_THAT(ConfigError({{"quant_method", "awq"}, {"version", "gemv"}}),
              HasSubstr("awq \"gemv\" cannot be read, only gemm"));
  EXPECT_THAT(ConfigError({{"quant_method", "gptq"}, {"checkpoint_format", "marlin"}}),
              HasSubstr("gptq \"marlin\" cannot be read, only gptq, gptq_v2"));
  EXPECT_THAT(ConfigError({{"quant_method", "gptq"}, {"format", "gptq_p"}}), HasSubstr("gptq_p"));
  EXPECT_THAT(ConfigError({{"quant_method", "gptq"}, {"pack_dtype", "int64"}}), HasSubstr("int64"));
  Json packed = Config("packed4");
  EXPECT_EQ(ConfigError(packed), "");
  packed["transform_config"] = Json::object();
  EXPECT_EQ(ConfigError(packed), "");
  packed["transform_config"] = {{"config_groups", {{"R4", {{"type", "hadamard"}}}}}};
  EXPECT_THAT(ConfigError(packed), HasSubstr("transform_config is not supported"));
  packed["transform_config"] = 3;
  EXPECT_THAT(ConfigError(packed), HasSubstr("transform_config"));
  packed.erase("transform_config");
  packed["sparsity_config"] = {{"format", "sparse-24-bitmask"}};
  EXPECT_THAT(ConfigError(packed), HasSubstr("sparsity_config is not supported"));
  EXPECT_THAT(ConfigError({{"bits", 4}}), HasSubstr("has no quant_method"));
  EXPECT_THAT(ConfigError({{"quant_method", 4}}), HasSubstr("quant_method"));
  EXPECT_THAT(ConfigError(Json::array()), HasSubstr("config.json"));
}

// A golden linear with some of its tensors changed.
class DamagedCodes : public testing::Test {
 protected:
  std::string ReadError(const std::string& name, const std::map<std::string, Tensor>& changes,
                        int64_t rows = 32, int64_t cols = 64, const Json& fields = Json::object()) {
    std::map<std::string, Tensor> tensors = file_.tensors();
    for (const auto& [suffix, tensor] : changes) {
      tensors.erase(name + suffix);
      if (tensor.data != nullptr) tensors[name + suffix] = tensor;
    }
    const TensorStore store("golden", {}, std::move(tensors));
    std::set<std::string> used;
    Json config = Config(name);
    config.update(fields);
    return ErrorOf([&] { StoredCodes(config, "config.json").Read(store, name, rows, cols, used); });
  }
  Tensor Get(const std::string& name) const { return file_.tensors().at(name); }
  Tensor Reshaped(const std::string& name, std::vector<int64_t> shape) const {
    Tensor tensor = Get(name);
    tensor.shape = std::move(shape);
    return tensor;
  }

  const SafetensorsFile file_{kGolden};
};

TEST_F(DamagedCodes, AreRefusedByName) {
  EXPECT_EQ(ReadError("gptq4", {}), "");
  for (const char* linear : {"gptq4", "awq4"}) {
    for (const char* suffix : {".qweight", ".qzeros", ".scales"}) {
      EXPECT_THAT(ReadError(linear, {{suffix, {}}}),
                  HasSubstr(std::string(linear) + suffix + " is missing"));
      const std::string name = std::string(linear) + suffix;
      for (const std::vector<int64_t>& shape :
           {std::vector<int64_t>{}, {1}, {7, 3}, {1, 1, 1}, {5, 5}, {2, 1}}) {
        const std::string error = ReadError(linear, {{suffix, Reshaped(name, shape)}});
        EXPECT_THAT(error, HasSubstr(name)) << ShapeText(shape);
      }
      Tensor floats = Get(name);
      floats.dtype = floats.dtype == DType::kI32 ? DType::kF32 : DType::kI16;
      EXPECT_THAT(ReadError(linear, {{suffix, floats}}), HasSubstr(name));
    }
  }
  EXPECT_THAT(ReadError("packed4_zeros", {{".weight_packed", {}}}), HasSubstr("is missing"));
  EXPECT_THAT(ReadError("packed4_zeros", {{".weight_scale", {}}}), HasSubstr("is missing"));
  EXPECT_THAT(ReadError("packed4_zeros", {{".weight_zero_point",
                                           Reshaped("packed4_zeros.weight_zero_point", {8, 1})}}),
              HasSubstr("weight_zero_point"));
  for (const auto& [rows, cols] : {std::pair{16, 64}, {32, 32}, {64, 32}, {33, 64}, {32, 65}}) {
    for (const char* linear : {"gptq4", "awq4", "packed4", "int8"})
      EXPECT_NE(ReadError(linear, {}, rows, cols), "") << linear << rows << " x " << cols;
  }
}

TEST_F(DamagedCodes, GroupsAndScales) {
  const auto groups = [](std::vector<int32_t> index) {
    const auto count = static_cast<int64_t>(index.size());
    return Tensor::Of(DType::kI32, {count}, std::move(index));
  };
  std::vector<int32_t> index(64, 0);
  EXPECT_THAT(ReadError("gptq4", {{".g_idx", groups(index)}}), HasSubstr("groups of 64 and 32"));
  std::fill(index.begin() + 32, index.end(), 2);
  EXPECT_THAT(ReadError("gptq4", {{".g_idx", groups(index)}}), HasSubstr("group 2 of 2"));
  index[0] = -1;
  EXPECT_THAT(ReadError("gptq4", {{".g_idx", groups(index)}}), HasSubstr("group -1 of 2"));
  EXPECT_THAT(ReadError("gptq4", {{".g_idx", groups({0, 1})}}), HasSubstr("g_idx is I32 [2]"));
  EXPECT_EQ(ReadError("gptq4", {{".g_idx", {}}}), "");  // columns stand as their groups do
  const Json ordered = {{"desc_act", true}};
  EXPECT_THAT(ReadError("gptq4_act_order", {{".g_idx", {}}}, 32, 64, ordered),
              HasSubstr("gptq4_act_order.g_idx is missing"));
  EXPECT_EQ(ReadError("gptq4_act_order", {}, 32, 64, ordered), "");
  EXPECT_EQ(ReadError("gptq4_symmetric", {{".g_idx", {}}}, 32, 64, ordered), "");  // one group
  const auto acts_order = [](const char* order) {
    return Json{{"config_groups", {{"group_0", {{"weights", {{"actorder", order}}}}}}}};
  };
  EXPECT_THAT(ReadError("packed4", {{".weight_g_idx", {}}}, 32, 64, acts_order("group")),
              HasSubstr("packed4.weight_g_idx is missing"));
  EXPECT_EQ(ReadError("packed4", {{".weight_g_idx", {}}}, 32, 64, acts_order("weight")), "");
  for (const float scale : {0.0f, -0.01f, INFINITY, NAN, 1e6f}) {
    const Tensor scales = Tensor::Of(DType::kF32, {2, 32}, std::vector<float>(64, scale));
    EXPECT_THAT(ReadError("gptq4", {{".scales", scales}}), HasSubstr("is not a scale")) << scale;
  }
  // A scale that is too small for fp16 becomes the least one.
  const Tensor tiny = Tensor::Of(DType::kF32, {2, 32}, std::vector<float>(64, 1e-12f));
  EXPECT_EQ(ReadError("gptq4", {{".scales", tiny}}), "");
}

// 17 bytes for 32 weights: an exponent, then elements 0 to 15 in lower nibbles, 16 to 31 in upper.
Tensor Mxfp4Of(Rng& rng, int64_t rows, int64_t cols, const std::vector<int>& exponents) {
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < rows * cols / 32; ++i) {
    bytes.push_back(static_cast<uint8_t>(exponents[static_cast<size_t>(i) % exponents.size()]));
    for (int j = 0; j < 16; ++j) bytes.push_back(static_cast<uint8_t>(rng.Below(256)));
  }
  const auto count = static_cast<int64_t>(bytes.size());
  const Tensor raw = Tensor::Of(DType::kU8, {count}, std::move(bytes));
  return {DType::kMxfp4, {rows, cols}, raw.data, raw.owner};
}

TEST(Mxfp4Codes, MeanTheSameNumbers) {
  Rng rng(3);
  const Tensor blocks = Mxfp4Of(rng, 5, 96, {104, 121, 127, 143});
  const PackedWeights w = CodesOfMxfp4(blocks, "w");
  EXPECT_EQ(FormatText(w.format), "4 g32 e2m1");
  EXPECT_EQ(Decode(w).data, ToF32(blocks).data);
  EXPECT_EQ(ErrorOf([&] { ValidateWeights(w, 5, 96, {.bits = 8}, "w"); }), "");
}

TEST(Mxfp4Codes, ScalesBelowThoseOfFp16AreRoundedAndThoseBeyondRefused) {
  Rng rng(4);
  const Tensor small = Mxfp4Of(rng, 8, 64, {0, 90, 100, 101, 102, 103});
  const PackedWeights w = CodesOfMxfp4(small, "w");
  EXPECT_EQ(ErrorOf([&] { ValidateWeights(w, 8, 64, {.bits = 8}, "w"); }), "");
  const std::vector<float> exact = ToF32(small).data, rounded = Decode(w).data;
  for (size_t i = 0; i < exact.size(); ++i) {
    // Codes up to 4 are a step of 2^-24 apart, those of these groups are at most 6.
    EXPECT_NEAR(rounded[i], exact[i], std::ldexp(1.0f, std::fabs(exact[i]) > 0x1p-22f ? -24 : -25));
  }
  EXPECT_THAT(ErrorOf([&] {
                CodesOfMxfp4(Mxfp4Of(rng, 2, 32, {127, 144}), "blk.0");
              }),
              HasSubstr("blk.0: a block of MXFP4 has a scale of 2^17"));
}

}  // namespace
}  // namespace nibble
