// SPDX-License-Identifier: Apache-2.0
// Pages as text: what is escaped, that elements close, and that figures have a point for each
// value.
#include "report/markup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>

#include "report/figure.h"
#include "report/page.h"

namespace nibble {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

// Returns whether every element is closed in turn: what XML asks for, which SVG is. Tables of HTML
// may leave out end tags of rows and cells, and a few elements have none.
bool IsNested(const std::string& text) {
  static const std::regex kTag("<(/?)([a-z0-9]+)((?:[^\"<>]|\"[^\"]*\")*?)(/?)>");
  const std::vector<std::string> loose = {"tr", "td", "th", "meta"};
  std::vector<std::string> open;
  for (std::sregex_iterator tag(text.begin(), text.end(), kTag), end; tag != end; ++tag) {
    const std::string name = (*tag)[2];
    if (std::ranges::find(loose, name) != loose.end() || (*tag)[4] == "/") continue;
    if ((*tag)[1] != "/") {
      open.push_back(name);
    } else if (open.empty() || open.back() != name) {
      return false;
    } else {
      open.pop_back();
    }
  }
  return open.empty();
}

size_t Count(const std::string& text, char letter) {
  return static_cast<size_t>(std::ranges::count(text, letter));
}

// The attribute `d` of the first path of this class.
std::string PathOf(const std::string& text, const std::string& style) {
  const std::regex path("<path class=\"" + style + "\"[^>]* d=\"([^\"]*)\"");
  std::smatch found;
  return std::regex_search(text, found, path) ? found[1].str() : "";
}

std::string Drawn(const auto& figure) {
  Markup out;
  WriteFigure(figure, out);
  return out.Take();
}

TEST(Markup, TextsFromOutsideAreNoMarkup) {
  EXPECT_EQ(EscapeMarkup("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
  Markup out;
  out.Element("p", {{"title", "\"><script>"}}, "</p><script>\x01\xff");
  EXPECT_EQ(out.Take(),
            "<p title=\"&quot;&gt;&lt;script&gt;\">&lt;/p&gt;&lt;script&gt;\\x01\\xff</p>\n");
}

TEST(Markup, ElementsCloseInTurn) {
  Markup out;
  out.Open("div").Open("b").Text("x").Close().Element("path", {{"d", "M0 0"}}).Close();
  const std::string text = out.Take();
  EXPECT_TRUE(IsNested(text)) << text;
  EXPECT_FALSE(IsNested("<div><b></div></b>"));
  Markup table;
  table.Table({{"role", "bits"}, {"<q>", "4.25"}});
  const std::string cells = table.Take();
  EXPECT_TRUE(IsNested(cells)) << cells;
  EXPECT_THAT(cells, HasSubstr("<td>&lt;q&gt;<td class=n>4.25"));
}

TEST(Figures, NumbersHaveThreeDigits) {
  EXPECT_EQ(NumberText(0), "0");
  EXPECT_EQ(NumberText(1234.5), "1234");
  EXPECT_EQ(NumberText(12.34), "12.3");
  EXPECT_EQ(NumberText(2), "2");
  EXPECT_EQ(NumberText(-0.25), "-0.25");
  EXPECT_EQ(NumberText(1e-5), "1.00e-05");
  EXPECT_EQ(NumberText(NAN), "–");
}

TEST(Figures, TicksAreRoundAndOnTheAxis) {
  EXPECT_THAT((Axis{.min = 0, .max = 10}.Ticks(4)), ElementsAre(0, 5, 10));
  EXPECT_THAT((Axis{.min = 0, .max = 0.9}.Ticks(4)).size(), testing::Le(5u));
  EXPECT_THAT((Axis{.min = 3, .max = 60, .logarithmic = true}.Ticks(4)),
              ElementsAre(5, 10, 20, 50));
  EXPECT_THAT((Axis{.min = 1, .max = 1e6, .logarithmic = true}.Ticks(4)).size(), 7u);
  const Axis nothing = AxisFor({NAN, -1}, true);
  EXPECT_LT(nothing.min, nothing.max);
  const Axis log = AxisFor({0, 2, HUGE_VAL, 8}, true);  // to 8.8
  EXPECT_NEAR(log.Place(std::sqrt(2 * 8.8)), 0.5, 1e-9);
  EXPECT_EQ(AxisFor({0, 0}, false).max, 1) << "a model of zeros has an axis";
}

TEST(Figures, EveryChannelHasALineOnTheCommonAxis) {
  ChannelFigure figure = {.label = "\"inputs\" <of> q"};
  for (int k = 0; k < 300; ++k) figure.before.push_back(k == 7 ? 90 : 1);
  figure.after.assign(300, 6);
  const std::string text = Drawn(figure);
  EXPECT_TRUE(IsNested(text));
  EXPECT_THAT(text, HasSubstr("&quot;inputs&quot; &lt;of&gt; q"));
  const std::string before = PathOf(text, "before channels");
  const std::string after = PathOf(text, "after channels");
  EXPECT_EQ(Count(before, 'V'), 300u);
  EXPECT_EQ(Count(after, 'V'), 300u);
  // The outlier reaches the top of its panel, which starts at 18; 6 of 90 is a fifteenth of it.
  EXPECT_THAT(before, HasSubstr("110V18.0M"));
  EXPECT_THAT(after, HasSubstr("224V217.9M"));
}

TEST(Figures, LinesBreakWhereThereIsNoValue) {
  const LineFigure figure = {
      .label = "l", .unit = "dB", .lines = {{"a & b", "c0", {1, 2, NAN, 4, HUGE_VAL, 3}}}};
  const std::string text = Drawn(figure);
  EXPECT_TRUE(IsNested(text));
  EXPECT_THAT(text, HasSubstr("a &amp; b"));
  const std::string path = PathOf(text, "c0 line"), dots = PathOf(text, "c0 dots");
  EXPECT_EQ(Count(path, 'M'), 3u);
  EXPECT_EQ(Count(path, 'L'), 1u);
  EXPECT_EQ(Count(dots, 'M'), 4u);
  EXPECT_THAT(text, Not(HasSubstr("nan")));
}

// A page of a model with one layer, whose names are as bad as names can be.
TEST(Page, IsOneWholeFileThatLoadsNothing) {
  LayerSizes layer;
  for (const auto kind : {LinearSet::kQkv, LinearSet::kO, LinearSet::kMlp, LinearSet::kDown}) {
    layer.inputs[kind] = {.largest = {1, 2}, .mean_square = 1};
  }
  layer.weights[Role::kQ] = 5;
  ModelReport report = {.name = "<script>\"model\"",
                        .shape = "shape",
                        .recipe = "r",
                        .transforms = "t",
                        .text = "text</p>",
                        .before = {layer},
                        .after = {layer}};
  report.checkpoints.resize(2);
  for (CheckpointReport& checkpoint : report.checkpoints) {
    checkpoint.name = "</svg><b>";
    checkpoint.sizes = {{"q", {"4 asym"}, {"8"}, 100, 50}};
  }
  report.checkpoints[0].stream = {
      .turned = true, .embedding = 40, .together = {20}, .middle = {18}};
  report.checkpoints[1].stream.unmeasured = "too few rows";
  const std::string page = ReportPage(report);
  EXPECT_TRUE(page.starts_with(kPageBegin));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_TRUE(
      IsNested(page.substr(page.find("<body>"), page.find("</html>") - page.find("<body>"))));
  for (const char* absent :
       {"<script", "<b></svg>", "</p></p>", "http:", "https:", "src=", "nan"}) {
    EXPECT_THAT(page, Not(HasSubstr(absent)));
  }
  EXPECT_THAT(page, HasSubstr("&lt;script&gt;"));
  EXPECT_THAT(page, HasSubstr("is not measured: too few rows"));
  EXPECT_THAT(page, HasSubstr("<td class=n>4.00<td>50 B")) << "100 weights in 50 bytes";
}

}  // namespace
}  // namespace nibble
