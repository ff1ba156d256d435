// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "nibble/progress.h"

namespace nibble::cli {

// Shows progress on standard error: one line with rate and ETA, rewritten in place on a terminal,
// printed every few seconds otherwise.
ProgressCallback ProgressLine();
// Shows progress as one JSON object per update.
ProgressCallback ProgressJson();

}  // namespace nibble::cli
