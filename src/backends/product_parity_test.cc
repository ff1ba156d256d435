// SPDX-License-Identifier: Apache-2.0
// Products of every backend against the reference backend: integers bit for bit, the rest within
// bounds derived below.
#include <cmath>
#include <set>

#include "backends/parity_testing.h"

namespace nibble {
namespace {

class ProductParityTest : public ParityTest {
 protected:
  // Batches at both ends of what each kernel takes, and some beyond.
  std::set<int64_t> Batches(const ProductFormat& product) const {
    std::set<int64_t> batches = {2, 33, 64, 130, 257};
    const auto choose = [&](const auto& p, int64_t tokens) { return ours_->KernelFor(p, tokens); };
    for (const KernelRange& range : KernelRanges(choose, product)) {
      EXPECT_FALSE(range.use.name.empty());
      batches.insert(range.first_tokens);
      if (range.first_tokens > 1) batches.insert(range.first_tokens - 1);
    }
    return batches;
  }

  // True if a machine adds up groups in fp32 in an order of its own.
  static bool AnyOrder(const std::string& machine, const ProductFormat& p) {
    return machine == "cuda" &&
           (p.weights.scales(p.cols) != 1 || p.activations.groups(p.cols) != 1);
  }

  // The largest error of each element of y [tokens, rows]: 0 where both operands are codes, unless
  // a machine adds groups in any order. Such groups are two chains of at most cols / 32 terms with
  // 6 roundings, |code| + |z| standing for each code; fp32 products two chains of `cols` products
  // and sums, beside bias and old output.
  //
  // Where weights are codes, 16-bit inputs become integers, too, though not always on a GPU: each
  // is off by at most half a step, 1 / 32639 of the row's largest, and by two roundings.
  class Bounds {
   public:
    Bounds(const ProductParityTest& test, const Activations& acts, const PackedWeights& w,
           const std::vector<float>& y)
        : y_(y), rows_(w.rows), cols_(w.cols) {
      const bool codes = w.format.quantized() && acts.format.quantized();
      const bool planes = w.format.quantized() && acts.format.bits == 16;
      if (codes && !AnyOrder(test.GetParam(), {w.format, acts.format, w.cols})) return;
      if (planes && test.GetParam() != "cuda") return;
      roundings_ = codes ? cols_ / 32 + 6 : cols_ + 4;
      const float* x = test.ref_->Decode(acts);
      x_.assign(x, x + acts.tokens * cols_);
      for (int64_t t = 0; t < acts.tokens; ++t) {
        double largest = 0;
        for (int64_t k = 0; k < cols_; ++k)
          largest = std::max<double>(largest, std::fabs(x[t * cols_ + k]));
        steps_.push_back(planes ? largest * (0.5 / 32639 + 2 * kUlp) : 0);
      }
      for (int64_t i = 0; codes && !acts.format.symmetric && i < acts.tokens * cols_; ++i) {
        const int64_t t = i / cols_, k = i % cols_, groups = acts.format.groups(cols_);
        const auto g = t * groups + k / (cols_ / groups);
        const float code = acts.codes[t * acts.stride + k];
        x_[static_cast<size_t>(i)] =
            acts.scales[g] * (std::fabs(code) + std::fabs(acts.zero_offsets[g]));
      }
      weights_ = Decode(w);
    }
    double operator[](size_t i) const {
      if (x_.empty()) return 0;
      const auto at = static_cast<int64_t>(i);
      double size = std::fabs(y_[i]) + 5;
      double weights = 0;
      for (int64_t k = 0; k < cols_; ++k) {
        const double w = std::fabs(weights_.row(at % rows_)[k]);
        size += std::fabs(double{x_[at / rows_ * cols_ + k]}) * w;
        weights += w;
      }
      return 2 * static_cast<double>(roundings_) * kUlp * size +
             steps_[static_cast<size_t>(at / rows_)] * weights;
    }

   private:
    const std::vector<float>& y_;
    int64_t rows_, cols_, roundings_ = 0;
    std::vector<float> x_;
    std::vector<double> steps_;  // half of one, of each row of x
    Matrix<float> weights_;
  };
};
NIBBLE_EVERY_MACHINE(ProductParityTest);

// Every row of docs/kernels.md on this machine.
TEST_P(ProductParityTest, EveryFormatAgrees) {
  for (ProductFormat p : ProductFormats()) {
    const FormatSpec &w = p.weights, &a = p.activations;
    for (const int64_t rows : {1, 63, 256}) {
      const int64_t group = std::max(w.group, a.group);  // small ones end inside a block
      p.cols = group == 0       ? rows % 2 == 0 ? 328 : 1000
               : group <= 64    ? rows == 63 ? 64 * 29 : 64 * 7
               : w.second_level ? 768
                                : 512;
      const InputSpec input = {.width = p.cols, .activations = a};
      const auto linear = RandomLinear(rng_, w, rows, input, rows % 3 == 0);
      const LinearId id = ours_->Upload(linear->packed), ref_id = ref_->Upload(linear->packed);
      for (const int64_t tokens : Batches(p)) {
        if (tokens > 65 && (tokens == 257) != (rows == 256)) continue;
        const bool accumulate = tokens % 2 == 1;
        const auto x = RandomRows(rng_, tokens, p.cols);
        auto y = accumulate ? RandomVector(rng_, tokens * rows)
                            : std::vector<float>(static_cast<size_t>(tokens * rows), kPoison);
        const Buffer<float> device_x = Copy(x), device_y = Copy(y);
        const auto prepare = [&] {
          return ours_->PrepareActs({.x = device_x.data()}, tokens, input);
        };
        const Activations exact = ref_->PrepareActs({.x = x.data()}, tokens, input);
        ours_->Gemm(prepare(), id, device_y.data(), rows, accumulate);
        ref_->Gemm(exact, ref_id, y.data(), rows, accumulate);
        const Bounds bounds(*this, exact, linear->packed.weights, y);
        const std::vector<float> sums = Host(device_y.data(), tokens * rows);
        for (size_t i = 0; i < y.size(); ++i) {
          ASSERT_LE(std::fabs(sums[i] - y[i]), bounds[i])
              << FormatText(w) << " x " << FormatText(a) << ", " << tokens << " x " << rows << " x "
              << p.cols << " at " << i;
        }
        // Project writes the same results as intermediate values, rounded once.
        std::ranges::fill(y, kPoison);
        const Buffer<Intermediate> values = CopyValues(y);
        const Backend::Projection ours = {id, values.data()}, wanted = {ref_id, Raw(y)};
        ours_->Project(prepare(), {&ours, 1});
        ref_->Project(exact, {&wanted, 1});
        const std::vector<float> kept = HostValues(values.data(), tokens * rows);
        for (size_t i = 0; i < y.size(); ++i) {
          const double rounding = bounds[i] > 0 ? std::fabs(y[i]) * 0x1p-7 : 0;
          ASSERT_LE(std::fabs(kept[i] - Kept(y[i])), bounds[i] + rounding)
              << tokens << " x " << rows;
        }
      }
      ours_->Release(id);
      ref_->Release(ref_id);
    }
  }
}

// Rows with an entry thousands of times larger than the others, as networks without a rotation
// have them: two planes of bytes lose no more than bf16 does (docs/numerics.md), over some rows,
// since a single large entry may happen to be a number of bf16.
TEST_P(ProductParityTest, PlanesLoseLessThanBf16) {
  constexpr int64_t kRows = 64, kTokens = 48;
  for (const int64_t cols : {512, 1536, 11008}) {
    const InputSpec input = {.width = cols};
    const auto linear = RandomLinear(rng_, {.bits = 4}, kRows, input, false);
    const Matrix<float> w = Decode(linear->packed.weights);
    const LinearId id = ours_->Upload(linear->packed);
    for (const float largest : {4.0f, 300.0f, 25000.0f}) {
      std::vector<float> x = RandomVector(rng_, kTokens * cols);
      for (int64_t t = 0; t < kTokens; ++t) {
        x[static_cast<size_t>(t * cols) + rng_.Below(static_cast<uint64_t>(cols))] =
            largest * static_cast<float>(1 + rng_.Uniform());
      }
      const Buffer<float> device_x = Copy(x);
      const Buffer<float> y = Copy(std::vector<float>(kTokens * kRows, kPoison));
      ours_->Gemm(ours_->PrepareActs({.x = device_x.data()}, kTokens, input), id, y.data(), kRows,
                  false);
      const std::vector<float> sums = Host(y.data(), kTokens * kRows);
      double planes = 0, narrow = 0;
      for (int64_t i = 0; i < kTokens * kRows; ++i) {
        double exact = 0, rounded = 0;
        for (int64_t k = 0; k < cols; ++k) {
          const float value = x[static_cast<size_t>(i / kRows * cols + k)];
          const double weight = w.row(i % kRows)[static_cast<size_t>(k)];
          exact += value * weight;
          rounded += F32FromBf16(Bf16FromF32(value)) * weight;
        }
        planes += std::pow(sums[static_cast<size_t>(i)] - exact, 2);
        narrow += std::pow(rounded - exact, 2);
      }
      EXPECT_LT(planes, narrow) << cols << " inputs, largest " << largest;
    }
    ours_->Release(id);
  }
}

// Several linears in one launch change no bit.
TEST_P(ProductParityTest, ProjectionsAreProductsRoundedOnce) {
  constexpr int64_t kCols = 1352, kRows[] = {130, 1, 64, 300, 70};
  for (const bool symmetric : {true, false}) {
    const InputSpec input = {.width = kCols, .activations = {.bits = 4, .symmetric = symmetric}};
    std::vector<LinearId> ids;
    for (const int64_t rows : kRows) {  // the fourth cannot run with the others
      const FormatSpec format = {.bits = rows == 300 ? 8 : 4};
      ids.push_back(ours_->Upload(RandomLinear(rng_, format, rows, input, false)->packed));
    }
    const Buffer<float> weight = Copy(RandomVector(rng_, kCols));
    for (const int64_t tokens : {1, 1, 12, 40, 65}) {
      const Buffer<float> x = Copy(RandomRows(rng_, tokens, kCols));
      const ActsSource norm = {.x = x.data(),
                               .op = ActsSource::Op::kRmsNorm,
                               .norm_weight = tokens == 12 ? nullptr : weight.data(),
                               .norm_eps = 1e-5f};
      std::vector<std::vector<float>> floats;
      std::vector<Buffer<Intermediate>> halves;
      std::vector<Backend::Projection> all;
      const Activations acts = ours_->PrepareActs(norm, tokens, input);
      for (size_t i = 0; i < ids.size(); ++i) {
        std::vector<float> poison(static_cast<size_t>(tokens * kRows[i]), kPoison);
        halves.push_back(CopyValues(poison));
        all.push_back({ids[i], halves.back().data()});
        const Buffer<float> y = Copy(poison);
        ours_->Gemm(acts, ids[i], y.data(), kRows[i], false);
        floats.push_back(Host(y.data(), tokens * kRows[i]));
        for (float& v : floats.back()) v = Kept(v);
      }
      ours_->Project(ours_->PrepareActs(norm, tokens, input), all);
      for (size_t i = 0; i < ids.size(); ++i) {
        ASSERT_EQ(HostValues(halves[i].data(), tokens * kRows[i]), floats[i])
            << i << ", " << tokens;
      }
    }
  }
}

// The law is exact on either side; gate, up and the result are rounded to bf16, 2^-9 of each,
// beside some ten roundings of silu, of which those of the exponent count |gate| times, or what a
// cubic makes of it.
//
// Groups that are added in another order may put gate and up on the other side of a boundary of
// bf16, 2^-8 of each; where they cancel, a rounding is one of a term, as large as the largest sums
// are.
TEST_P(ProductParityTest, GatedProductsAgree) {
  constexpr int64_t kCols = 384;
  for (const FormatSpec& format :
       {FormatSpec{.bits = 4}, FormatSpec{.bits = 8}, FormatSpec{.bits = 4, .group = 128},
        FormatSpec{.bits = 4, .sparse = true}}) {
    const InputSpec input = {.width = kCols, .activations = {.bits = 4, .group = format.group}};
    const bool any_order = AnyOrder(GetParam(), {format, input.activations, kCols});
    const GateSpec gating = format.bits == 8 ? kGelu : kSilu;
    for (const int64_t rows : {8, 120, 1000, 1003}) {  // not by eights: not in one product
      std::vector<LinearId> ids, ref_ids;
      for (int i = 0; i < 2; ++i) {
        const auto linear = RandomLinear(rng_, format, rows, input, false);
        ids.push_back(ours_->Upload(linear->packed)),
            ref_ids.push_back(ref_->Upload(linear->packed));
      }
      const InputSpec whole = {.width = rows};
      for (const int64_t tokens : {1, 48, 65, 257, 700}) {
        const auto x = RandomRows(rng_, tokens, kCols);
        std::vector<float> gate(static_cast<size_t>(tokens * rows), kPoison), up = gate;
        const Buffer<float> device_x = Copy(x);
        Buffer<Intermediate> device_gate = CopyValues(gate), device_up = CopyValues(up);
        ActsSource source =
            ours_->ProjectGated(ours_->PrepareActs({.x = device_x.data()}, tokens, input),
                                {ids[0], device_gate.data()}, {ids[1], device_up.data()}, gating);
        const bool one_product = source.op == ActsSource::Op::kIntermediate;
        ASSERT_TRUE(!one_product || (rows % 8 == 0 && tokens > 32));
        const std::vector<float> y =
            rows % 8 == 0 ? Host(ours_->PrepareActs(source, tokens, whole).values, tokens * rows)
                          : HostValues(device_up.data(), tokens * rows);
        const Backend::Projection outputs[] = {{ref_ids[0], Raw(gate)}, {ref_ids[1], Raw(up)}};
        ref_->Project(ref_->PrepareActs({.x = x.data()}, tokens, input), outputs);
        double largest = 0;
        for (const auto* values : {&gate, &up}) {
          for (size_t i = 0; i < y.size(); ++i) {
            largest = std::max(largest, std::fabs(double{Kept((*values)[i])}));
          }
        }
        const double reordered = any_order ? 2 * kCols / 128 * kUlp * largest : 0;
        for (size_t i = 0; i < y.size(); ++i) {
          const double g = Kept(gate[i]), u = Kept(up[i]);
          const double opening = g * (gating.linear + gating.cubic * g * g);
          const double gradient = std::fabs(g * (gating.linear + 3 * gating.cubic * g * g));
          const double wanted = rows % 8 == 0 ? g / (1 + std::exp(-opening)) * u : u;
          double error = one_product ? 0x1p-8 : 16 * (1 + gradient) * kUlp;
          if (any_order) error += 0x1p-8 * (2 + gradient);
          ASSERT_NEAR(y[i], wanted,
                      error * std::fabs(wanted) + reordered * (std::fabs(g) + std::fabs(u)) + 1e-30)
              << FormatText(format) << ", " << tokens << " x " << rows << ", " << i;
        }
      }
      for (const LinearId id : ids) ours_->Release(id);
    }
  }
}

Tensor InFp16(const Tensor& values) {
  std::vector<uint16_t> halves;
  for (const float v : ToF32(values).data) halves.push_back(F16FromF32(v));
  return Tensor::Of(DType::kF16, values.shape, std::move(halves));
}

// Gathered rows in two parts: bit for bit where both are integers, in fp32 and as intermediate
// values; with a product in fp32 within the roundings of its chain.
TEST_P(ProductParityTest, TailsAgree) {
  const FormatSpec a4 = {.bits = 4}, a8 = {.bits = 8}, dense = {.bits = 16};
  const FormatSpec groups = {.bits = 4, .group = 128, .clip = 0.9};
  const TailCase cases[] = {
      {a4, a4, a8, a8},          {a4, {.bits = 4, .symmetric = false}, a8, a8},
      {groups, groups, a8, a8},  {a8, {.bits = 8, .symmetric = false}, dense, dense},
      {a4, dense, dense, dense}, {{.bits = 8, .sparse = true}, a8, dense, dense}};
  for (const TailCase& c : cases) {
    const bool exact =
        c.tail_activations.quantized() && !AnyOrder(GetParam(), {c.weights, c.activations, 512});
    for (const int64_t rows : {1, 130}) {
      const int64_t tail = rows == 1 ? 8 : 96, width = 512 + tail;
      const InputSpec input = RandomTailedInput(rng_, c, width, tail);
      const auto linear =
          RandomTailedLinear(rng_, c.weights, c.tail_weights, rows, input, rows > 1);
      PackedWeights& last = linear->packed.tail;
      if (rows == 1 && !c.tail_weights.quantized()) last.values = InFp16(last.values);
      const LinearId id = ours_->Upload(linear->packed), ref_id = ref_->Upload(linear->packed);
      for (const int64_t tokens : {1, 9, 40, 70, 300}) {
        const auto x = RandomVector(rng_, tokens * width);
        auto y = RandomVector(rng_, tokens * rows), start = y;
        const Buffer<float> device_x = Copy(x), device_y = Copy(y);
        const Activations acts = ours_->PrepareActs({.x = device_x.data()}, tokens, input);
        ours_->Gemm(acts, id, device_y.data(), rows, true);
        const std::vector<float> decoded = Host(ours_->Decode(acts), tokens * width);
        const Activations ref_acts = ref_->PrepareActs({.x = x.data()}, tokens, input);
        ref_->Gemm(ref_acts, ref_id, y.data(), rows, true);
        const float* values = ref_->Decode(ref_acts);
        ASSERT_TRUE(std::equal(decoded.begin(), decoded.end(), values));
        // |sum of products| of normal inputs and weights below 0.1 * 128, or normal ones, in any
        // order.
        const double bound = exact ? 0 : static_cast<double>(2 * width + 8) * kUlp * 200 * width;
        const std::vector<float> result = Host(device_y.data(), tokens * rows);
        for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(result[i], y[i], bound) << i;
        Buffer<Intermediate> halves = CopyValues(start), again = CopyValues(start);
        const Backend::Projection to_halves[] = {{id, halves.data()}, {id, again.data()}};
        const Backend::Projection to_floats = {ref_id, Raw(y)};
        ours_->Project(ours_->PrepareActs({.x = device_x.data()}, tokens, input), to_halves);
        ref_->Project(ref_->PrepareActs({.x = x.data()}, tokens, input), {&to_floats, 1});
        const std::vector<float> narrow = HostValues(halves.data(), tokens * rows);
        ASSERT_EQ(narrow, HostValues(again.data(), tokens * rows));
        for (size_t i = 0; i < y.size(); ++i) {
          const float wanted = Kept(y[i]);
          ASSERT_NEAR(narrow[i], wanted, exact ? 0 : bound + std::fabs(wanted) * 0x1p-7) << i;
        }
      }
      ours_->Release(id);
      ref_->Release(ref_id);
    }
  }
}

// Steps of two callers whose batches have one shape, on memory that moves; each is launched,
// recorded and played.
TEST_P(ProductParityTest, RecordedStepsFollowTheirMemory) {
  constexpr int64_t kCount = 256;
  const SequenceSlice step = {.tokens = 1};
  const OpsId ids[2];
  Buffer<float> x[2];
  const Buffer<float> y = Copy(RandomVector(rng_, kCount));
  for (int64_t growth = 1; growth <= 4; ++growth) {
    for (auto& buffer : x) buffer = Copy(RandomVector(rng_, growth * kCount));
    for (int i = 0; i < 6; ++i) {
      const float* from = x[i % 2].data();
      ours_->Run(ids[i % 2], {&step, 1}, [&] { ours_->Copy(from, kCount, y.data()); });
      EXPECT_EQ(Host(y.data(), kCount), Host(from, kCount)) << growth << ", " << i;
    }
  }
}

}  // namespace
}  // namespace nibble
