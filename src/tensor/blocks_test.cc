// SPDX-License-Identifier: Apache-2.0
#include "tensor/blocks.h"

#include <gtest/gtest.h>

#include "base/json.h"
#include "tensor/finite.h"

namespace nibble {
namespace {

std::vector<uint8_t> FromHex(const std::string& text) {
  std::vector<uint8_t> bytes;
  for (size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// Blocks and their values by the package gguf (tests/golden/gguf_blocks.py).
TEST(Blocks, DecodeAsTheFormatsOwnPackageDoes) {
  const Json golden = ReadJsonFile(NIBBLE_SOURCE_DIR "/tests/golden/gguf_blocks.json");
  size_t types = 0;
  for (int i = 0; i <= static_cast<int>(DType::kMxfp4); ++i) {
    const BlockType* type = BlockTypeOf(static_cast<DType>(i));
    if (type == nullptr) continue;
    ++types;
    SCOPED_TRACE(type->name);
    const Json& one = golden.at(std::string(type->name));
    const std::vector<uint8_t> bytes = FromHex(one["bytes"]), values = FromHex(one["values"]);
    std::vector<float> expected(values.size() / 4);
    std::memcpy(expected.data(), values.data(), values.size());
    const auto count = static_cast<int64_t>(expected.size());
    const Tensor tensor = {
        type->dtype, {3, count / 3}, reinterpret_cast<const std::byte*>(bytes.data())};
    EXPECT_EQ(count, 3 * type->elements);
    EXPECT_EQ(tensor.bytes(), bytes.size());
    EXPECT_EQ(ToF32(tensor).data, expected);
    EXPECT_EQ(ToF64(tensor.Rows(1, 1)).data,
              std::vector<double>(expected.begin() + type->elements,
                                  expected.begin() + 2 * type->elements));
    EXPECT_EQ(CountNotFinite(tensor), 0);
    EXPECT_TRUE(IsFloat(type->dtype));
    EXPECT_EQ(DTypeName(type->dtype), type->name);
  }
  EXPECT_EQ(types, golden.size());
}

TEST(Blocks, AScaleThatIsNotFiniteIsFound) {
  std::vector<uint8_t> bytes(2 * 18, 0x11);
  bytes[19] = 0x7C, bytes[18] = 0;  // infinity, times q - 8 = -7
  const Tensor tensor = {DType::kQ4_0, {64}, reinterpret_cast<const std::byte*>(bytes.data())};
  EXPECT_EQ(CountNotFinite(tensor), 32);
}

}  // namespace
}  // namespace nibble
