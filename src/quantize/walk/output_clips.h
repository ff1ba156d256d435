// SPDX-License-Identifier: Apache-2.0
// Clips of weights by what they do to products (Lin et al. 2023, AWQ): each group of a row has the
// range times p, of some p from 1 to 0.5, for which |x (Q(clipped w) - w)| is smallest over some
// inputs x of the group.
//
// Weights beyond the range are cut off before anything rounds them, so that a format with a clip of
// 1 has that range. q and k stay as they are, as in the paper's programs: errors of scores are no
// matter of either alone.
#pragma once

#include <vector>

#include "quantize/walk/input_sample.h"

namespace nibble {

inline constexpr int kTriedOutputClips = 11;  // 1, 0.95 .. 0.5

class OutputClips {
 public:
  // ids: windows of `context` tokens, which have to stay; the network is not rounded.
  OutputClips(Backend& backend, const ModelConfig& config, const Plan& plan,
              const EmbeddingRows& embedding, std::span<const int32_t> ids, int64_t context)
      : backend_(backend),
        config_(config),
        plan_(plan),
        stream_(backend, config, plan, embedding, ids, context, false) {}

  // Cuts off weights of the next layer.
  void Clip(int64_t index, FloatLayer& layer);
  // A layer that is rounded already.
  void Skip(int64_t index, const FloatLayer& layer) { stream_.Pass(StoreFloats(layer), index); }

 private:
  Backend& backend_;
  const ModelConfig& config_;
  const Plan& plan_;
  Stream stream_;
};

// Cuts off the weights of w [N, K] that are not in its tail, by inputs x [tokens, K].
void ClipByOutputs(const Matrix<double>& x, const FormatSpec& format, int64_t tail,
                   Matrix<double>& w);

}  // namespace nibble
