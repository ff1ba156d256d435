// SPDX-License-Identifier: Apache-2.0
#include "quantize/walk/sample_text.h"

#include "base/embedded.h"

NIBBLE_EMBED(SampleText, NIBBLE_SAMPLE_TEXT)

namespace nibble {

std::string_view SampleCalibrationText() {
  return SampleText();
}

}  // namespace nibble
