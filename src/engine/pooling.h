// SPDX-License-Identifier: Apache-2.0
// Pooling makes the states of a text one vector, the text's embedding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct Pooling {
  enum class Tokens { kAll, kFirst, kLast };

  Tokens tokens = Tokens::kAll;  // whose states count; of several, their mean
  bool normalize = true;         // to length 1
  std::string problem;           // why there are no embeddings; empty: there are

  // Returns whether the state of token `at` of `count` counts.
  bool Takes(int64_t at, int64_t count) const;
  // The vector of a text of `count` tokens, from the sum of the states that count.
  std::vector<float> Vector(std::span<const double> sum, int64_t count) const;
};

// The pooling of the model's pooling.json (source/pooling_document.h); without one, the mean, of
// length 1. A file that is not understood is noted as a `problem` of embeddings alone; nothing is
// thrown.
Pooling LoadPooling(const std::string& model);
// The pooling as people read it, "lasttoken, of length 1"; empty: the model does not say. Throws.
std::string PoolingText(const std::string& model);

}  // namespace nibble
