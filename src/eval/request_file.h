// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "eval/likelihood.h"

namespace nibble {

// Answers a file of JSON Lines {"context", "continuation"}, both strings or both arrays of token
// ids, in the file's order. Neighbours with the same context share its cache. `special`: see
// EncodePair. `source`: the model's directory or file, whose tokenizer texts take and ids do not
// need. Throws kFailed naming file, line and field.
std::vector<Likelihood> EvaluateRequests(Model& model, const std::string& source,
                                         const std::string& path, bool special);

}  // namespace nibble
