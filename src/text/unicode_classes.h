// SPDX-License-Identifier: Apache-2.0
// Classes of characters as the components of a tokenizer.json mean them, by code point.
#pragma once

#include <cstdint>

namespace nibble {

bool IsSpace(uint32_t c);           // White_Space
bool IsNumber(uint32_t c);          // N*
bool IsMark(uint32_t c);            // M*
bool IsNonspacingMark(uint32_t c);  // Mn
bool IsPunctuation(uint32_t c);     // P*; symbols of ASCII count, too
bool IsOther(uint32_t c);           // C*: control, format, private, unassigned
bool IsWord(uint32_t c);            // \w of UTS #18

}  // namespace nibble
