// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "models/network.h"

namespace nibble {

// Opens a Hugging Face directory, a GGUF file or a Nibble checkpoint and checks every name, shape
// and plane, and that embedding, norms, biases and scales are finite. Of weights of 16 bits,
// quantizing refuses those that are not finite, inference such logits. Codes of other programs
// (stored_codes.h) are repacked.
//
// Tensors that nobody asked for are refused: the model would not mean what its files say. So are
// keys that stand for another network; other unread ones are reported (Network::unread).
Network OpenNetwork(const std::string& directory);

}  // namespace nibble
