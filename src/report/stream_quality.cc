// SPDX-License-Identifier: Apache-2.0
#include "report/stream_quality.h"

#include <lapacke.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <new>
#include <optional>

#include "base/thread_pool.h"
#include "quantize/map/rotate.h"
#include "quantize/walk/stream.h"
#include "transforms/blas.h"

namespace nibble {
namespace {

// Rows of the embedding that a rotation is fitted to, for each dimension of the stream. So many
// equations for as many unknowns average the codes' errors away.
constexpr int64_t kFittedRows = 16, kLeastFittedRows = 2;
// No format leaves so little of an embedding, and no rotation brings those of two models closer.
constexpr double kLeastEmbedding = 3;  // dB

// What the residual stream of a network begins with.
EmbeddingRows EmbeddingOf(const Network& network) {
  const auto rows_of = [&network](std::span<const int32_t> ids) {
    const PackedWeights& table = network.embedding;
    const auto scale = static_cast<float>(network.config.embedding_scale);
    Matrix<float> rows(static_cast<int64_t>(ids.size()), network.config.hidden_size);
    for (size_t t = 0; t < ids.size(); ++t) {
      const std::span<float> row = rows.row(static_cast<int64_t>(t));
      if (table.format.quantized()) {
        DecodeRow(table, ids[t], row);
      } else {
        std::ranges::copy(ToF32(table.values.Rows(ids[t], 1)).data, row.begin());
      }
      if (network.positions.data != nullptr) {
        const Matrix<float> place = ToF32(network.positions.Rows(static_cast<int64_t>(t), 1));
        for (size_t k = 0; k < row.size(); ++k) row[k] += place.data[k];
      }
      for (float& value : row) value *= scale;
    }
    return rows;
  };
  return {rows_of, network.config.layer_input_size > 0 ? &network : nullptr};
}

Matrix<double> Widened(const float* values, int64_t rows, int64_t cols) {
  Matrix<double> wide(rows, cols);
  std::copy_n(values, wide.data.size(), wide.data.begin());
  return wide;
}

// Rows spread over the whole vocabulary, one by one at place 0, as that adds the same to each.
Matrix<double> SomeRows(const EmbeddingRows& embedding, int64_t count, const ModelConfig& config) {
  Matrix<double> rows(count, config.hidden_size);
  for (int64_t i = 0; i < count; ++i) {
    const auto id = static_cast<int32_t>(i * config.vocab_size / count);
    std::ranges::copy(embedding({&id, 1}).data, rows.row(i).begin());
  }
  return rows;
}

// x as the model has it whose stream is turned by R.
Matrix<double> Turned(const Matrix<double>& x, const Matrix<double>& rotation) {
  Matrix<double> turned(x.rows, x.cols);
  Multiply(x, rotation, true, turned);
  return turned;
}

double Middle(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// A checkpoint on its way through the layers.
class Follower {
 public:
  Follower(Backend& backend, const Network& source, const Network& checkpoint,
           std::span<const int32_t> ids, int64_t context)
      : checkpoint_(checkpoint),
        plan_(PlanFromJson(checkpoint.config_json.at("quantization_config"), checkpoint.config,
                           checkpoint.directory)) {
    quality_.turned = plan_.norms_folded;
    FindBasis(source);
    if (!quality_.unmeasured.empty()) return;
    stream_.emplace(backend, checkpoint.config, plan_, EmbeddingOf(checkpoint), ids, context, true);
  }

  void Pass(int64_t layer) {
    if (stream_) stream_->Pass(checkpoint_.layers[static_cast<size_t>(layer)], layer);
  }
  void Compare(Backend& backend, const Matrix<double>& source) {
    if (!stream_) return;
    const Matrix<double> y = quality_.turned ? Turned(source, rotation_) : source;
    const float* const x = backend.Read(stream_->x(), y.rows * y.cols);
    const Matrix<double> other = Widened(x, y.rows, y.cols);
    std::vector<double> tokens;
    for (int64_t t = 0; t < y.rows; ++t) tokens.push_back(Sqnr(y.row(t), other.row(t)));
    quality_.together.push_back(Sqnr(y.data, other.data));
    quality_.middle.push_back(Middle(std::move(tokens)));
  }
  StreamQuality Result() { return std::move(quality_); }

 private:
  void FindBasis(const Network& source) {
    const ModelConfig& config = source.config;
    const int64_t count = std::min(config.vocab_size, kFittedRows * config.hidden_size);
    if (quality_.turned && count < kLeastFittedRows * config.hidden_size) {
      quality_.unmeasured = fmt::format(
          "{} rows of the embedding do not show how {} dimensions of the stream are turned", count,
          config.hidden_size);
      return;
    }
    Matrix<double> y = SomeRows(EmbeddingOf(source), count, config);
    const Matrix<double> other = SomeRows(EmbeddingOf(checkpoint_), count, config);
    if (quality_.turned) {
      rotation_ = FitRotation(y, other);
      y = Turned(y, rotation_);
    }
    quality_.embedding = Sqnr(y.data, other.data);
    quality_.limit = quality_.embedding + 10 * std::log10(static_cast<double>(count) /
                                                          static_cast<double>(config.hidden_size));
    if (quality_.embedding >= kLeastEmbedding) return;
    Fail("{}: is a checkpoint of another model, its embedding is not that of {}",
         checkpoint_.directory, source.directory);
  }

  const Network& checkpoint_;
  const Plan plan_;
  Matrix<double> rotation_;
  std::optional<Stream> stream_;
  StreamQuality quality_;
};

}  // namespace

double Sqnr(std::span<const double> y, std::span<const double> other) {
  double signal = 0, noise = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    signal += y[i] * y[i];
    noise += (y[i] - other[i]) * (y[i] - other[i]);
  }
  return 10 * std::log10(signal / noise);
}

Matrix<double> FitRotation(const Matrix<double>& from, const Matrix<double>& to) {
  const int64_t n = from.cols;
  const auto transposed = [](const Matrix<double>& m) {
    Matrix<double> t(m.cols, m.rows);
    for (int64_t i = 0; i < m.rows; ++i) {
      for (int64_t k = 0; k < m.cols; ++k) t.row(k)[static_cast<size_t>(i)] = m.row(i)[k];
    }
    return t;
  };
  Matrix<double> sum(n, n), u(n, n), vt(n, n), rotation(n, n);
  Multiply(transposed(to), transposed(from), true, sum);
  std::vector<double> singular(static_cast<size_t>(n));
  const auto size = static_cast<lapack_int>(n);
  const lapack_int info =
      LAPACKE_dgesdd(LAPACK_ROW_MAJOR, 'A', size, size, sum.data.data(), size, singular.data(),
                     u.data.data(), size, vt.data.data(), size);
  if (info == LAPACK_WORK_MEMORY_ERROR || info == LAPACK_TRANSPOSE_MEMORY_ERROR) {
    throw std::bad_alloc();
  }
  if (info != 0) Fail("the rotation of the residual stream cannot be found (dgesdd: {})", info);
  Multiply(u, vt, false, rotation);
  return rotation;
}

std::vector<StreamQuality> CompareStreams(Backend& backend, const Network& source, const Plan& plan,
                                          std::span<const Network> checkpoints,
                                          std::span<const int32_t> ids, int64_t context,
                                          const std::function<void(double)>& progress) {
  const ModelConfig& config = source.config;
  const Rotator floats(source, Recipe{}, plan, 0);
  Stream stream(backend, config, plan, floats.embedding(), ids, context, false);
  std::vector<std::unique_ptr<Follower>> followers;  // at places that do not move
  for (const Network& checkpoint : checkpoints) {
    followers.push_back(std::make_unique<Follower>(backend, source, checkpoint, ids, context));
  }
  const auto parts = static_cast<double>(config.layers * (1 + std::ssize(followers)));
  double done = 0;
  for (int64_t i = 0; i < config.layers; ++i) {
    stream.Pass(StoreFloats(floats.Layer(i)), i);
    progress(++done / parts);
    const Matrix<double> x = Widened(backend.Read(stream.x(), std::ssize(ids) * config.hidden_size),
                                     std::ssize(ids), config.hidden_size);
    for (const auto& follower : followers) {
      follower->Pass(i);
      follower->Compare(backend, x);
      progress(++done / parts);
    }
  }
  std::vector<StreamQuality> results;
  for (const auto& follower : followers) results.push_back(follower->Result());
  return results;
}

}  // namespace nibble
