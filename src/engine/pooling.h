// SPDX-License-Identifier: Apache-2.0
// How the states of a text become one vector, the text's embedding.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace nibble {

struct Pooling {
  enum class Tokens { kAll, kFirst, kLast };

  Tokens tokens = Tokens::kAll;  // whose states: of several, their mean
  bool normalize = true;         // to length 1
  std::string problem;           // why there are no embeddings; empty: there are

  // Whether the state of token `at` of `count` counts.
  bool Takes(int64_t at, int64_t count) const;
  // Of the sum of what counts.
  std::vector<float> Vector(std::span<const double> sum, int64_t count) const;
};

// As the model's pooling.json says (source/pooling_document.h); without one, the mean of length 1.
// What is not understood is a problem of embeddings alone: it does not throw.
Pooling LoadPooling(const std::string& model);
// For people, "lasttoken, of length 1"; empty: the model does not say. Throws.
std::string PoolingText(const std::string& model);

}  // namespace nibble
