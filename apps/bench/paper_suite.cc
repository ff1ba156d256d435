// SPDX-License-Identifier: Apache-2.0
// Published numbers: QuaRot (Ashkboos et al. 2024), QUIK (Ashkboos et al. 2023), Atom (Zhao et al.
// 2024), QServe (Lin et al. 2024), QuIP# (Tseng et al. 2024), as their tables print them.
#include "apps/bench/paper_suite.h"

#include "quantize/recipes/recipe_fields.h"

namespace nibble::cli {
namespace {

std::vector<PaperSection> QuarotTables() {
  return {
      {"methods",
       "QuaRot: methods at W4A4KV4",
       {{"not quantized", "", "", {"5.47", "4.88", "3.32"}},
        {"round to nearest, no rotation", "quarot", "rotation=none,rounding=rtn"},
        {"SmoothQuant", "smoothquant", "w-bits=4,a-bits=4,kv-bits=4,kv-asym", {"83"}},
        {"QUIK, all linears 4 bits",
         "quik",
         "down-bits=4,kv-bits=4,kv-asym",
         {"8.87", "7.78", "6.91"}},
        {"QuaRot", "quarot", "", {"6.10", "5.40", "3.79"}},
        {"Nibble", "nibble", ""},
        {"Atom, groups of 128", "atom", "", {"6.03", "5.26"}},
        {"QuaRot, groups of 128", "quarot", "group=128", {"5.93", "5.26", "3.61"}},
        {"Nibble, groups of 128", "nibble", "group=128"},
        {"QuaRot, 8-bit activations", "quarot", "a-bits=8"},
        {"Nibble, 8-bit activations", "nibble", "a-bits=8"},
        {"Nibble, both", "nibble", "a-bits=8,group=128"}}},
      {"rounding",
       "QuaRot: rounding to nearest at 4, 6 and 8 bits",
       {{"GPTQ, 4 bits", "quarot", "", {"6.10", "5.40", "3.79"}},
        {"4 bits", "quarot", "rounding=rtn", {"8.37", "6.09", "4.14"}},
        {"6 bits", "quarot", "rounding=rtn,w-bits=6,a-bits=6,kv-bits=6", {"5.56"}},
        {"8 bits", "quarot", "rounding=rtn,w-bits=8,a-bits=8,kv-bits=8", {"5.50"}}}},
      {"groups",
       "QuaRot: group sizes of weights and activations",
       {{"row", "quarot", "", {"6.10", "5.40", "3.79"}},
        {"256", "quarot", "group=256"},
        {"128", "quarot", "group=128", {"5.93", "5.26", "3.61"}},
        {"64", "quarot", "group=64"},
        {"32", "quarot", "group=32"}}},
      {"rotation",
       "QuaRot: random orthogonal against Hadamard matrices",
       {{"Hadamard", "quarot", "", {"6.10", "5.40", "3.79"}},
        {"random", "quarot", "rotation=random", {"7.45"}}}},
      {"hadamard",
       "QuaRot: precision of the online Hadamard transforms",
       {{"fp32", "quarot", "", {"6.10", "5.40", "3.79"}},
        {"fp16",
         "quarot",
         "",
         {},
         "",
         "a GPU takes fp16 for wide transforms of down by itself, a CPU fp32 for all"}}},
      {"tasks",
       "QuaRot: zero-shot accuracy",
       {{"not quantized", "", ""},
        {"QuaRot, round to nearest", "quarot", "rounding=rtn"},
        {"QuaRot", "quarot", ""},
        {"Nibble", "nibble", ""}},
       true},
  };
}

// One thing quantized at a time.
std::vector<PaperSection> QuarotParts() {
  return {
      {"cache",
       "QuaRot: bits of cached K and V, the rest not quantized",
       {{"K4 V4", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4", {"5.51", "4.91", "3.33"}},
        {"K4 V3", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=3", {"5.54"}},
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
        {"4 bits, QuaRot, round to nearest",
         "quarot",
         "w-asym,a-bits=16,kv-bits=16,rounding=rtn",
         {"6.76"}},
        {"4 bits, QuaRot", "quarot", "w-asym,a-bits=16,kv-bits=16", {"5.60"}},
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
       {{"activations, 1", "quarot", "w-bits=16,kv-bits=16,a-clip=1", {"5.938"}},
        {"activations, 0.95", "quarot", "w-bits=16,kv-bits=16,a-clip=0.95"},
        {"activations, 0.9", "quarot", "w-bits=16,kv-bits=16", {"5.828"}},
        {"activations, 0.85", "quarot", "w-bits=16,kv-bits=16,a-clip=0.85"},
        {"activations, 0.8", "quarot", "w-bits=16,kv-bits=16,a-clip=0.8"},
        {"cache, 1", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4,kv-clip=1"},
        {"cache, 0.95",
         "quarot",
         "w-bits=16,a-bits=16,k-bits=4,v-bits=4",
         {"5.51", "4.91", "3.33"}},
        {"cache, 0.9", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4,kv-clip=0.9"},
        {"cache, 0.85", "quarot", "w-bits=16,a-bits=16,k-bits=4,v-bits=4,kv-clip=0.85"}}},
  };
}

std::vector<PaperSection> OtherPapers() {
  return {
      {"quik",
       "QUIK: down_proj, outlier counts, 8 bits",
       {{"down 8 bits", "quik", "", {"5.84", "5.28", "3.74"}},
        {"down 8 bits, no clip search", "quik", "w-clip=1", {"5.98", "5.37", "3.87"}},
        {"down 4 bits", "quik", "down-bits=4", {"8.87", "7.78", "6.91"}},
        {"down 4 bits, activations 16",
         "quik",
         "down-bits=4",
         {"6.09", "5.49", "3.98"},
         "down_proj:a-bits=16"},
        {"no outliers", "quik", "tail=0"},
        {"64 outliers", "quik", "tail=64"},
        {"128 outliers", "quik", "tail=128"},
        {"256 outliers", "quik", "tail=256"},
        {"512 outliers", "quik", "tail=512"},
        {"1024 outliers", "quik", "tail=1024"},
        {"all 8 bits", "quik", "w-bits=8,a-bits=8", {"5.48", "4.89", "3.33"}},
        {"all 8 bits, weights 2:4 sparse",
         "quik",
         "w-bits=8,a-bits=8,sparse=2:4",
         {"", "", "5.89"}},
        {"down 8 bits, weights 2:4 sparse", "quik", "sparse=2:4"},
        {"down 8 bits, those of attention 2:4", "quik", "", {}, "self_attn:sparse=2:4"},
        {"SmoothQuant W8A8", "smoothquant", "", {"5.58", "4.94", "3.48"}},
        {"GPTQ W4A16, no clip search", "gptq", "w-clip=1", {"6.24", "5.25", "3.68"}}}},
      {"atom",
       "Atom: its techniques one after the other (published for LLaMA-1)",
       {{"W4A4, round to nearest", "rtn", "w-clip=1,a-bits=4"},
        {"+ 128 outliers of 16 bits", "atom",
         "kv-bits=16,rounding=rtn,w-clip=1,a-clip=1,group=0,tail-bits=16"},
        {"+ outliers of 8 bits", "atom", "kv-bits=16,rounding=rtn,w-clip=1,a-clip=1,group=0"},
        {"+ groups of 128", "atom", "kv-bits=16,rounding=rtn,w-clip=1,a-clip=1"},
        {"+ clips", "atom", "kv-bits=16,rounding=rtn"},
        {"+ GPTQ", "atom", "kv-bits=16"},
        {"+ 4-bit cache", "atom", "", {"6.03", "5.27", "3.68"}}}},
      {"hybrids",
       "Rotations together with other methods",
       {{"QuaRot", "quarot", "", {"6.10", "5.40", "3.79"}},
        {"QuaRot, 8-bit down", "quarot", "down-bits=8"},
        {"QuaRot, 128 outliers of 8 bits", "quarot", "order=energy,tail=128,tail-bits=8"}}},
      {"qserve",
       "QServe: W4A8KV4",
       {{"row", "qserve", "w-group=0", {"5.75", "5.12", "3.52"}},
        {"groups of 128", "qserve", "", {"5.70", "5.08", "3.47"}},
        {"groups of 128, QuaRot's rotations instead", "quarot", "a-bits=8,group=128,two-level"}}},
      {"quipsharp",
       "QuIP#: bits without, with fine-tuning (published at a context of 4096: 5.12, 4.57, 3.12)",
       {{"4 bits", "quipsharp", "w-bits=4", {"5.22", "4.65", "3.18"}},
        {"3 bits", "quipsharp", "w-bits=3", {"5.60", "4.90", "3.41"}},
        {"2 bits", "quipsharp", "w-bits=2", {"8.22", "6.06", "4.16"}},
        {"4 bits, scales learned",
         "quipsharp",
         "w-bits=4,learned-scales",
         {"5.19", "4.63", "3.18"}},
        {"3 bits, scales learned",
         "quipsharp",
         "w-bits=3,learned-scales",
         {"5.41", "4.78", "3.35"}},
        {"2 bits, scales learned",
         "quipsharp",
         "w-bits=2,learned-scales",
         {"6.19", "5.35", "3.91"}}}},
  };
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
    for (const auto& more : {QuarotParts(), OtherPapers()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  }();
  return suite;
}

}  // namespace nibble::cli
