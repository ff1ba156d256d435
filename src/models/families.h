// SPDX-License-Identifier: Apache-2.0
// The table of model families: one file and one row each (docs/add_a_model.md).
#pragma once

#include "models/config.h"

namespace nibble {

extern const Family kLlama;
extern const Family kMistral;
extern const Family kMixtral;

inline constexpr const Family* kFamilies[] = {
    &kLlama,
    &kMistral,
    &kMixtral,
};

}  // namespace nibble
