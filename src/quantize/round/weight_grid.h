// SPDX-License-Identifier: Apache-2.0
// The rounding grid of one weight row or group: W ~ scale * (code - zero), two's complement codes.
// With a second level of scales, scale = row scale * group_scale.
#pragma once

#include <cstdint>
#include <span>

#include "formats/format_spec.h"

namespace nibble {

struct WeightGrid {
  float scale;  // rounded to the stored type (fp32 per row, fp16 per group)
  int group_scale = 1;
  int zero;  // of the signed code; 0 when symmetric
  int low, high;
  bool e2m1 = false;  // codes are those of floats (tensor/e2m1.h)

  // Nearest code, half to even.
  int Code(double value) const;
  double Value(int code) const { return static_cast<double>(scale) * (code - zero); }
};

// format.clip > 0: the range times clip. format.clip == 0: of the ranges times 1.00, 0.99 ... 0.21
// the one with the smallest sum |error|^2.4 (of QuaRot's and QUIK's code) or error^2 (of QuaRot's
// paper: format.squared_clips), searched in fp32. row_scale: of a second level; scales are the
// nearest multiples of it whose codes fit into 8 bits.
WeightGrid FindGrid(std::span<const double> values, const FormatSpec& format, float row_scale = 0);

// The row scale of a second level for a row of weights: as small as lets every group have the scale
// of its range times the clip (a clip of 0: 1).
float FindRowScale(std::span<const double> row, const FormatSpec& format);

}  // namespace nibble
