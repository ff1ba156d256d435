// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as a flag that long work looks at between steps.
#pragma once

namespace nibble {

// From now on the first of these signals only sets the flag; the second one ends the process. One
// that is ignored stays so.
void CatchInterrupts();
bool Interrupted();
// Whether it was SIGINT (Ctrl-C); if so, it is forgotten, and the next one sets the flag again.
bool ForgetCtrlC();

}  // namespace nibble
