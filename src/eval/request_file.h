// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "eval/likelihood.h"

namespace nibble {

// Answers a file of JSON Lines {"context", "continuation"}, both strings or both arrays of token
// ids, in the file's order. Neighbours with the same context share its cache. `special`: see
// EncodePair. Throws kFailed naming file, line and field.
std::vector<Likelihood> EvaluateRequests(Model& model, const Tokenizer& tokenizer,
                                         const std::string& path, bool special);

}  // namespace nibble
