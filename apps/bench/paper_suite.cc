// SPDX-License-Identifier: Apache-2.0
// QuaRot (Ashkboos et al. 2024), QUIK (Ashkboos et al. 2023), Atom (Zhao et al. 2024), QServe (Lin
// et al. 2024), QuIP# (Tseng et al. 2024), AWQ (Lin et al. 2023), OmniQuant (Shao et al.
// 2023).
#include "apps/bench/paper_suite.h"

#include <algorithm>

#include "apps/bench/published.h"
#include "quantize/recipes/recipe_fields.h"

namespace nibble::cli {
namespace {

std::vector<PaperSection> QuarotTables() {
  return {
      {"methods",
       "QuaRot: methods at W4A4KV4",
       {{"not quantized", "", ""},
        {"round to nearest, no rotation", "quarot", "rotation=none,rounding=rtn"},
        {"SmoothQuant", "smoothquant", "w-bits=4,a-bits=4,kv-bits=4,kv-asym"},
        {"OmniQuant", "omniquant", ""},
        {"QUIK, all linears 4 bits", "quik", "down-bits=4,kv-bits=4,kv-asym"},
        {"QuaRot", "quarot", ""},
        {"QuaRot, the paper's settings", "quarot-paper", ""},
        {"Nibble", "nibble", ""},
        {"Atom, groups of 128", "atom", ""},
        {"QuaRot, groups of 128", "quarot", "group=128"},
        {"Nibble, groups of 128", "nibble", "group=128"},
        {"QuaRot, 8-bit activations", "quarot", "a-bits=8"},
        {"Nibble, 8-bit activations", "nibble", "a-bits=8"},
        {"Nibble, both", "nibble", "a-bits=8,group=128"}}},
      {"rounding",
       "QuaRot: rounding to nearest at 4, 6 and 8 bits",
       {{"GPTQ, 4 bits", "quarot", ""},
        {"4 bits", "quarot", "rounding=rtn"},
        {"6 bits", "quarot", "rounding=rtn,w-bits=6,a-bits=6,kv-bits=6"},
        {"8 bits", "quarot", "rounding=rtn,w-bits=8,a-bits=8,kv-bits=8"},
        {"GPTQ, 6 bits", "quarot", "w-bits=6,a-bits=6,kv-bits=6"},
        {"GPTQ, 8 bits", "quarot", "w-bits=8,a-bits=8,kv-bits=8"}}},
      {"groups",
       "QuaRot: group sizes of weights and activations",
       {{"row", "quarot", ""},
        {"256", "quarot", "group=256"},
        {"128", "quarot", "group=128"},
        {"64", "quarot", "group=64"},
        {"32", "quarot", "group=32"}}},
      {"rotation",
       "QuaRot: random orthogonal against Hadamard matrices",
       {{"Hadamard", "quarot", ""}, {"random", "quarot", "rotation=random"}}},
      {"hadamard",
       "QuaRot: precision of the online Hadamard transforms",
       {{"fp32", "quarot", "hadamard-bits=32"}, {"fp16", "quarot", "hadamard-bits=16"}}},
      {"tasks",
       "QuaRot: zero-shot accuracy",
       {{"not quantized", "", ""},
        {"QuaRot, round to nearest", "quarot", "rounding=rtn"},
        {"QuaRot", "quarot", ""},
        {"Nibble", "nibble", ""},
        {"QuaRot, 6 bits", "quarot", "w-bits=6,a-bits=6,kv-bits=6"},
        {"QuaRot, 8 bits", "quarot", "w-bits=8,a-bits=8,kv-bits=8"},
        {"QuaRot, round to nearest, 6 bits", "quarot", "rounding=rtn,w-bits=6,a-bits=6,kv-bits=6"},
        {"QuaRot, round to nearest, 8 bits", "quarot", "rounding=rtn,w-bits=8,a-bits=8,kv-bits=8"}},
       true},
  };
}

// One thing quantized at a time.
std::vector<PaperSection> QuarotParts() {
  return {
      {"cache",
       "QuaRot: bits of cached K and V, the rest not quantized",
       {{"K4 V4", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4"},
        {"K4 V3", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=3"},
        {"K4 V2", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=2"},
        {"K3 V4", "quarot", "w-bits=16,a-bits=16,k-bits=3,v-bits=4"},
        {"K3 V3", "quarot", "w-bits=16,a-bits=16,k-bits=3,v-bits=3"},
        {"K3 V2", "quarot", "w-bits=16,a-bits=16,k-bits=3,v-bits=2"},
        {"K2 V4", "quarot", "w-bits=16,a-bits=16,k-bits=2,v-bits=4"},
        {"K2 V3", "quarot", "w-bits=16,a-bits=16,k-bits=2,v-bits=3"},
        {"K2 V2", "quarot", "w-bits=16,a-bits=16,k-bits=2,v-bits=2"}}},
      {"weights",
       "QuaRot: weight-only, asymmetric",
       {{"4 bits, round to nearest", "rtn", "w-asym"},
        {"4 bits, GPTQ", "gptq", "w-asym"},
        {"4 bits, QuaRot, round to nearest", "quarot", "w-asym,a-bits=16,kv-bits=16,rounding=rtn"},
        {"4 bits, QuaRot", "quarot", "w-asym,a-bits=16,kv-bits=16"},
        {"3 bits, round to nearest", "rtn", "w-asym,w-bits=3"},
        {"3 bits, GPTQ", "gptq", "w-asym,w-bits=3"},
        {"3 bits, QuaRot, round to nearest", "quarot",
         "w-asym,a-bits=16,kv-bits=16,rounding=rtn,w-bits=3"},
        {"3 bits, QuaRot", "quarot", "w-asym,a-bits=16,kv-bits=16,w-bits=3"},
        {"2 bits, round to nearest", "rtn", "w-asym,w-bits=2"},
        {"2 bits, GPTQ", "gptq", "w-asym,w-bits=2"},
        {"2 bits, QuaRot, round to nearest", "quarot",
         "w-asym,a-bits=16,kv-bits=16,rounding=rtn,w-bits=2"},
        {"2 bits, QuaRot", "quarot", "w-asym,a-bits=16,kv-bits=16,w-bits=2"}}},
      {"clips",
       "QuaRot: clips of activations and of the cache, each quantized alone",
       {{"activations, 1", "quarot", "w-bits=16,kv-bits=16,a-clip=1"},
        {"activations, 0.95", "quarot", "w-bits=16,kv-bits=16,a-clip=0.95"},
        {"activations, 0.9", "quarot", "w-bits=16,kv-bits=16"},
        {"activations, 0.85", "quarot", "w-bits=16,kv-bits=16,a-clip=0.85"},
        {"activations, 0.8", "quarot", "w-bits=16,kv-bits=16,a-clip=0.8"},
        {"cache, 1", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4,kv-clip=1"},
        {"cache, 0.95", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4"},
        {"cache, 0.9", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4,kv-clip=0.9"},
        {"cache, 0.85", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4,kv-clip=0.85"}}},
  };
}

std::vector<PaperSection> OtherPapers() {
  return {
      {"quik",
       "QUIK: down_proj, outlier counts and thresholds, 8 bits",
       {{"not quantized", "", ""},
        {"down 8 bits", "quik", ""},
        {"down 8 bits, no clip search", "quik", "w-clip=1"},
        {"down 4 bits", "quik", "down-bits=4"},
        {"down 4 bits, no clip search", "quik", "down-bits=4,w-clip=1"},
        {"down W4A16, no clip search", "quik", "down-bits=4,w-clip=1", "down_proj:a-bits=16"},
        {"down W4A8, no clip search", "quik", "down-bits=4,w-clip=1", "down_proj:a-bits=8"},
        {"no outliers", "quik", "tail=0"},
        {"64 outliers", "quik", "tail=64"},
        {"128 outliers", "quik", "tail=128"},
        {"256 outliers", "quik", "tail=256"},
        {"512 outliers", "quik", "tail=512"},
        {"1024 outliers", "quik", "tail=1024"},
        {"no outliers below T = 2", "quik", "tail-threshold=2"},
        {"no outliers below T = 3", "quik", "tail-threshold=3"},
        {"no outliers below T = 4", "quik", "tail-threshold=4"},
        {"no outliers below T = 8", "quik", "tail-threshold=8"},
        {"the widest quarter 8 bits, others 4", "quik", "down-bits=4,wide-inputs=0.25"},
        {"all 8 bits", "quik", "w-bits=8,a-bits=8"},
        {"all 8 bits, weights 2:4 sparse", "quik", "w-bits=8,a-bits=8,sparse=2:4"},
        {"down 8 bits, weights 2:4 sparse", "quik", "sparse=2:4"},
        {"down 8 bits, those of attention 2:4", "quik", "", "self_attn:sparse=2:4"},
        {"down 8 bits, those of the FFN 2:4", "quik", "", "mlp:sparse=2:4"},
        {"SmoothQuant W8A8", "smoothquant", ""},
        {"GPTQ W4A16", "gptq", ""},
        {"GPTQ W4A16, no clip search", "gptq", "w-clip=1"}}},
      {"quik-tasks",
       "QUIK: zero-shot accuracy",
       {{"not quantized", "", ""}, {"QUIK", "quik", ""}},
       true},
      {"atom",
       "Atom: its techniques one after the other (published for LLaMA-1)",
       {{"not quantized", "", ""},
        {"W4A4, round to nearest", "rtn", "w-clip=1,a-bits=4"},
        {"+ 128 outliers of 16 bits", "atom",
         "kv-bits=16,rounding=rtn,w-clip=1,a-clip=1,group=0,tail-bits=16"},
        {"+ outliers of 8 bits", "atom", "kv-bits=16,rounding=rtn,w-clip=1,a-clip=1,group=0"},
        {"+ groups of 128", "atom", "kv-bits=16,rounding=rtn,w-clip=1,a-clip=1"},
        {"+ clips", "atom", "kv-bits=16,rounding=rtn"},
        {"+ GPTQ", "atom", "kv-bits=16"},
        {"+ 4-bit cache", "atom", ""}}},
      {"atom-tasks",
       "Atom: zero-shot accuracy",
       {{"not quantized", "", ""}, {"Atom", "atom", ""}},
       true},
      {"hybrids",
       "Rotations together with other methods",
       {{"QuaRot", "quarot", ""},
        {"QuaRot, 8-bit down", "quarot", "down-bits=8"},
        {"QuaRot, 128 outliers of 8 bits", "quarot", "order=energy,tail=128,tail-bits=8"}}},
      {"qserve",
       "QServe: W4A8KV4",
       {{"row", "qserve", "w-group=0"},
        {"groups of 128", "qserve", ""},
        {"groups of 128, QuaRot's rotations instead", "quarot", "a-bits=8,group=128,two-level"}}},
      {"awq",
       "AWQ: asymmetric weights in groups of 128, the rest not quantized",
       {{"not quantized", "", ""},
        {"4 bits, round to nearest", "rtn", "w-asym,w-group=128,w-clip=1"},
        {"4 bits, GPTQ", "gptq", "w-asym,w-group=128"},
        {"4 bits, AWQ", "awq", ""},
        {"4 bits, AWQ's scales alone", "awq", "no-output-clips"},
        {"4 bits, AWQ's clips alone", "awq", "scale-steps=0"},
        {"3 bits, round to nearest", "rtn", "w-asym,w-group=128,w-clip=1,w-bits=3"},
        {"3 bits, GPTQ", "gptq", "w-asym,w-group=128,w-bits=3"},
        {"3 bits, AWQ", "awq", "w-bits=3"}}},
      {"omniquant",
       "OmniQuant: W4A4, and weights alone in groups of 128",
       {{"not quantized", "", ""},
        {"W4A4, round to nearest", "omniquant", "block-epochs=0,fixed-channels,alpha=0"},
        {"W4A4, SmoothQuant", "omniquant", "block-epochs=0,fixed-channels"},
        {"W4A4, SmoothQuant, clips learned", "omniquant", "fixed-channels"},
        {"W4A4", "omniquant", ""},
        {"W4A16, round to nearest", "rtn", "w-asym,w-group=128,w-clip=1"},
        {"W4A16", "omniquant", "a-bits=16,kv-bits=16,w-group=128,alpha=0,fixed-channels"},
        {"W3A16", "omniquant",
         "w-bits=3,a-bits=16,kv-bits=16,w-group=128,alpha=0,fixed-channels"}}},
  };
}

std::vector<PaperSection> QuipsharpTables() {
  const PaperRow plain = {"not quantized", "", ""}, four = {"4 bits", "quipsharp", "w-bits=4"},
                 three = {"3 bits", "quipsharp", "w-bits=3"},
                 two = {"2 bits", "quipsharp", "w-bits=2"},
                 four_tuned = {"4 bits, scales learned", "quipsharp", "w-bits=4,learned-scales"},
                 three_tuned = {"3 bits, scales learned", "quipsharp", "w-bits=3,learned-scales"},
                 two_tuned = {"2 bits, scales learned", "quipsharp", "w-bits=2,learned-scales"},
                 four_awq = {"4 bits, AWQ", "awq", "w-group=0"},
                 three_awq = {"3 bits, AWQ", "awq", "w-group=0,w-bits=3"},
                 four_omni = {"4 bits, OmniQuant", "omniquant",
                              "a-bits=16,kv-bits=16,alpha=0,fixed-channels"},
                 three_omni = {"3 bits, OmniQuant", "omniquant",
                               "w-bits=3,a-bits=16,kv-bits=16,alpha=0,fixed-channels"},
                 two_omni = {"2 bits, OmniQuant", "omniquant",
                             "w-bits=2,a-bits=16,kv-bits=16,alpha=0,fixed-channels"};
  const std::vector<PaperRow> tuned = {plain, four_tuned, three_tuned, two_tuned};
  return {
      {"quipsharp",
       "QuIP#: bits without, with fine-tuning (published at a context of 4096)",
       {plain,
        four,
        three,
        two,
        four_tuned,
        three_tuned,
        two_tuned,
        {"4 bits, half-integer grid", "quipsharp", "w-bits=4,codebook=half-integer"},
        {"3 bits, half-integer grid", "quipsharp", "w-bits=3,codebook=half-integer"},
        {"2 bits, half-integer grid", "quipsharp", "w-bits=2,codebook=half-integer"},
        {"4 bits, QuIP", "quipsharp", "w-bits=4,codebook=half-integer,rotation=kronecker"},
        {"3 bits, QuIP", "quipsharp", "w-bits=3,codebook=half-integer,rotation=kronecker"},
        {"2 bits, QuIP", "quipsharp", "w-bits=2,codebook=half-integer,rotation=kronecker"},
        {"2 bits, Fourier transform", "quipsharp", "w-bits=2,rotation=fourier"}}},
      {"quipsharp-2048",
       "QuIP#: with fine-tuning, at a context of 2048",
       {plain, four_tuned, three_tuned, two_tuned, four_awq, three_awq, four_omni, three_omni,
        two_omni}},
      {"quipsharp-groups", "QuIP#: beside groups of OmniQuant, at a context of 2048", {plain, two}},
      {"codebooks",
       "QuIP#: codebooks (published at a context of 4096)",
       {plain,
        {"E8P", "quipsharp", "w-bits=2"},
        {"K-Means, 8 dimensions, 2 bits", "quipsharp", "codebook=kmeans"},
        {"half-integer grid, 2 bits", "quipsharp", "w-bits=2,codebook=half-integer"},
        {"E8 lattice, 1 bit", "quipsharp", "codebook=e8"}}},
      {"transform",
       "QuIP#: its transform beside that of QuIP, a Kronecker product of random matrices",
       {plain,
        two,
        {"2 bits, outputs too", "quipsharp", "w-bits=2,output-transforms"},
        {"2 bits, Kronecker product", "quipsharp", "w-bits=2,rotation=kronecker"},
        {"2 bits, Fourier transform", "quipsharp", "w-bits=2,rotation=fourier"},
        {"2 bits, no transform", "quipsharp", "w-bits=2,rotation=none"},
        four,
        {"4 bits, outputs too", "quipsharp", "w-bits=4,output-transforms"},
        {"4 bits, Kronecker product", "quipsharp", "w-bits=4,rotation=kronecker"},
        {"4 bits, no transform", "quipsharp", "w-bits=4,rotation=none"}}},
      {"quipsharp-tasks",
       "QuIP#: zero-shot accuracy without, with fine-tuning",
       {plain, four, three, two, four_tuned, three_tuned, two_tuned},
       true},
      {"quipsharp-accuracy",
       "QuIP#: zero-shot accuracy beside other methods (published: acc, not acc_norm)", tuned,
       true},
  };
}

// Rows of methods that Nibble does not have.
void AddPublishedRows(std::vector<PaperSection>& suite) {
  for (const PublishedFigure& f : PublishedFigures()) {
    const auto section = std::ranges::find(suite, f.section, &PaperSection::name);
    NIBBLE_CHECK(section != suite.end(), "published.tsv: no section {}", f.section);
    if (std::ranges::find(section->rows, f.row, &PaperRow::name) != section->rows.end()) continue;
    section->rows.push_back({.name = f.row, .missing = kPublishedOnly});
  }
}

std::vector<FieldValue> RowFields(const PaperRow& row) {
  std::vector<FieldValue> fields = ParseFields(row.fields);
  for (const char* table : {"head-bits", "embed-bits"}) fields.push_back(ParseField(table, "16"));
  return fields;
}

std::vector<std::string> RowRules(const PaperRow& row) {
  if (row.rule.empty()) return {};
  return {std::string(row.rule)};
}

}  // namespace

Recipe RowRecipe(const PaperRow& row) {
  return ChangedRecipe(FindRecipe(row.recipe), RowFields(row), RowRules(row));
}

std::string RowArguments(const PaperRow& row) {
  if (row.recipe.empty()) return "";
  std::string text = fmt::format("--recipe {} --quality best", row.recipe);
  for (const FieldValue& value : RowFields(row)) text += " " + OptionText(value);
  for (const std::string& rule : RowRules(row)) text += " --rule " + rule;
  return text;
}

const std::vector<PaperSection>& PaperSuite() {
  static const std::vector<PaperSection> suite = [] {
    std::vector<PaperSection> all = QuarotTables();
    for (const auto& more : {QuarotParts(), OtherPapers(), QuipsharpTables()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    AddPublishedRows(all);
    return all;
  }();
  return suite;
}

}  // namespace nibble::cli
