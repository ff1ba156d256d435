// SPDX-License-Identifier: Apache-2.0
// Figures of a report as inline SVG: colors are the page's, which has one set for light and one for
// dark screens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report/markup.h"

namespace nibble {

// What a vertical axis shows; on a logarithmic one all values are above 0.
struct Axis {
  double min = 0, max = 1;
  bool logarithmic = false;

  // The place of a value from 0, the bottom, to 1.
  double Place(double value) const;
  // Round numbers on the axis, rising: at most about `count`.
  std::vector<double> Ticks(int count) const;
};
// An axis for these values, of which those that are not finite, or not above 0 where it is
// logarithmic, do not count.
Axis AxisFor(const std::vector<double>& values, bool logarithmic);

// The largest |x| of each channel before and after the transforms, one panel above the other on a
// common axis.
struct ChannelFigure {
  std::string label;  // for those who do not see it
  std::vector<double> before, after;
  double before_rms = 0, after_rms = 0;  // root mean squares, lines across the panels
};
void WriteFigure(const ChannelFigure& figure, Markup& out);

// Lines over layers. What is not finite, or not above 0 on a logarithmic axis, has no point.
struct LineFigure {
  struct Line {
    std::string name, style;  // style: the page's class of its color
    std::vector<double> values;
  };
  std::string label, unit;
  bool logarithmic = false;  // then the axis begins at 1 or below
  std::vector<Line> lines;
};
void WriteFigure(const LineFigure& figure, Markup& out);

// A number as axes and tables have it: three digits that count.
std::string NumberText(double value);

}  // namespace nibble
