// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>

#include "compute/backend.h"
#include "quantize/map/rotate.h"

namespace nibble {

inline constexpr int64_t kClipWindows = 4;  // the valley is flat: more move clips by a hundredth

// Sets each activation clip of `plan` that is 0 to that with the smallest squared output error |E
// W^T|^2, E [tokens, K] the error of the quantized input, over all linears that share it. The first
// windows of `ids`, `context` tokens each, run through 8-bit weights, the cache as planned and the
// clips chosen so far. progress(layers done) may throw.
void ChooseClips(Backend& backend, const ModelConfig& config, const EmbeddingRows& embedding,
                 const FloatLayers& layers, std::span<const int32_t> ids, int64_t context,
                 Plan& plan, const std::function<void(double)>& progress);

// The multiple of 0.01 in [0.3, 1] where `error`, a function with one valley, is smallest.
double BestClip(const std::function<double(double)>& error);

}  // namespace nibble
