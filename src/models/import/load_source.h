// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "models/families/family.h"
#include "models/import/stored_codes.h"
#include "models/network.h"

namespace nibble {

// Fills in a network whose config and store are set from the tensors of a Hugging Face directory or
// a GGUF file; `codes`: how other programs' codes are stored. Throws naming a tensor that is
// missing, has another shape or is part of no such model.
void LoadSource(Network& network, const Family& family, const std::optional<StoredCodes>& codes);

}  // namespace nibble
