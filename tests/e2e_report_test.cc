// SPDX-License-Identifier: Apache-2.0
// Tests `nibble report`: the page is whole, its figures have what they should, and bad input leaves
// nothing behind.
#include <regex>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class Report : public EndToEnd {
 protected:
  Result Run(const Arguments& arguments, const std::string& model = "") const {
    return Nibble(Arguments{"report", model.empty() ? small_ : model} + arguments +
                  Arguments{"--windows", "2", "--context", "64"});
  }
  // The page of a run that must work.
  std::string Page(const Arguments& arguments, const std::string& model = "") const {
    const Result r = Run(arguments + Arguments{"--out", Path("page.html")}, model);
    EXPECT_EQ(r.code, 0) << r.err;
    return Slurp(Path("page.html"));
  }
  // Runs into an error of one line; nothing is written.
  void ExpectRefused(const Arguments& arguments, int code, const std::string& message,
                     const std::string& model = "") const {
    const auto before = Names();
    const Result r = Run(arguments, model);
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_THAT(r.err, HasSubstr(message));
    EXPECT_EQ(std::ranges::count(r.err, '\n'), 1) << r.err;
    EXPECT_EQ(Names(), before) << message;
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(root_)) names.push_back(entry.path());
    std::ranges::sort(names);
    return names;
  }
  // Multiplies a channel of what layer 1's norms give out, which its linears divide by nothing.
  void MakeOutlier(int channel) const {
    RawTensors model = RawTensors::Read(small_ + "/model.safetensors");
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"}) {
      const Json& entry = model.header[fmt::format("model.layers.1.{}.weight", norm)];
      ASSERT_EQ(entry["dtype"], "BF16");
      const size_t begin = entry["data_offsets"][0];
      model.data[begin + 2 * static_cast<size_t>(channel)] = 0x48;  // bf16 of 50
      model.data[begin + 2 * static_cast<size_t>(channel) + 1] = 0x42;
    }
    model.Write(small_ + "/model.safetensors");
  }
};

// The figure of one kind of input: the path of a panel, and the numbers below it.
struct Channels {
  size_t before = 0, after = 0;  // lines
  std::vector<double> largest_before, largest_after;
};
Channels ReadChannels(const std::string& page, int kind) {
  const size_t begin = page.find(fmt::format("<figure id=\"channels-{}\">", kind));
  const std::string figure = page.substr(begin, page.find("</figure>", begin) - begin);
  Channels channels;
  const auto lines = [&](const std::string& style) {
    const size_t path = figure.find("class=\"" + style + " channels\"");
    const size_t d = figure.find(" d=\"", path) + 4;
    return static_cast<size_t>(std::ranges::count(figure.substr(d, figure.find('"', d) - d), 'V'));
  };
  channels.before = lines("before"), channels.after = lines("after");
  const std::regex row("<tr><td class=n>[0-9]+<td class=n>([^<\n]+)<td class=n>([^<\n]+)");
  for (std::sregex_iterator it(figure.begin(), figure.end(), row), end; it != end; ++it) {
    channels.largest_before.push_back(std::stod((*it)[1]));
    channels.largest_after.push_back(std::stod((*it)[2]));
  }
  return channels;
}

TEST_F(Report, RotationSpreadsAnOutlier) {
  MakeOutlier(17);
  const std::string page = Page({"--layer", "1", "--recipe", "quarot"});
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_TRUE(page.ends_with("</html>\n"));
  EXPECT_THAT(page, AllOf(Not(HasSubstr("<script")), Not(HasSubstr("http:")),
                          Not(HasSubstr("https:")), HasSubstr("prefers-color-scheme")));
  const size_t widths[] = {256, 256, 256, 384};
  for (int kind = 0; kind < 4; ++kind) {
    const Channels c = ReadChannels(page, kind);
    for (const size_t count :
         {c.before, c.after, c.largest_before.size(), c.largest_after.size()}) {
      EXPECT_EQ(count, widths[kind]) << kind;
    }
  }
  for (const int kind : {0, 2}) {
    const Channels c = ReadChannels(page, kind);
    EXPECT_EQ(std::ranges::max_element(c.largest_before) - c.largest_before.begin(), 17);
    EXPECT_LT(std::ranges::max(c.largest_after), std::ranges::max(c.largest_before) / 2);
  }
}

TEST_F(Report, CheckpointsStandSideBySide) {
  Quantize("four", Words("--rounding rtn --calib-windows 2 --context 64"));
  Quantize("eight", Words("--recipe rtn --w-bits 8 --a-bits 8 --kv-bits 8"));
  const std::string page = Page({Path("four"), Path("eight")});
  EXPECT_THAT(page, AllOf(testing::ContainsRegex("good for up to about: four [0-9]+ dB\\."),
                          HasSubstr("SQNR of all layers as numbers"), HasSubstr("same top token"),
                          HasSubstr("<td>down<td class=n>"), Not(HasSubstr("nan"))));
  EXPECT_LT(page.size(), 500'000u);
  for (const auto& name : Names()) EXPECT_THAT(name, Not(HasSubstr(".tmp")));
  // The same again, over the first page; a recipe without a rotation is drawn with one.
  const std::string again = Page({"--recipe", "rtn"});
  EXPECT_THAT(again, AllOf(HasSubstr("with a Hadamard rotation"), Not(HasSubstr("Checkpoints"))));
}

TEST_F(Report, MixturesHaveFigures) {
  MakeSmallMixture(Path("mixture"));
  const std::string page = Page({}, Path("mixture"));
  EXPECT_EQ(ReadChannels(page, 3).before, 384u);
}

TEST_F(Report, BadInputIsRefusedInOneLine) {
  Quantize("four", {"--recipe", "rtn"});
  Spill(Path("mine.html"), "<!doctype html><p>mine");
  Spill(Path("short.txt"), "Too short.");
  const Arguments out = {"--out", Path("page.html")};
  ExpectRefused({"--layer", "3", "--out", Path("page.html")}, 2, "layers 0 to 2");
  ExpectRefused({"--layer", "-1", "--out", Path("page.html")}, 2, "layers 0 to 2");
  ExpectRefused({"--out", Path("none/page.html")}, 1, "none/page.html");
  ExpectRefused({"--out", root_.string()}, 1, "is a directory");
  ExpectRefused({"--out", Path("mine.html")}, 2, "exists and is no report");
  ExpectRefused({"--out", small_ + "/config.json"}, 2, "exists and is no report");
  EXPECT_EQ(Slurp(Path("mine.html")), "<!doctype html><p>mine");
  ExpectRefused(out + Arguments{"--recipe", "spin"}, 2, "no recipe \"spin\"");
  ExpectRefused(out + Arguments{"--text", Path("none.txt")}, 1, "none.txt");
  ExpectRefused(out + Arguments{"--text", Path("short.txt")}, 1, "less than one window of 64");
  ExpectRefused(out + Arguments{small_}, 2, "is no checkpoint");
  ExpectRefused(out + Arguments{Path("gone")}, 1, "gone");
  ExpectRefused(out, 2, "is quantized already", Path("four"));
  ExpectRefused(Arguments{Path("four")} + out, 2, "of another model", kTiny);
}

}  // namespace
}  // namespace nibble
