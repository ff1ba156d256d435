// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "base/error_testing.h"
#include "base/half.h"
#include "base/rng.h"
#include "formats/format_spec.h"
#include "formats/kv_format.h"
#include "formats/lattice_codes.h"
#include "formats/packed_linear.h"
#include "formats/packed_weights_testing.h"
#include "formats/quantizer.h"
#include "formats/tile_order.h"
#include "tensor/e2m1.h"

namespace nibble {
namespace {

using testing::HasSubstr;

// --- FormatSpec ---------------------------------------------------------------------------------

TEST(FormatSpecTest, TextAndSizes) {
  EXPECT_EQ(FormatText({.bits = 4}), "4");
  EXPECT_EQ(FormatText({.bits = 4, .symmetric = false, .group = 128}), "4 asym g128");
  EXPECT_EQ(FormatText({.bits = 4, .group = 64, .second_level = true}), "4 g64 two-level");
  EXPECT_EQ(FormatText({.bits = 4, .group = 32, .sparse = true}), "4 g32 2:4");
  EXPECT_EQ(FormatText({.bits = 2, .codebook = Codebook::kE8p}), "2 lattice");
  EXPECT_EQ(FormatText({.bits = 2, .codebook = Codebook::kKmeans}), "2 kmeans in 16");
  EXPECT_EQ(OnlineText(true, FullHadamard(64), 0, true, {}), "scales, Hadamard 64, gather");
  EXPECT_EQ(OnlineText(false, FullHadamard(64), 16, true, {}), "Hadamard 64 in fp16, gather");
  EXPECT_EQ(OnlineText(false, FullHadamard(64), 32, false, {}), "Hadamard 64 in fp32");
  EXPECT_EQ(OnlineText(false, {}, 16, true, {}), "gather");
  EXPECT_EQ(OnlineText(false, {}, 0, false, {}), "-");
  EXPECT_EQ(OnlineText(false, {}, 0, false, FullHadamard(128)), "outputs Hadamard 128");
  EXPECT_EQ(OnlineText(false, FullHadamard(64), 0, false, FullHadamard(128)),
            "Hadamard 64; outputs Hadamard 128");
  EXPECT_EQ(FormatText({.bits = 16}), "16");
  EXPECT_EQ((FormatSpec{.bits = 4, .group = 32}.groups(96)), 3);
  EXPECT_EQ((FormatSpec{.bits = 4}.groups(96)), 1);
  EXPECT_EQ(PackedBytes(9, 3), 4);
  EXPECT_EQ(PackedBytes(8, 3), 3);
}

TEST(FormatSpecTest, JsonRoundTrip) {
  for (const int bits : {2, 3, 4, 5, 6, 7, 8, 16}) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group : {0, 32, 128}) {
        const FormatSpec spec = {.bits = bits,
                                 .symmetric = symmetric,
                                 .group = group,
                                 .clip = 1.0 / (bits + 1),
                                 .squared_clips = symmetric,
                                 .sparse = group == 128 && bits < 16};
        EXPECT_EQ(FormatFromJson(ParseJson(ToJson(spec).dump(), "f"), "f"), spec);
        FormatSpec levels = spec;
        levels.second_level = true;
        const bool fits = bits <= 4 && group != 0;
        EXPECT_EQ(ErrorOf([&] { EXPECT_EQ(FormatFromJson(ToJson(levels), "f"), levels); }).empty(),
                  fits);
      }
    }
  }
}

TEST(FormatSpecTest, OnlyRowsOfFewBitsAreALattice) {
  for (int bits = 2; bits <= 16; ++bits) {
    if (bits > 8 && bits < 16) continue;
    FormatSpec spec = {.bits = bits, .codebook = Codebook::kE8p};
    const auto reads = [&] { return FormatFromJson(ToJson(spec), "f") == spec; };
    EXPECT_EQ(ErrorOf([&] { EXPECT_TRUE(reads()); }).empty(), bits <= 4) << bits;
    spec.symmetric = false;
    EXPECT_FALSE(ErrorOf([&] { reads(); }).empty());
    spec.symmetric = true, spec.group = 32;
    EXPECT_FALSE(ErrorOf([&] { reads(); }).empty());
  }
}

// Codebooks for comparison: one scale a row, and bits of their own, one of which is not enough for
// anything else. What is stored are floats.
TEST(FormatSpecTest, ComparedCodebooksHaveTheirBits) {
  for (const auto& [codebook, least, most] :
       {std::tuple(Codebook::kHalfInteger, 2, 4), std::tuple(Codebook::kKmeans, 2, 2),
        std::tuple(Codebook::kE8, 1, 1), std::tuple(Codebook::kE8p, 2, 4)}) {
    for (const int bits : {0, 1, 2, 3, 4, 5, 8, 16, 32}) {
      FormatSpec spec = {.bits = bits, .codebook = codebook};
      const auto error = [&] {
        return ErrorOf([&] { EXPECT_EQ(FormatFromJson(ToJson(spec), "f"), spec); });
      };
      EXPECT_EQ(error().empty(), bits >= least && bits <= most) << FormatText(spec);
      EXPECT_EQ(spec.as_stored(), codebook == Codebook::kE8p ? spec : FormatSpec{.bits = 16});
      spec.symmetric = false;
      EXPECT_FALSE(error().empty());
      spec.symmetric = true, spec.group = 32;
      EXPECT_FALSE(error().empty());
      spec.group = 0, spec.sparse = true;
      EXPECT_FALSE(error().empty());
    }
  }
  EXPECT_FALSE(ErrorOf([] { FormatFromJson(ToJson(FormatSpec{.bits = 1}), "f"); }).empty());
}

TEST(FormatSpecTest, OnlyFourSymmetricBitsAreFloats) {
  for (const int bits : {2, 3, 4, 5, 8, 16}) {
    FormatSpec spec = {.bits = bits, .group = 32, .codebook = Codebook::kE2m1};
    const auto error = [&] {
      return ErrorOf([&] { EXPECT_EQ(FormatFromJson(ToJson(spec), "f"), spec); });
    };
    EXPECT_EQ(error().empty(), bits == 4) << bits;
    spec.symmetric = false;
    EXPECT_THAT(error(), HasSubstr("e2m1 has 4 bits"));
  }
}

// The definition: sign, exponent e of two bits, mantissa m of one; (1 + m / 2) 2^(e - 1), or m / 2
// where e = 0.
TEST(E2m1Test, BitsMeanFloatsAndTheNearestIsFound) {
  for (int bits = 0; bits < 16; ++bits) {
    const int e = bits >> 1 & 3, m = bits & 1;
    const double size = e == 0 ? m / 2.0 : std::ldexp(1 + m / 2.0, e - 1);
    EXPECT_EQ(kE2m1Codes[static_cast<size_t>(bits)], 2 * (bits < 8 ? size : -size));
    if (bits != 8) {
      EXPECT_EQ(E2m1Bits(kE2m1Codes[static_cast<size_t>(bits)]), bits);
    }
  }
  for (double x = -15; x <= 15; x += 0.01) {
    double nearest = 100;
    for (const int8_t code : kE2m1Codes) nearest = std::min(nearest, std::fabs(x - code));
    EXPECT_NEAR(std::fabs(x - NearestE2m1(x)), nearest, 1e-12) << x;
  }
  for (const auto& [tie, even] :
       {std::pair{0.5, 0}, {2.5, 2}, {3.5, 4}, {5.0, 4}, {7.0, 8}, {10.0, 8}}) {
    EXPECT_EQ(NearestE2m1(tie), even);
    EXPECT_EQ(NearestE2m1(-tie), -even);
  }
}

// Rows mean scale times the codewords of their codes, in every order of bytes they are kept in.
TEST(PackedWeightsTest, CodesOfALatticeAreItsCodewords) {
  Rng rng(12);
  for (int bits = 2; bits <= 4; ++bits) {
    const PlaneVectors planes =
        RandomPlanes(rng, {.bits = bits, .codebook = Codebook::kE8p}, 40, 96);
    const PackedWeights w = View(planes);
    const LatticeCode lattice(bits);
    const Matrix<float> decoded = Decode(w);
    std::vector<uint8_t> wide(96);
    for (int64_t n = 0; n < w.rows; ++n) {
      RepackRow(w, n, 8, wide.data());
      for (size_t k = 0; k < 96; ++k) {
        const uint8_t* at =
            planes.codes.data() + n * 12 * bits + static_cast<int64_t>(k / 8) * bits;
        uint32_t code = 0;
        for (int i = bits; i-- > 0;) code = code << 8 | at[i];
        const int8_t value = lattice.Decode(code)[k % 8];
        ASSERT_EQ(static_cast<int8_t>(wide[k]), value);
        ASSERT_EQ(decoded.row(n)[k], planes.scales[static_cast<size_t>(n)] * value);
      }
    }
    EXPECT_EQ(TileOrder(w).bits, bits);
  }
}

TEST(FormatSpecTest, JsonRefusals) {
  const auto refused = [](const std::string& key, const Json& value) {
    Json json = ToJson({.bits = 4});
    json[key] = value;
    return ErrorOf([&] { FormatFromJson(json, "plan.w"); });
  };
  EXPECT_EQ(refused("bits", 4), "");
  for (const int bits : {-4, 0, 1, 9, 15, 17, 31, 64}) {
    EXPECT_THAT(refused("bits", bits), HasSubstr("plan.w: bits")) << bits;
  }
  for (const double clip : {-0.1, 1.01, 1e9}) EXPECT_THAT(refused("clip", clip), HasSubstr("clip"));
  EXPECT_THAT(refused("row_share", 2), HasSubstr("row_share")) << "of older files";
  EXPECT_EQ(refused("sparse", "2:4"), "");
  EXPECT_THAT(refused("sparse", "1:2"), HasSubstr("sparse \"1:2\""));
  EXPECT_THAT(refused("sparse", true), HasSubstr("sparse"));
  EXPECT_THAT(refused("group", -1), HasSubstr("group"));
  EXPECT_THAT(refused("group", 32.5), HasSubstr("group"));
  EXPECT_THAT(refused("symmetric", 1), HasSubstr("symmetric"));
  EXPECT_THAT(refused("tail", 3), HasSubstr("tail"));
  EXPECT_THAT(refused("bits", nullptr), HasSubstr("bits"));
  EXPECT_NE(ErrorOf([] { FormatFromJson(Json::array(), "f"); }), "");
}

TEST(PackTest, StreamOfBitsAndBack) {
  Rng rng(1);
  for (int bits = 2; bits <= 8; ++bits) {
    for (const int64_t count : {0, 1, 2, 3, 7, 8, 9, 31, 64, 101}) {
      std::vector<int8_t> codes(static_cast<size_t>(count));
      for (int8_t& c : codes) c = static_cast<int8_t>(rng.Next());
      const size_t bytes = static_cast<size_t>(PackedBytes(count, bits));
      std::vector<uint8_t> packed(bytes + 3, 0xAA);
      PackCodes(codes.data(), count, bits, packed.data());
      for (int64_t bit = 0; bit < static_cast<int64_t>(bytes) * 8; ++bit) {
        const int got = packed[static_cast<size_t>(bit / 8)] >> (bit % 8) & 1;
        const int64_t i = bit / bits;
        const int expected = i < count ? codes[static_cast<size_t>(i)] >> (bit % bits) & 1 : 0;
        ASSERT_EQ(got, expected) << bits << " bits, " << count << " codes, bit " << bit;
      }
      for (size_t i = bytes; i < packed.size(); ++i) EXPECT_EQ(packed[i], 0xAA);

      packed.resize(bytes);  // so that the sanitizer sees any read past the end
      packed.shrink_to_fit();
      const int step = 1 << bits;
      for (const bool sign : {true, false}) {
        std::vector<int16_t> back(codes.size() + 1, 9999);
        UnpackCodes(packed.data(), count, bits, sign, back.data());
        for (size_t i = 0; i < codes.size(); ++i) {
          int expected = codes[i] & (step - 1);
          if (sign && expected >= step / 2) expected -= step;
          ASSERT_EQ(back[i], expected);
        }
        EXPECT_EQ(back.back(), 9999);
      }
    }
  }
}

TEST(QuantizeKvTest, RowsThatAreNotQuantizedAreBf16OrFp32) {
  Rng rng(3);
  std::vector<float> x(40), back(40);
  for (float& v : x) v = static_cast<float>(rng.Normal());
  alignas(float) uint8_t row[40 * 4];
  uint16_t params = 0xABCD;
  QuantizeKv(x, {.bits = 32}, row, &params);
  DequantizeKv(row, &params, {.bits = 32}, back);
  EXPECT_EQ(back, x);
  row[80] = 0xCD;  // the byte behind 40 values of 16 bits
  QuantizeKv(x, {.bits = 16}, row, &params);
  DequantizeKv(row, &params, {.bits = 16}, back);
  for (size_t i = 0; i < x.size(); ++i) {
    const double unit = std::exp2(std::ilogb(x[i]) - 7);  // 8 bits of mantissa
    EXPECT_LE(std::abs(double{back[i]} - x[i]), unit / 2);
    EXPECT_EQ(std::remainder(back[i], unit), 0);
  }
  EXPECT_EQ(row[80], 0xCD);
  EXPECT_EQ(params, 0xABCD);
}

TEST(KvSpecTest, PartsAreAlignedAndDoNotOverlap) {
  for (const int k_bits : {3, 4, 8, 16, 32}) {
    for (const int v_bits : {2, 5, 8, 16, 32}) {
      const KvSpec kv = {.kv_heads = 3,
                         .head_dim = 96,
                         .k = {.bits = k_bits, .symmetric = false, .group = 32},
                         .v = {.bits = v_bits}};
      const int64_t k_bytes = kPageTokens * 96 * k_bits / 8;
      const int64_t v_bytes = kPageTokens * 96 * v_bits / 8;
      EXPECT_GE(kv.k_params(), k_bytes);
      EXPECT_GE(kv.v_codes(), kv.k_params() + (k_bits >= 16 ? 0 : kPageTokens * 3 * 4));
      EXPECT_GE(kv.v_params(), kv.v_codes() + v_bytes);
      EXPECT_GE(kv.block_bytes(), kv.v_params() + (v_bits >= 16 ? 0 : kPageTokens * 4));
      EXPECT_LE(kv.block_bytes(), k_bytes + v_bytes + kPageTokens * 16 + 4 * 63);
      for (int64_t at : {kv.k_params(), kv.v_codes(), kv.v_params(), kv.block_bytes()}) {
        EXPECT_EQ(at % 64, 0);
      }
      EXPECT_EQ(kv.page_bytes(), 3 * kv.block_bytes());
    }
  }
}

// --- packed linears -----------------------------------------------------------------------------

TEST(PackedLinearTest, DecodeIsScaleTimesCodeMinusZero) {
  Rng rng(6);
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      for (const int64_t group : {0, 32}) {
        const FormatSpec f = {.bits = bits, .symmetric = symmetric, .group = group};
        const int64_t rows = 5, cols = group == 0 ? 37 : 96, groups = f.groups(cols);
        const PlaneVectors w = RandomPlanes(rng, f, rows, cols);
        const PackedWeights view = View(w);
        EXPECT_EQ(view.bytes(),
                  w.codes.size() + w.scales.size() * (group == 0 ? 4 : 2) + w.zeros.size());
        const Matrix<float> decoded = Decode(view), scales = DecodeScales(view);
        const Matrix<int32_t> zeros = DecodeZeros(view);
        ASSERT_EQ(scales.data, w.scales);
        ASSERT_EQ(zeros.rows * zeros.cols, rows * groups);
        for (int64_t n = 0; n < rows; ++n) {
          std::vector<int16_t> codes(static_cast<size_t>(cols));
          UnpackCodes(w.codes.data() + n * PackedBytes(cols, bits), cols, bits, true, codes.data());
          for (int64_t k = 0; k < cols; ++k) {
            const size_t g = static_cast<size_t>(n * groups + k * groups / cols);
            const int zero = symmetric ? 0 : w.zeros[g];
            ASSERT_EQ(zeros.data[g], zero);
            ASSERT_EQ(decoded.row(n)[static_cast<size_t>(k)],
                      w.scales[g] * static_cast<float>(codes[static_cast<size_t>(k)] - zero));
          }
        }
      }
    }
  }
}

// Every pair that a loader lets pass keeps every code in 8 bits, the next scale does not.
TEST(SecondLevel, GroupScalesKeepCodesInEightBits) {
  for (int zero = -8; zero <= 7; ++zero) {
    const int max = LargestGroupScale(zero);
    EXPECT_GE(max, 8);
    EXPECT_TRUE((-8 - zero) * (max + 1) < -128 || (7 - zero) * (max + 1) > 127) << zero;
    for (int scale = 1; scale <= max; ++scale) {
      const int step = LevelStep(scale, zero);
      for (int code = -8; code <= 7; ++code) {
        const int wide = scale * (code - zero);
        EXPECT_TRUE(wide >= -128 && wide <= 127) << scale << " " << zero << " " << code;
        EXPECT_EQ((code + 8) * (step & 255) + (step >> 8), wide + 128);
      }
    }
  }
}

TEST(SecondLevel, ValuesAreRowScaleTimesGroupScaleTimesCode) {
  Rng rng(16);
  for (int bits = 2; bits <= 4; ++bits) {
    for (const bool symmetric : {true, false}) {
      const FormatSpec f = {
          .bits = bits, .symmetric = symmetric, .group = 32, .second_level = true};
      const PlaneVectors w = RandomPlanes(rng, f, 5, 96);
      const PackedWeights view = View(w);
      EXPECT_EQ(view.bytes(), w.codes.size() + 5 * 4 + 5 * 3 * (symmetric ? 1 : 2));
      const Matrix<float> decoded = Decode(view);
      const PackedLinear linear = {.weights = view,
                                   .input = {.width = 96, .activations = {.bits = 8}}};
      EXPECT_EQ(ErrorOf([&] { ValidateLinear(linear, "x"); }), "");
      for (int64_t n = 0; n < 5; ++n) {
        std::vector<int16_t> codes(96);
        UnpackCodes(w.codes.data() + n * PackedBytes(96, bits), 96, bits, true, codes.data());
        for (size_t k = 0; k < 96; ++k) {
          const size_t g = static_cast<size_t>(n) * 3 + k / 32;
          const int zero = symmetric ? 0 : w.zeros[g];
          ASSERT_EQ(decoded.row(n)[k],
                    w.scales[static_cast<size_t>(n)] *
                        static_cast<float>(w.group_scales[g] * (codes[k] - zero)));
        }
      }
    }
  }
}

// Both ways to read a row agree with codes placed by hand among zeros.
TEST(PackedLinearTest, SparseRowsHaveTheirCodesInPlace) {
  Rng rng(10);
  for (int bits = 2; bits <= 8; ++bits) {
    for (const bool symmetric : {true, false}) {
      const FormatSpec f = {.bits = bits, .symmetric = symmetric, .group = 32, .sparse = true};
      PlaneVectors w = RandomPlanes(rng, f, 3, 96);
      for (int8_t& zero : w.zeros)
        zero = static_cast<int8_t>(rng.Below(1u << bits)) - (1 << (bits - 1));
      EXPECT_EQ(View(w).bytes(),
                3u * 48 * static_cast<size_t>(bits) / 8 + 3 * 12 + 3 * 3 * 2 + w.zeros.size());
      const Matrix<float> decoded = Decode(View(w));
      for (int64_t n = 0; n < 3; ++n) {
        std::vector<int16_t> stored(48), row(96), packed(96);
        UnpackCodes(w.codes.data() + n * PackedBytes(48, bits), 48, bits, true, stored.data());
        std::vector<float> expected(96);
        std::vector<int16_t> codes(96);
        for (size_t k = 0; k < 96; ++k) {
          const size_t group = static_cast<size_t>(n) * 3 + k / 32;
          const int zero = symmetric ? 0 : w.zeros[group];
          const int pair = w.places[static_cast<size_t>(n) * 12 + k / 8] >> k / 4 % 2 * 4 & 15;
          const size_t place = k % 4;
          codes[k] = static_cast<int16_t>(zero);
          if (place == static_cast<size_t>(pair & 3)) codes[k] = stored[k / 4 * 2];
          if (place == static_cast<size_t>(pair >> 2)) codes[k] = stored[k / 4 * 2 + 1];
          expected[k] = w.scales[group] * static_cast<float>(codes[k] - zero);
        }
        UnpackRow(View(w), n, row);
        EXPECT_EQ(row, codes);
        std::vector<uint8_t> bytes(96, 0xA5);
        RepackRow(View(w), n, 8, bytes.data());
        UnpackCodes(bytes.data(), 96, 8, true, packed.data());
        EXPECT_EQ(packed, codes);
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), decoded.row(n).begin()));
      }
    }
  }
}

TEST(SecondLevel, BadScalesAreRefused) {
  Rng rng(17);
  const FormatSpec f = {.bits = 4, .symmetric = false, .group = 32, .second_level = true};
  PlaneVectors w = RandomPlanes(rng, f, 2, 64);
  FormatSpec activations = {.bits = 8};
  const auto refusal = [&] {
    const PackedLinear linear = {.weights = View(w),
                                 .input = {.width = 64, .activations = activations}};
    return ErrorOf([&] { ValidateLinear(linear, "layers.0.q"); });
  };
  EXPECT_EQ(refusal(), "");
  const PlaneVectors good = w;
  for (const auto& [scale, zero] : std::vector<std::pair<int, int>>{
           {0, 0}, {17, 0}, {255, 0}, {16, 1}, {9, -8}, {1, 8}, {1, -9}}) {
    w.group_scales[3] = static_cast<uint8_t>(scale), w.zeros[3] = static_cast<int8_t>(zero);
    EXPECT_THAT(refusal(), HasSubstr("layers.0.q.group_scales")) << scale << " " << zero;
  }
  w = good;
  w.scales[1] = NAN;
  EXPECT_THAT(refusal(), HasSubstr("scale"));
  PackedLinear linear = {.weights = View(good), .input = {.width = 64, .activations = activations}};
  linear.weights.group_scales.shape = {2, 1};
  EXPECT_THAT(ErrorOf([&] { ValidateLinear(linear, "x"); }), HasSubstr("group_scales"));
  linear.weights.group_scales = {};
  EXPECT_THAT(ErrorOf([&] { ValidateLinear(linear, "x"); }), HasSubstr("missing"));
  w = good;
  activations.group = 32;
  EXPECT_THAT(refusal(), HasSubstr("without groups"));
}

TEST(PackedLinearTest, SparsePlacesMustRise) {
  Rng rng(11);
  PlaneVectors w = RandomPlanes(rng, {.bits = 4, .sparse = true}, 2, 24);
  const auto refusal = [&](const std::function<void(PackedLinear&)>& change) {
    PackedLinear linear = {.weights = View(w), .input = {.width = 24, .activations = {.bits = 4}}};
    change(linear);
    return ErrorOf([&] { ValidateLinear(linear, "layers.0.q"); });
  };
  EXPECT_EQ(refusal([](PackedLinear&) {}), "");
  EXPECT_THAT(refusal([](PackedLinear& l) { l.weights.places = {}; }), HasSubstr("places"));
  EXPECT_THAT(refusal([](PackedLinear& l) {
                l.weights.places.shape = {2, 2};
              }),
              HasSubstr("places"));
  EXPECT_THAT(refusal([](PackedLinear& l) {
                l.weights.codes.shape = {2, 12};
              }),
              HasSubstr("codes"));
  EXPECT_THAT(refusal([](PackedLinear& l) { l.weights.cols = l.input.width = 20; }),
              HasSubstr("multiple of 8"));
  for (int byte = 0; byte < 256; ++byte) {
    w.places[4] = static_cast<uint8_t>(byte);
    const bool rising = (byte & 3) < (byte >> 2 & 3) && (byte >> 4 & 3) < byte >> 6;
    EXPECT_EQ(refusal([](PackedLinear&) {}).empty(), rising) << byte;
  }
}

TEST(PackedLinearTest, DecodeOfUnquantizedWeights) {
  const std::vector<uint16_t> bits = {0x3F80, 0xC000, 0x3F00, 0x0000, 0x4040, 0xBF80};
  const PackedWeights w = {
      .rows = 2,
      .cols = 3,
      .values = {DType::kBf16, {2, 3}, reinterpret_cast<const std::byte*>(bits.data())}};
  EXPECT_THAT(Decode(w).data, testing::ElementsAre(1, -2, 0.5f, 0, 3, -1));
}

class ValidateLinearTest : public testing::Test {
 protected:
  // The error after `change` was applied to a valid linear; "" if it is still accepted.
  std::string Refusal(const std::function<void(PackedLinear&)>& change) {
    PackedLinear linear = linear_;
    change(linear);
    return ErrorOf([&] { ValidateLinear(linear, "layers.0.q"); });
  }

  Rng rng_{7};
  const FormatSpec format_ = {.bits = 4, .symmetric = false, .group = 32};
  PlaneVectors weights_ = RandomPlanes(rng_, format_, 3, 96);
  const std::vector<float> bias_ = {1, 2, 3};
  const PackedLinear linear_ = {
      .weights = View(weights_),
      .bias = {DType::kF32, {3}, reinterpret_cast<const std::byte*>(bias_.data())},
      .input = {.width = 96, .activations = {.bits = 8, .group = 32}}};
};

TEST_F(ValidateLinearTest, AcceptsWhatFits) {
  EXPECT_EQ(Refusal([](PackedLinear&) {}), "");
  EXPECT_EQ(Refusal([](PackedLinear& l) { l.bias = {}; }), "");
  EXPECT_EQ(Refusal([](PackedLinear& l) { l.input.activations = {}; }), "");
  EXPECT_EQ(
      Refusal([](PackedLinear& l) { l.weights.zeros = {}, l.weights.format.symmetric = true; }),
      "");
}

TEST_F(ValidateLinearTest, RefusesWrongShapesAndPlanes) {
  const std::vector<std::pair<const char*, std::function<void(PackedLinear&)>>> changes = {
      {"input width", [](PackedLinear& l) { l.input.width = 64; }},
      {"no rows", [](PackedLinear& l) { l.weights.rows = 0; }},
      {"negative columns", [](PackedLinear& l) { l.weights.cols = l.input.width = -96; }},
      {"more rows than codes", [](PackedLinear& l) { l.weights.rows = 4; }},
      {"codes absent", [](PackedLinear& l) { l.weights.codes = {}; }},
      {"codes too short",
       [](PackedLinear& l) {
         l.weights.codes.shape = {3, 47};
       }},
      {"codes of another width", [](PackedLinear& l) { l.weights.format.bits = 5; }},
      {"codes of another type", [](PackedLinear& l) { l.weights.codes.dtype = DType::kI8; }},
      {"scales absent", [](PackedLinear& l) { l.weights.scales = {}; }},
      {"scales of another shape",
       [](PackedLinear& l) {
         l.weights.scales.shape = {3, 1};
       }},
      {"scales of another type", [](PackedLinear& l) { l.weights.scales.dtype = DType::kBf16; }},
      {"zeros absent", [](PackedLinear& l) { l.weights.zeros = {}; }},
      {"zeros of another type", [](PackedLinear& l) { l.weights.zeros.dtype = DType::kU8; }},
      {"group that does not divide", [](PackedLinear& l) { l.weights.format.group = 64; }},
      {"tiny activation group", [](PackedLinear& l) { l.input.activations.group = 3; }},
      {"bias of another length", [](PackedLinear& l) { l.bias.shape = {4}; }},
      {"bias of integers", [](PackedLinear& l) { l.bias.dtype = DType::kI32; }},
      {"16 bits without values", [](PackedLinear& l) { l.weights.format = {}; }},
  };
  for (const auto& [name, change] : changes) {
    EXPECT_THAT(Refusal(change), HasSubstr("layers.0.q")) << name;
  }
}

TEST_F(ValidateLinearTest, RefusesBadScales) {
  for (const float bad : {0.0f, -1.0f, INFINITY, NAN}) {
    weights_.scales_f16[4] = F16FromF32(bad);
    EXPECT_THAT(Refusal([](PackedLinear&) {}), HasSubstr("scale")) << bad;
  }
}

// Codes of K inputs sum to at most K * 255 * 128, which must fit an int32.
TEST(PackedLinearTest, SumsThatCouldOverflowAreRefused) {
  constexpr int64_t kLargest = INT32_MAX / (255 * 128);
  for (const int64_t cols : {kLargest, kLargest + 1}) {
    Rng rng(8);
    const PlaneVectors w = RandomPlanes(rng, {.bits = 8}, 1, cols);
    const PackedLinear linear = {.weights = View(w),
                                 .input = {.width = cols, .activations = {.bits = 8}}};
    EXPECT_EQ(ErrorOf([&] { ValidateLinear(linear, "x"); }).empty(), cols == kLargest) << cols;
  }
}

}  // namespace
}  // namespace nibble
