// SPDX-License-Identifier: Apache-2.0
// SIGINT, SIGTERM and SIGHUP as a flag that long work looks at between steps.
#pragma once

namespace nibble {

// From now on the first of these signals only sets the flag; the second one ends the process. A
// signal that the process ignores already stays ignored.
void CatchInterrupts();
bool Interrupted();
// Returns whether the signal that set the flag was SIGINT (Ctrl-C). If so, clears the flag, which
// the next signal sets again.
bool ForgetCtrlC();

}  // namespace nibble
