// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/network.h"

namespace nibble {

// Opens a Hugging Face directory, a GGUF file or a Nibble checkpoint and checks every name, shape
// and plane, and that embedding, norms, biases and scales are finite. Weights of 16 bits are read
// later, whoever uses them: quantizing refuses those that are not finite, inference such logits.
// Codes of other programs (stored_codes.h) are repacked, the same numbers in Nibble's planes. A
// tensor that nobody asked for is refused: the model would not mean what its files say. So are keys
// of config.json or a GGUF file that stand for another network; what else nothing reads is told.
Network OpenNetwork(const std::string& directory);

}  // namespace nibble
