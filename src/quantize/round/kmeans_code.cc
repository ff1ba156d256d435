// SPDX-License-Identifier: Apache-2.0
#include "quantize/round/kmeans_code.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/rng.h"
#include "base/target_clones.h"
#include "base/thread_pool.h"

namespace nibble {
namespace {

constexpr int64_t kWeights = KmeansCode::kWeights;
constexpr int64_t kWords = 256, kLanes = 16, kSamples = 1 << 17;
constexpr int kRounds = 24;
using Sample = std::array<float, kWeights>;

struct Words {
  alignas(64) float magnitudes[kWeights][kWords];
  alignas(64) float halved_norms[kWords];

  void FindNorms() {
    for (int64_t w = 0; w < kWords; ++w) {
      halved_norms[w] = 0;
      for (const auto& of_weight : magnitudes) {
        halved_norms[w] += of_weight[w] * of_weight[w] / 2;
      }
    }
  }
};

// The word nearest to some magnitudes: the one with the largest <x, word> - |word|^2 / 2. Words
// that are kLanes apart share a lane, so that the search for the largest one runs in vectors, too.
NIBBLE_TARGET_CLONES int64_t NearestWord(const Words& words, const Sample& x) {
  alignas(64) float score[kWords], best[kLanes];
  alignas(64) int32_t at[kLanes];
  for (int64_t w = 0; w < kWords; ++w) score[w] = -words.halved_norms[w];
  for (int64_t i = 0; i < kWeights; ++i) {
    const float value = x[static_cast<size_t>(i)];
    for (int64_t w = 0; w < kWords; ++w) score[w] += words.magnitudes[i][w] * value;
  }
  for (int32_t lane = 0; lane < kLanes; ++lane) best[lane] = score[lane], at[lane] = lane;
  for (int32_t w = kLanes; w < kWords; w += kLanes) {
    for (int32_t lane = 0; lane < kLanes; ++lane) {
      const bool better = score[w + lane] > best[lane];
      best[lane] = better ? score[w + lane] : best[lane];
      at[lane] = better ? w + lane : at[lane];
    }
  }
  return at[std::max_element(best, best + kLanes) - best];
}

// Moves each word to the mean of the samples that are nearest to it; a word that has none stays.
void MoveToMeans(const std::vector<Sample>& samples, const std::vector<int64_t>& nearest,
                 Words& words) {
  std::vector<std::array<double, kWeights>> sums(kWords);
  std::vector<double> counts(kWords);
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto word = static_cast<size_t>(nearest[s]);
    for (size_t i = 0; i < samples[s].size(); ++i) sums[word][i] += samples[s][i];
    ++counts[word];
  }
  for (size_t w = 0; w < counts.size(); ++w) {
    for (size_t i = 0; counts[w] > 0 && i < kWeights; ++i) {
      words.magnitudes[i][w] = static_cast<float>(sums[w][i] / counts[w]);
    }
  }
}

// Words in whole units, found from the magnitudes of the first samples.
Words Train() {
  Rng rng(1);
  std::vector<Sample> samples(kSamples);
  for (Sample& sample : samples) {
    for (float& value : sample) value = std::fabs(static_cast<float>(rng.Normal()));
  }
  Words words;
  for (size_t w = 0; w < kWords; ++w) {
    for (size_t i = 0; i < kWeights; ++i) words.magnitudes[i][w] = samples[w][i];
  }
  std::vector<int64_t> nearest(samples.size());
  for (int round = 0; round < kRounds; ++round) {
    words.FindNorms();
    ParallelFor(samples.size(), [&](size_t s) { nearest[s] = NearestWord(words, samples[s]); });
    MoveToMeans(samples, nearest, words);
  }
  for (auto& of_weight : words.magnitudes) {
    for (float& value : of_weight) {
      value = std::clamp(std::nearbyint(value / KmeansCode::kUnit), 1.0f, 127.0f);
      value *= KmeansCode::kUnit;
    }
  }
  words.FindNorms();
  return words;
}

const Words& AllWords() {
  static const Words words = Train();
  return words;
}

}  // namespace

uint32_t KmeansCode::Encode(std::span<const float, kWeights> x) {
  Sample magnitudes;
  uint32_t signs = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    magnitudes[i] = std::fabs(x[i]);
    signs |= uint32_t{std::signbit(x[i])} << i;
  }
  return static_cast<uint32_t>(NearestWord(AllWords(), magnitudes)) << 8 | signs;
}

KmeansCode::Codeword KmeansCode::Decode(uint32_t code) {
  const Words& words = AllWords();
  Codeword codeword;
  for (size_t i = 0; i < codeword.size(); ++i) {
    const auto units = static_cast<int>(words.magnitudes[i][code >> 8 & 255] / kUnit);
    codeword[i] = static_cast<int8_t>((code >> i & 1) != 0 ? -units : units);
  }
  return codeword;
}

}  // namespace nibble
