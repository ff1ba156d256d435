// SPDX-License-Identifier: Apache-2.0
// The table of model families: one file and one row each (docs/add_a_model.md).
#pragma once

#include "models/families/family.h"

namespace nibble {

extern const Family kExaone4;
extern const Family kFalcon;
extern const Family kGemma2;
extern const Family kGemma3;
extern const Family kGemma4;
extern const Family kGlm4;
extern const Family kGlm4Moe;
extern const Family kGptNeox;
extern const Family kGptOss;
extern const Family kGranite;
extern const Family kLlama;
extern const Family kMinistral;
extern const Family kMinistral3;
extern const Family kMistral;
extern const Family kMixtral;
extern const Family kOlmo2;
extern const Family kOpt;
extern const Family kPhi3;
extern const Family kQwen2;
extern const Family kQwen3;
extern const Family kQwen3Moe;
extern const Family kSmollm3;

inline constexpr const Family* kFamilies[] = {
    &kLlama,   &kMistral, &kMinistral, &kMixtral, &kQwen2,  &kQwen3,      &kQwen3Moe, &kSmollm3,
    &kPhi3,    &kGranite, &kGemma2,    &kGemma3,  &kGemma4, &kGlm4,       &kGlm4Moe,  &kOlmo2,
    &kExaone4, &kGptOss,  &kGptNeox,   &kFalcon,  &kOpt,    &kMinistral3,
};

}  // namespace nibble
