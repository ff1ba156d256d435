// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace nibble {

// samples/calibration.txt, compiled in: written by the sample model itself, so it suits that model
// and is a stopgap for any other.
std::string_view SampleCalibrationText();

}  // namespace nibble
