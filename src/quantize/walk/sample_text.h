// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace nibble {

// samples/calibration.txt, compiled in: prose, dialogues, science, code and pages in four other
// languages, written for this.
std::string_view SampleCalibrationText();

}  // namespace nibble
