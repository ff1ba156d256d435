// SPDX-License-Identifier: Apache-2.0
// SIGINT and SIGTERM as a flag that long work looks at between steps.
#pragma once

namespace nibble {

// From now on the first SIGINT or SIGTERM only sets the flag; the second one ends the process.
void CatchInterrupts();
bool Interrupted();

}  // namespace nibble
