// SPDX-License-Identifier: Apache-2.0
// Services of a terminal that a conversation needs besides the editor of lines.
#pragma once

namespace nibble::cli {

// Characters are UTF-8 from now on, also where the environment says nothing of a language.
void UseUtf8();
// Columns that a character takes: 0 of one that stands on its neighbour, 2 of a wide one.
int CharacterColumns(char32_t character);
// Returns whether the terminal, by TERM, moves its cursor and erases (ECMA-48).
bool KnowsControlSequences();
// Columns of standard output if it is such a terminal; 0: it is none.
int OutputColumns();

}  // namespace nibble::cli
