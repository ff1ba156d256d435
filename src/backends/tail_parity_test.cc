// SPDX-License-Identifier: Apache-2.0
// Gathered inputs whose last columns have a format of their own: the cpu backend and the reference
// backend on every instruction set of this machine, over odd sizes.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "backends/parity_testing.h"

namespace nibble {
namespace {

const FormatSpec kFour = {.bits = 4}, kEight = {.bits = 8}, kDense = {.bits = 16};
const FormatSpec kAsymmetric = {.bits = 4, .symmetric = false};
const FormatSpec kGroups = {.bits = 4, .group = 32, .clip = 0.9};

// Integers throughout: what quik's down projection and atom use, and stranger ones.
const TailCase kIntegerCases[] = {{kFour, kFour, kEight, kEight},
                                  {kFour, kAsymmetric, kEight, {.bits = 8, .symmetric = false}},
                                  {kGroups, kGroups, kEight, kEight},
                                  {{.bits = 4, .symmetric = false}, kEight, {.bits = 5}, kFour}};
// A product in fp32 at least in one of the parts.
const TailCase kFloatCases[] = {{kFour, kAsymmetric, kDense, kDense},
                                {kFour, kDense, kDense, kDense},
                                {kEight, kEight, kEight, kDense},
                                {kDense, kDense, kFour, kFour}};

class TailParityTest : public CpuParityTest {};
NIBBLE_EVERY_ISA(TailParityTest);

// Rows of part `acts` against the quantizer on columns [first, first + width) of the gathered rows.
void ExpectPart(const Activations& acts, const InputSpec& input, const std::vector<float>& x,
                int64_t first) {
  const int64_t groups = acts.format.groups(acts.width);
  std::vector<int8_t> codes(static_cast<size_t>(acts.width));
  std::vector<float> row(codes.size()), scales(static_cast<size_t>(groups)), zero_offsets(scales);
  std::vector<int32_t> sums(scales.size());
  for (int64_t t = 0; t < acts.tokens; ++t) {
    for (int64_t i = 0; i < acts.width; ++i) row[i] = x[t * input.width + input.gather[first + i]];
    if (!acts.format.quantized()) {
      ASSERT_TRUE(std::equal(row.begin(), row.end(), acts.values + t * acts.width));
      continue;
    }
    QuantizeActivations(row, acts.format,
                        {codes.data(), scales.data(), zero_offsets.data(), sums.data()});
    ASSERT_TRUE(std::equal(codes.begin(), codes.end(), acts.codes + t * acts.stride)) << t;
    ASSERT_TRUE(std::equal(scales.begin(), scales.end(), acts.scales + t * groups));
    ASSERT_TRUE(std::equal(sums.begin(), sums.end(), acts.sums + t * groups));
    if (acts.format.symmetric) continue;
    ASSERT_TRUE(
        std::equal(zero_offsets.begin(), zero_offsets.end(), acts.zero_offsets + t * groups));
  }
}

TEST_P(TailParityTest, BothPartsAreTheGatheredColumns) {
  for (const auto& cases : {std::span<const TailCase>(kIntegerCases), {kFloatCases}}) {
    for (const TailCase& c : cases) {
      for (const int64_t tail : {1, 32, 70}) {
        const InputSpec input = RandomTailedInput(rng_, c, 320 + tail, tail);
        for (const int64_t tokens : {1, 5, 40}) {
          const auto x = RandomRows(rng_, tokens, input.width);
          for (Backend* backend : {ours_.get(), ref_.get()}) {
            const Activations acts = backend->PrepareActs({.x = x.data()}, tokens, input);
            ASSERT_EQ(acts.width, 320);
            ASSERT_NE(acts.tail, nullptr);
            ASSERT_EQ(acts.tail->width, tail);
            if (backend == ours_.get()) {
              ExpectPart(acts, input, x, 0);
              ExpectPart(*acts.tail, input, x, 320);
            }
          }
          // Ref keeps what the codes mean; that is checked through the products below.
          const Activations a = ours_->PrepareActs({.x = x.data()}, tokens, input);
          const Activations b = ref_->PrepareActs({.x = x.data()}, tokens, input);
          const float *ours = ours_->Decode(a), *exact = ref_->Decode(b);
          ASSERT_TRUE(std::equal(ours, ours + tokens * input.width, exact));
        }
      }
    }
  }
}

// A gather of the whole row without a tail, also behind a transform.
TEST_P(TailParityTest, GatherAlone) {
  const std::vector<int32_t> gather = rng_.Permutation<int32_t>(96);
  const auto x = RandomRows(rng_, 7, 96);
  for (const FormatSpec& format : {kFour, kDense}) {
    InputSpec input;
    input.width = 96;
    input.gather = gather;
    input.activations = format;
    ExpectPart(ours_->PrepareActs({.x = x.data()}, 7, input), input, x, 0);
  }
  InputSpec plain;
  plain.width = 96;
  plain.transform = {.factors = FullHadamard(4).factors, .inner = 24};
  for (Backend* backend : {ours_.get(), ref_.get()}) {
    const float* values = backend->PrepareActs({.x = x.data()}, 7, plain).values;
    const std::vector<float> rotated(values, values + 7 * 96);
    InputSpec gathered = plain;
    gathered.gather = gather;
    values = backend->PrepareActs({.x = x.data()}, 7, gathered).values;
    for (int64_t i = 0; i < 7 * 96; ++i) {
      ASSERT_EQ(values[i], rotated[i / 96 * 96 + gather[i % 96]]);
    }
  }
}

// The product against fp64 sums of decoded weights and decoded inputs, and between the backends:
// bit for bit where both parts are integers. K + 8 roundings of fp32 at most otherwise.
TEST_P(TailParityTest, ProductsAddTheTail) {
  for (const auto& cases : {std::span<const TailCase>(kIntegerCases), {kFloatCases}}) {
    for (const TailCase& c : cases) {
      for (const int64_t rows : {1, 33, 100}) {
        for (const int64_t tokens : {1, 4, 33}) {
          const int64_t tail = rows % 2 == 0 ? 32 : 5, width = 352 + tail;
          const InputSpec input = RandomTailedInput(rng_, c, width, tail);
          const auto linear =
              RandomTailedLinear(rng_, c.weights, c.tail_weights, rows, input, rows != 33);
          const auto x = RandomVector(rng_, tokens * width);
          const bool accumulate = tokens == 4;
          const auto start = RandomVector(rng_, tokens * rows);
          std::vector<float> ours = start, exact = start;
          const LinearId id = ours_->Upload(linear->packed), ref_id = ref_->Upload(linear->packed);
          ours_->Gemm(ours_->PrepareActs({.x = x.data()}, tokens, input), id, ours.data(), rows,
                      accumulate);
          const Activations acts = ref_->PrepareActs({.x = x.data()}, tokens, input);
          ref_->Gemm(acts, ref_id, exact.data(), rows, accumulate);
          ours_->Release(id);
          ref_->Release(ref_id);
          if (cases.data() == kIntegerCases) {
            ASSERT_EQ(ours, exact) << FormatText(c.weights) << ", " << rows << " x " << tokens;
          }
          const Matrix<float> main = Decode(linear->packed.weights);
          const Matrix<float> last = Decode(linear->packed.tail);
          const float* decoded = ref_->Decode(acts);
          for (int64_t i = 0; i < tokens * rows; ++i) {
            const int64_t n = i % rows;
            double sum = accumulate ? start[i] : 0.0;
            if (!linear->bias.empty()) sum += linear->bias[n];
            double size = std::fabs(sum) + 5;
            for (int64_t k = 0; k < width; ++k) {
              const float w = k < 352 ? main.row(n)[k] : last.row(n)[k - 352];
              sum += double{w} * decoded[i / rows * width + k];
              size += std::fabs(double{w} * decoded[i / rows * width + k]);
            }
            const double bound = static_cast<double>(width + 8) * kUlp * size;
            ASSERT_NEAR(exact[i], sum, bound);
            ASSERT_NEAR(ours[i], sum, bound);
          }
        }
      }
    }
  }
}

// A row has the same bits alone and in a batch.
TEST_P(TailParityTest, RowsDependOnNothingElse) {
  const int64_t tokens = 37, width = 416, rows = 50;
  for (const TailCase& c : {kIntegerCases[1], kFloatCases[0]}) {
    const InputSpec input = RandomTailedInput(rng_, c, width, 64);
    const auto linear = RandomTailedLinear(rng_, c.weights, c.tail_weights, rows, input, true);
    const auto x = RandomVector(rng_, tokens * width);
    const LinearId id = ours_->Upload(linear->packed);
    std::vector<float> batch(static_cast<size_t>(tokens * rows), kPoison), alone(rows, kPoison);
    const Backend::Projection all = {id, Raw(batch)}, one = {id, Raw(alone)};
    ours_->Project(ours_->PrepareActs({.x = x.data()}, tokens, input), {&all, 1});
    for (int64_t t = 0; t < tokens; ++t) {
      ours_->Project(ours_->PrepareActs({.x = x.data() + t * width}, 1, input), {&one, 1});
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), batch.begin() + t * rows)) << t;
    }
  }
}

}  // namespace
}  // namespace nibble
