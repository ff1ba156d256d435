// SPDX-License-Identifier: Apache-2.0
#include "report/page.h"

#include <algorithm>
#include <cmath>

#include "base/progress.h"
#include "report/figure.h"

namespace nibble {
namespace {

// Dark colors are lighter ones of the same hue. Lines of checkpoints differ in their dashes too,
// for print and for eyes that see no hue.
constexpr std::string_view kStyle = R"css(
:root{color-scheme:light dark;--back:#fff;--ink:#1c1c1e;--faint:#d9d9de;--quiet:#5b5b63;
--before:#c2410c;--after:#1d4ed8;--c0:#1d4ed8;--c1:#c2410c;--c2:#15803d;--c3:#a21caf;--c4:#0f766e;
--c5:#854d0e}
@media(prefers-color-scheme:dark){:root{--back:#17171a;--ink:#ececf0;--faint:#3a3a42;--quiet:#a5a5b0;
--before:#fb923c;--after:#7cacff;--c0:#7cacff;--c1:#fb923c;--c2:#5fd38a;--c3:#e58bf0;--c4:#4fd1c5;
--c5:#e5b567}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:70rem;padding:1rem;background:var(--back);color:var(--ink);
font:1rem/1.5 system-ui,sans-serif}
h1{font-size:1.5rem;line-height:1.25;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin-top:2.5rem}
h3{font-size:1rem;margin:1.5rem 0 .5rem;overflow-wrap:anywhere}
p{max-width:46rem}
.figures{display:grid;gap:1.25rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}
figure{margin:0;break-inside:avoid}
figcaption{font-size:.875rem;overflow-wrap:anywhere}
figcaption b{display:block}
svg{display:block;width:100%;max-width:36rem;height:auto}
svg text{font:11px system-ui,sans-serif;fill:var(--quiet)}
svg .end{text-anchor:end}svg .middle{text-anchor:middle}svg .name{font-weight:600;fill:var(--ink)}
svg path{fill:none}
.grid{stroke:var(--faint);stroke-width:1}
.rms{stroke:var(--ink);stroke-dasharray:4 3;opacity:.75}
.line{stroke-width:1.75;stroke-linejoin:round}.dots{stroke-width:4;stroke-linecap:round}
.before{stroke:var(--before)}.after{stroke:var(--after)}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1)}.c2{stroke:var(--c2)}.c3{stroke:var(--c3)}
.c4{stroke:var(--c4)}.c5{stroke:var(--c5)}
.line.c1{stroke-dasharray:7 3}.line.c2{stroke-dasharray:2 3}.line.c3{stroke-dasharray:9 3 2 3}
.line.c4{stroke-dasharray:5 2}.line.c5{stroke-dasharray:1 2}
.line.after{stroke-dasharray:7 3}
.wide{overflow:auto;max-height:28rem}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{padding:.15rem .6rem;text-align:left;border-bottom:1px solid var(--faint);white-space:nowrap}
th{position:sticky;top:0;background:var(--back)}
.n{text-align:right}
summary{cursor:pointer;color:var(--quiet);font-size:.875rem}
details{margin:.75rem 0}
@media print{:root{color-scheme:light;--back:#fff;--ink:#000;--faint:#ccc;--quiet:#333;
--before:#c2410c;--after:#1d4ed8;--c0:#1d4ed8;--c1:#c2410c;--c2:#15803d;--c3:#a21caf;--c4:#0f766e;
--c5:#854d0e}
body{max-width:none;padding:0;font-size:10pt}.wide{max-height:none}
.figures{grid-template-columns:1fr 1fr}}
)css";

constexpr int kStyles = 6;  // of lines: c0, c1, ..

using Rows = std::vector<std::vector<std::string>>;
using Kind = LinearSet::Kind;

struct KindName {
  Kind kind;
  const char *name, *place;
};
constexpr KindName kKinds[] = {{Kind::kQkv, "input of q, k, v", "behind the norm of attention"},
                               {Kind::kO, "input of o", "what attention gives"},
                               {Kind::kMlp, "input of gate, up", "behind the norm of the FFN"},
                               {Kind::kDown, "input of down", "what gate and up give"}};

void WriteDetails(const std::string& summary, const Rows& rows, Markup& out) {
  out.Open("details").Element("summary", {}, summary).Table(rows).Close();
}

std::string SpreadText(const InputSizes& sizes) {
  return fmt::format("largest {}, {} times the root mean square", NumberText(sizes.max()),
                     NumberText(sizes.incoherence()));
}

void WriteChannels(const ModelReport& report, Markup& out) {
  const auto layer = static_cast<size_t>(report.layer);
  const LayerSizes &before = report.before[layer], &after = report.after[layer];
  out.Element("h2", {}, fmt::format("Inputs of layer {} before and after rotation", report.layer));
  out.Element("p", {},
              "The largest |x| of every channel, as QuaRot's Figure 1 has it (Ashkboos et al. "
              "2024). Few channels that stand out take a quantizer's range from all others; a "
              "rotation spreads them over all channels and leaves the product with the weights "
              "as it was. Both panels of a figure have one axis; the dashed line is the root mean "
              "square of all channels, which changes where the weights of a norm are folded away.");
  out.Element("p", {}, "Before: what the linears of the model read as it is. " + report.transforms);
  out.Open("div", {{"class", "figures"}});
  for (const KindName& k : kKinds) {
    const InputSizes &a = before.inputs.at(k.kind), &b = after.inputs.at(k.kind);
    out.Open("figure", {{"id", fmt::format("channels-{}", static_cast<int>(k.kind))}});
    WriteFigure(ChannelFigure{.label = fmt::format("{}: largest |x| by channel, before: {}; "
                                                   "after: {}",
                                                   k.name, SpreadText(a), SpreadText(b)),
                              .before = a.largest,
                              .after = b.largest,
                              .before_rms = std::sqrt(a.mean_square),
                              .after_rms = std::sqrt(b.mean_square)},
                out);
    out.Open("figcaption").Element("b", {}, fmt::format("{}, {}", k.name, k.place));
    out.Text(fmt::format("Before: {}. After: {}.", SpreadText(a), SpreadText(b))).Close();
    Rows rows = {{"channel", "before", "after"}};
    for (size_t i = 0; i < a.largest.size(); ++i) {
      rows.push_back({fmt::format("{}", i), NumberText(a.largest[i]), NumberText(b.largest.at(i))});
    }
    WriteDetails(fmt::format("{} channels as numbers", a.largest.size()), rows, out);
    out.Close();
  }
  out.Close();
}

// A number of each layer before and after.
struct Pair {
  std::string name;
  std::vector<double> before, after;
};

void WritePairs(const std::vector<Pair>& pairs, const std::string& unit, const std::string& summary,
                Markup& out) {
  out.Open("div", {{"class", "figures"}});
  for (const Pair& pair : pairs) {
    out.Open("figure");
    WriteFigure(
        LineFigure{.label = pair.name + ": incoherence by layer, before and after",
                   .unit = unit,
                   .logarithmic = true,
                   .lines = {{"before", "before", pair.before}, {"after", "after", pair.after}}},
        out);
    out.Open("figcaption").Element("b", {}, pair.name).Close().Close();
  }
  out.Close();
  Rows rows = {{"layer"}};
  for (const Pair& pair : pairs) {
    rows[0].insert(rows[0].end(), {pair.name + ", before", "after"});
    for (size_t i = 0; i < pair.before.size(); ++i) {
      if (rows.size() < i + 2) rows.push_back({fmt::format("{}", i)});
      rows[i + 1].insert(rows[i + 1].end(),
                         {NumberText(pair.before[i]), NumberText(pair.after[i])});
    }
  }
  WriteDetails(summary, rows, out);
}

void WriteIncoherence(const ModelReport& report, Markup& out) {
  out.Element("h2", {}, "Incoherence by layer");
  out.Element(
      "p", {},
      "How far the largest entry stands out (QuIP, Chee et al. 2023). Weights: μ = max|W| "
      "√(rows · columns) / ‖W‖, with the Frobenius norm. Inputs: μ = max|x| / root mean "
      "square of all x. It is 1 where all entries have one size, and a quantizer loses "
      "least where it is small. Independent Gaussian numbers, as many as here, have about 5. "
      "Axes are logarithmic.");
  std::vector<Pair> inputs, weights;
  for (const KindName& k : kKinds) {
    Pair pair = {k.name};
    for (size_t i = 0; i < report.before.size(); ++i) {
      pair.before.push_back(report.before[i].inputs.at(k.kind).incoherence());
      pair.after.push_back(report.after[i].inputs.at(k.kind).incoherence());
    }
    inputs.push_back(std::move(pair));
  }
  for (const Role role : kLayerRoles) {
    Pair pair = {"weights of " + RoleName(role)};
    const auto add = [&](const LayerSizes& layer, std::vector<double>& values) {
      const auto found = layer.weights.find(role);
      values.push_back(found == layer.weights.end() ? NAN : found->second);
    };
    for (const LayerSizes& layer : report.before) add(layer, pair.before);
    for (const LayerSizes& layer : report.after) add(layer, pair.after);
    if (std::ranges::all_of(pair.before, [](double mu) { return std::isnan(mu); })) continue;
    weights.push_back(std::move(pair));
  }
  out.Element("h3", {}, "Inputs");
  WritePairs(inputs, "μ", "Inputs of all layers as numbers", out);
  out.Element("h3", {}, "Weights");
  WritePairs(weights, "μ", "Weights of all layers as numbers", out);
}

Rows SizeRows(const CheckpointReport& checkpoint) {
  Rows rows = {{"linears", "weights", "activations", "bits per weight", "size"}};
  RoleSize all;
  for (const RoleSize& size : checkpoint.sizes) {
    rows.push_back({size.role, fmt::format("{}", fmt::join(size.weights, "; ")),
                    fmt::format("{}", fmt::join(size.activations, "; ")),
                    fmt::format("{:.2f}", size.bits()), BytesText(size.bytes)});
    all.count += size.count, all.bytes += size.bytes;
  }
  rows.push_back({"all", "", "", fmt::format("{:.2f}", all.bits()), BytesText(all.bytes)});
  rows.push_back({"cache K", checkpoint.cache_keys, "", "", ""});
  rows.push_back({"cache V", checkpoint.cache_values, "", "", ""});
  return rows;
}

void WriteStreams(const ModelReport& report, Markup& out) {
  out.Element("h3", {}, "Residual stream behind each layer");
  out.Element("p", {},
              "Signal-to-noise of the residual stream against the float model's on the same text: "
              "SQNR = 10 log10 ‖y‖² / ‖y − y'‖² dB. More is better; 6 dB are one bit. Of all "
              "tokens together, a few with massive activations decide; the median token is what "
              "most tokens have.");
  LineFigure together = {.label = "SQNR by layer, all tokens together", .unit = "dB"};
  LineFigure middle = {.label = "SQNR by layer, median token", .unit = "dB"};
  Rows rows = {{"layer"}};
  std::vector<std::string> turned;
  for (size_t c = 0; c < report.checkpoints.size(); ++c) {
    const CheckpointReport& checkpoint = report.checkpoints[c];
    const StreamQuality& stream = checkpoint.stream;
    const std::string name = Printable(checkpoint.name);
    if (!stream.unmeasured.empty()) {
      out.Element("p", {}, fmt::format("{} is not measured: {}.", name, stream.unmeasured));
      continue;
    }
    if (stream.turned) turned.push_back(fmt::format("{} {:.0f} dB", name, stream.limit));
    const std::string style = fmt::format("c{}", c % kStyles);
    together.lines.push_back({name, style, stream.together});
    middle.lines.push_back({name, style, stream.middle});
    rows[0].insert(rows[0].end(), {name + ", all tokens", "median token"});
    for (size_t i = 0; i < stream.together.size(); ++i) {
      if (rows.size() < i + 2) rows.push_back({fmt::format("{}", i)});
      rows[i + 1].insert(rows[i + 1].end(), {fmt::format("{:.2f}", stream.together[i]),
                                             fmt::format("{:.2f}", stream.middle[i])});
    }
  }
  if (!turned.empty()) {
    out.Element("p", {},
                fmt::format("Where a checkpoint's stream is turned, the float model's is turned "
                            "likewise: by the orthogonal matrix that brings its embedding closest "
                            "to the checkpoint's (Procrustes). It is good for up to about: {}.",
                            fmt::join(turned, ", ")));
  }
  if (together.lines.empty()) return;
  out.Open("div", {{"class", "figures"}});
  for (const LineFigure* figure : {&together, &middle}) {
    out.Open("figure");
    WriteFigure(*figure, out);
    out.Open("figcaption").Element("b", {}, figure->label).Close().Close();
  }
  out.Close();
  WriteDetails("SQNR of all layers as numbers", rows, out);
}

void WriteLosses(const ModelReport& report, Markup& out) {
  out.Element("h3", {}, "Predictions");
  out.Element("p", {},
              "On the same text: perplexity, and the Kullback-Leibler divergence of the "
              "checkpoint's predictions from the float model's, in nats per token. These compare "
              "tokens, whatever basis the stream has.");
  Rows rows = {{"model", "perplexity", "KL, mean", "KL, 99th percentile", "same top token",
                "loss, nats per token"}};
  rows.push_back({"float model",
                  fmt::format("{:.3f}", report.checkpoints[0].loss.reference_perplexity), "", "",
                  "", ""});
  for (const CheckpointReport& checkpoint : report.checkpoints) {
    const KlResult& r = checkpoint.loss;
    rows.push_back({checkpoint.name, fmt::format("{:.3f}", r.perplexity),
                    fmt::format("{:.5f}", r.kl_mean), fmt::format("{:.4f}", r.kl_p99),
                    fmt::format("{:.2f} %", 100 * r.top1_agreement),
                    fmt::format("{:+.5f} ± {:.5f}", r.loss_difference, r.loss_difference_stderr)});
  }
  out.Table(rows);
}

void WriteCheckpoints(const ModelReport& report, Markup& out) {
  out.Element("h2", {}, "Checkpoints");
  out.Open("div", {{"class", "figures"}});
  for (const CheckpointReport& checkpoint : report.checkpoints) {
    out.Open("div").Element("h3", {}, checkpoint.name);
    out.Table(SizeRows(checkpoint)).Close();
  }
  out.Close();
  WriteStreams(report, out);
  WriteLosses(report, out);
}

}  // namespace

std::string ReportPage(const ModelReport& report) {
  Markup body;
  body.Open("main");
  body.Element("h1", {}, report.name);
  body.Element(
      "p", {},
      fmt::format("{}. Recipe: {}. Measured on {}.", report.shape, report.recipe, report.text));
  WriteChannels(report, body);
  WriteIncoherence(report, body);
  if (!report.checkpoints.empty()) WriteCheckpoints(report, body);
  body.Close();
  return fmt::format(
      "{}<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n"
      "<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n{}</body>\n</html>\n",
      kPageBegin, EscapeMarkup(Printable(report.name)), kStyle, body.Take());
}

}  // namespace nibble
