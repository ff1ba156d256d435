// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/code_matrix.h"

#include <algorithm>

#include "base/half.h"
#include "base/thread_pool.h"
#include "quantize/round/weight_code.h"
#include "tensor/e2m1.h"

namespace nibble {

uint32_t LargestTwo(const std::array<double, 4>& importance) {
  uint32_t kept = 0;
  for (int pick = 0; pick < 2; ++pick) {
    int best = -1;
    for (int i = 0; i < 4; ++i) {
      if ((kept >> i & 1) != 0) continue;
      if (best < 0 || importance[static_cast<size_t>(i)] > importance[static_cast<size_t>(best)]) {
        best = i;
      }
    }
    kept |= 1u << best;
  }
  return kept;
}

CodeMatrix::CodeMatrix(const Matrix<double>& w, int64_t cols, const FormatSpec& format)
    : format_(format),
      group_(format.group == 0 ? cols : format.group),
      groups_(format.groups(cols)),
      codes_(w.rows, cols),
      codewords_(format.codewords() ? w.rows : 0,
                 format.codewords() ? cols / WeightCode(format).weights() : 0),
      grids_(static_cast<size_t>(w.rows * groups_)) {
  if (!format.second_level) return;
  row_scales_.resize(static_cast<size_t>(w.rows));
  FillRows([&](int64_t n) {
    row_scales_[static_cast<size_t>(n)] =
        FindRowScale(w.row(n).first(static_cast<size_t>(cols)), format);
  });
}

const WeightGrid& CodeMatrix::FindGrid(int64_t n, int64_t k, std::span<const double> values) {
  const float row_scale = row_scales_.empty() ? 0 : row_scales_[static_cast<size_t>(n)];
  WeightGrid& grid = grids_[static_cast<size_t>(n * groups_ + k / group_)];
  return grid = nibble::FindGrid(values, format_, row_scale);
}

void CodeMatrix::FindGrids(const Matrix<double>& w) {
  FillRows([&](int64_t n) {
    for (int64_t k = 0; k < cols(); k += group_) {
      FindGrid(n, k, w.row(n).subspan(static_cast<size_t>(k), static_cast<size_t>(group_)));
    }
  });
}

void CodeMatrix::FillRows(const std::function<void(int64_t)>& fill) const {
  ParallelFor(static_cast<size_t>(codes_.rows), [&](size_t n) { fill(static_cast<int64_t>(n)); });
}

void CodeMatrix::KeepTwo(int64_t n, int64_t k, std::vector<int8_t>& codes,
                         std::vector<int8_t>& places) const {
  const int8_t* four = codes_.row(n).data() + k;
  const int zero = Grid(n, k).zero;
  const auto zeros = std::count(four, four + 4, zero);
  NIBBLE_CHECK(zeros >= 2, "{} of 4 weights are not 0", 4 - zeros);
  auto stored_zeros = zeros - 2;  // to make two
  for (int8_t place = 0; place < 4; ++place) {
    if (four[place] == zero && stored_zeros-- <= 0) continue;
    codes.push_back(four[place]);
    places.push_back(place);
  }
}

PackedWeights CodeMatrix::PackFloats() const {
  const WeightCode code(format_);
  std::vector<uint16_t> values(codes_.data.size());
  FillRows([&](int64_t n) {
    uint16_t* value = values.data() + n * cols();
    for (const uint32_t word : codewords_.row(n)) {
      const WeightCode::Codeword codeword = code.Decode(word);
      for (size_t i = 0; i < static_cast<size_t>(code.weights()); ++i) {
        *value++ = F16FromF32(Grid(n, 0).scale * codeword[i]);
      }
    }
  });
  return {.format = format_.as_stored(),
          .rows = codes_.rows,
          .cols = cols(),
          .values = Tensor::Of(DType::kF16, {codes_.rows, cols()}, std::move(values))};
}

PackedWeights CodeMatrix::Pack() const {
  if (format_.compared()) return PackFloats();
  PackedWeights w = {.format = format_, .rows = codes_.rows, .cols = codes_.cols};
  const int64_t stored = format_.stored(w.cols), row_bytes = PackedBytes(stored, format_.bits);
  const int64_t place_bytes = sparse() ? PackedBytes(stored, 2) : 0;
  std::vector<uint8_t> packed(static_cast<size_t>(w.rows * row_bytes));
  std::vector<uint8_t> packed_places(static_cast<size_t>(w.rows * place_bytes));
  FillRows([&](int64_t n) {
    uint8_t* const row = packed.data() + n * row_bytes;
    if (format_.lattice()) {
      for (size_t i = 0; const uint32_t code : codewords_.row(n)) {
        for (int j = 0; j < format_.bits; ++j) row[i++] = static_cast<uint8_t>(code >> 8 * j);
      }
      return;
    }
    if (format_.e2m1()) {
      std::vector<int8_t> bits(static_cast<size_t>(w.cols));
      std::ranges::transform(codes_.row(n), bits.begin(), E2m1Bits);
      return PackCodes(bits.data(), w.cols, format_.bits, row);
    }
    if (!sparse()) return PackCodes(codes_.row(n).data(), w.cols, format_.bits, row);
    std::vector<int8_t> codes, places;
    for (int64_t k = 0; k < w.cols; k += 4) KeepTwo(n, k, codes, places);
    PackCodes(codes.data(), stored, format_.bits, row);
    PackCodes(places.data(), stored, 2, packed_places.data() + n * place_bytes);
  });
  std::vector<float> scales = row_scales_;
  std::vector<uint16_t> half_scales;
  std::vector<uint8_t> group_scales;
  std::vector<int8_t> zeros;
  for (const WeightGrid& grid : grids_) {
    if (!format_.row_scales()) half_scales.push_back(F16FromF32(grid.scale));
    if (format_.second_level) group_scales.push_back(static_cast<uint8_t>(grid.group_scale));
    if (format_.row_scales() && !format_.second_level) scales.push_back(grid.scale);
    if (!format_.symmetric) zeros.push_back(static_cast<int8_t>(grid.zero));
  }
  const int64_t groups = w.groups();
  w.codes = Tensor::Of(DType::kU8, {w.rows, row_bytes}, std::move(packed));
  w.places = Tensor::Of(DType::kU8, {w.rows, place_bytes}, std::move(packed_places));
  w.scales = format_.row_scales()
                 ? Tensor::Of(DType::kF32, {w.rows, 1}, std::move(scales))
                 : Tensor::Of(DType::kF16, {w.rows, groups}, std::move(half_scales));
  w.group_scales = Tensor::Of(DType::kU8, {w.rows, groups}, std::move(group_scales));
  w.zeros = Tensor::Of(DType::kI8, {w.rows, groups}, std::move(zeros));
  return w;
}

}  // namespace nibble
