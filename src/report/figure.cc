// SPDX-License-Identifier: Apache-2.0
#include "report/figure.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace nibble {
namespace {

// The drawing's own units: narrow, so that letters can still be read on a phone.
constexpr double kWidth = 440, kLeft = 46, kRight = 8, kTop = 18;
constexpr double kPlot = kWidth - kLeft - kRight;

// Where the plot lies on the drawing.
struct Panel {
  double top, height;
  Axis axis;

  double y(double value) const {
    return top + height * (1 - std::clamp(axis.Place(value), 0.0, 1.0));
  }
};

std::string At(double number) {
  return fmt::format("{:.1f}", number);
}

bool IsDrawn(double value, const Axis& axis) {
  return std::isfinite(value) && (!axis.logarithmic || value > 0);
}

void BeginDrawing(const std::string& label, double height, Markup& out) {
  out.Open("svg", {{"viewBox", fmt::format("0 0 {:.0f} {:.0f}", kWidth, height)},
                   {"role", "img"},
                   {"aria-label", Printable(label)}});
}

void WriteText(double x, double y, const char* style, const std::string& text, Markup& out) {
  out.Element("text", {{"x", At(x)}, {"y", At(y)}, {"class", style}}, text);
}

void WriteAxis(const Panel& panel, Markup& out) {
  for (const double tick : panel.axis.Ticks(5)) {
    const double y = panel.y(tick);
    out.Element("path", {{"class", "grid"},
                         {"d", fmt::format("M{} {:.1f}H{}", kLeft, y, kWidth - kRight)}});
    WriteText(kLeft - 5, y + 4, "end", NumberText(tick), out);
  }
}

// A vertical line for each channel; thousands of them become an area.
void WriteChannels(const Panel& panel, const std::vector<double>& values, const char* style,
                   Markup& out) {
  const double step = kPlot / static_cast<double>(values.size());
  const double bottom = panel.top + panel.height;
  std::string path;
  for (size_t k = 0; k < values.size(); ++k) {
    const double x = kLeft + (static_cast<double>(k) + 0.5) * step;
    path += fmt::format("M{:.2f} {:.0f}V{:.1f}", x, bottom, panel.y(values[k]));
  }
  out.Element("path", {{"class", fmt::format("{} channels", style)},
                       {"stroke-width", fmt::format("{:.2f}", std::max(0.8 * step, 0.35))},
                       {"d", path}});
}

void WriteRms(const Panel& panel, double rms, Markup& out) {
  out.Element("path", {{"class", "rms"},
                       {"d", fmt::format("M{} {:.1f}H{}", kLeft, panel.y(rms), kWidth - kRight)}});
}

// Names of the first and last entry below an axis.
void WriteEnds(double y, const std::string& first, const std::string& middle,
               const std::string& last, Markup& out) {
  WriteText(kLeft, y, "start", first, out);
  WriteText(kLeft + kPlot / 2, y, "middle", middle, out);
  WriteText(kWidth - kRight, y, "end", last, out);
}

// A path through the points, broken where there is none, and a dot on each.
void WriteLine(const LineFigure::Line& line, const Panel& panel, double step, Markup& out) {
  std::string path, dots;
  bool drawn = false;
  for (size_t i = 0; i < line.values.size(); ++i) {
    const bool draws = IsDrawn(line.values[i], panel.axis);
    if (draws) {
      const double x = kLeft + (static_cast<double>(i) + 0.5) * step;
      const double y = panel.y(line.values[i]);
      path += fmt::format("{}{:.1f} {:.1f}", drawn ? "L" : "M", x, y);
      dots += fmt::format("M{:.1f} {:.1f}h0", x, y);  // round ends make a dot of no length
    }
    drawn = draws;
  }
  out.Element("path", {{"class", line.style + " line"}, {"d", path}});
  out.Element("path", {{"class", line.style + " dots"}, {"d", dots}});
}

// Names beside each other where all are short, else below each other.
constexpr double kLegendRow = 16, kLegendColumn = 110;
constexpr size_t kShortName = 12;
bool IsShort(const std::vector<LineFigure::Line>& lines) {
  const double width = kLegendColumn * static_cast<double>(lines.size());
  return width <= kPlot && std::ranges::all_of(lines, [](const LineFigure::Line& line) {
           return line.name.size() <= kShortName;
         });
}

double LegendHeight(const std::vector<LineFigure::Line>& lines) {
  return kLegendRow * (IsShort(lines) ? 1 : static_cast<double>(lines.size()));
}

void WriteLegend(const std::vector<LineFigure::Line>& lines, double y, Markup& out) {
  const bool beside = IsShort(lines);
  double x = kLeft;
  for (const LineFigure::Line& line : lines) {
    out.Element("path",
                {{"class", line.style + " line"}, {"d", fmt::format("M{} {:.1f}h24", x, y - 4)}});
    WriteText(x + 30, y, "start", line.name, out);
    (beside ? x : y) += beside ? kLegendColumn : kLegendRow;
  }
}

}  // namespace

std::string NumberText(double value) {
  if (!std::isfinite(value)) return "–";
  const double size = std::abs(value);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.2e}", value);
  const int digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  std::string text = fmt::format("{:.{}f}", value, digits);
  if (text.find('.') == text.npos) return text;
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text == "-0" ? "0" : text;
}

double Axis::Place(double value) const {
  if (logarithmic) return std::log(value / min) / std::log(max / min);
  return (value - min) / (max - min);
}

std::vector<double> Axis::Ticks(int count) const {
  std::vector<double> ticks;
  if (logarithmic) {
    // Powers of ten, with 2 and 5 of each where these alone would be few.
    const bool few = 2 * std::log10(max / min) < count;
    for (double ten = std::pow(10, std::floor(std::log10(min))); ten <= max; ten *= 10) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double tick = digit * ten;
        if (tick >= min && tick <= max && (digit == 1 || few)) ticks.push_back(tick);
      }
    }
    return ticks;
  }
  const double rough = (max - min) / count, ten = std::pow(10, std::floor(std::log10(rough)));
  const double digit = rough / ten;
  const double step = ten * (digit > 5 ? 10 : digit > 2 ? 5 : digit > 1 ? 2 : 1);
  for (double i = std::ceil(min / step - 1e-9); i * step <= max + 1e-9 * step; ++i) {
    ticks.push_back(i * step);
  }
  return ticks;
}

Axis AxisFor(const std::vector<double>& values, bool logarithmic) {
  Axis axis = {.logarithmic = logarithmic};
  double min = HUGE_VAL, max = -HUGE_VAL;
  for (const double value : values) {
    if (!IsDrawn(value, axis)) continue;
    min = std::min(min, value), max = std::max(max, value);
  }
  if (min > max) return {.min = logarithmic ? 1.0 : 0.0, .max = 10, .logarithmic = logarithmic};
  if (logarithmic) {
    axis.min = min, axis.max = std::max(max * 1.1, 2 * min);
  } else {
    axis.min = std::min(min, 0.0), axis.max = std::max(max, 0.0);
    if (axis.min == axis.max) axis.max = 1;
  }
  return axis;
}

void WriteFigure(const ChannelFigure& figure, Markup& out) {
  constexpr double kHeight = 92, kGap = 22, kBelow = 18;
  std::vector<double> all = figure.before;
  all.insert(all.end(), figure.after.begin(), figure.after.end());
  const Axis axis = AxisFor(all, false);
  const Panel before = {kTop, kHeight, axis}, after = {kTop + kHeight + kGap, kHeight, axis};
  BeginDrawing(figure.label, after.top + kHeight + kBelow, out);
  WriteAxis(before, out), WriteAxis(after, out);
  WriteChannels(before, figure.before, "before", out);
  WriteChannels(after, figure.after, "after", out);
  WriteRms(before, figure.before_rms, out), WriteRms(after, figure.after_rms, out);
  WriteText(kWidth - kRight, before.top - 6, "end name", "before", out);
  WriteText(kWidth - kRight, after.top - 6, "end name", "after", out);
  WriteEnds(after.top + kHeight + 14, "0", "channel",
            fmt::format("{}", std::max<size_t>(figure.before.size(), 1) - 1), out);
  out.Close();
}

void WriteFigure(const LineFigure& figure, Markup& out) {
  constexpr double kHeight = 120, kBelow = 18;
  std::vector<double> all;
  size_t count = 1;
  for (const LineFigure::Line& line : figure.lines) {
    all.insert(all.end(), line.values.begin(), line.values.end());
    count = std::max(count, line.values.size());
  }
  if (figure.logarithmic) all.push_back(1);
  const Panel panel = {kTop, kHeight, AxisFor(all, figure.logarithmic)};
  const double bottom = panel.top + panel.height;
  BeginDrawing(figure.label, bottom + kBelow + LegendHeight(figure.lines), out);
  WriteAxis(panel, out);
  const double step = kPlot / static_cast<double>(count);
  for (const LineFigure::Line& line : figure.lines) WriteLine(line, panel, step, out);
  WriteText(2, 10, "start", figure.unit, out);
  WriteEnds(bottom + 14, "0", "layer", fmt::format("{}", count - 1), out);
  WriteLegend(figure.lines, bottom + kBelow + 10, out);
  out.Close();
}

}  // namespace nibble
