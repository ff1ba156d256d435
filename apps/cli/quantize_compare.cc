// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/quantize_compare.h"

#include <stdlib.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <string>

#include "apps/cli/quantize_loss.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "models/import/open_network.h"
#include "models/network.h"
#include "quantize/recipes/recipe_fields.h"

namespace nibble::cli {
namespace {

namespace fs = std::filesystem;

struct Contender {
  std::string_view recipe, fields;
};
// Contenders from the dearest to the smallest; recipes that need hours without a GPU are left out.
constexpr Contender kContenders[] = {
    {"rtn", "w-bits=8,a-bits=8,kv-bits=8,kv-asym,rotation=hadamard"},
    {"w4a8", ""},
    {"w4a8", "rotation=none"},
    {"w4a8", "rounding=rtn"},
    {"w4a8", "kv-bits=4"},
    {"w4a8", "w-bits=3"},
    {"quarot", ""}};
constexpr Contender kStored = {"stored", ""};
constexpr int kOptionsWidth = 80;  // the longest options fit

// The options as a user types them.
std::string OptionsText(const Contender& c) {
  std::string text = fmt::format("--recipe {}", c.recipe);
  for (const FieldValue& field : ParseFields(c.fields)) {
    const Json value = ValueJson(field);
    text += fmt::format(" --{}", field.field->name);
    if (value.is_boolean()) continue;
    text += " " + (value.is_string() ? value.get<std::string>() : value.dump());
  }
  return text;
}

class TemporaryDirectory {
 public:
  TemporaryDirectory() : path_(fs::temp_directory_path() / "nibble-compare-XXXXXX") {
    if (mkdtemp(path_.data()) == nullptr) Fail("{}: {}", path_, SystemErrorText(errno));
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A line as soon as it is known: options to the left, figures to the right.
void PrintRow(const std::array<std::string, 5>& cells) {
  fmt::print("{:{}}  {:>8}  {:>10}  {:>6}  {:>12}\n", cells[0], kOptionsWidth, cells[1], cells[2],
             cells[3], cells[4]);
  std::fflush(stdout);
}

}  // namespace

void CompareRecipes(QuantizeOptions options, int64_t loss_windows, const Common& common) {
  const TemporaryDirectory directory;
  options.output = directory.path() + "/out";
  options.force = true;
  std::vector<Contender> contenders(std::begin(kContenders), std::end(kContenders));
  if (!OpenNetwork(options.model).stored_codes.empty())
    contenders.insert(contenders.begin(), kStored);

  Json json = Json::array();
  if (!common.json) PrintRow({"options", "size", "perplexity", "KL", "quantized in"});
  double reference = 0;
  int64_t windows = 0;
  try {
    for (const Contender& c : contenders) {
      const std::string text = OptionsText(c);
      options.recipe = ChangedRecipe(WithEffort(FindRecipe(c.recipe), options.effort),
                                     ParseFields(c.fields), {});
      QuantizeReport report = Quantize(options);
      // All contenders have the same windows, also those that calibrate on none.
      report.calibration_windows = windows =
          options.calibration_windows > 0
              ? options.calibration_windows
              : options.effort.WindowsFor(report.config, report.context);
      const Loss loss = MeasureLoss(options, report, loss_windows);
      if (Interrupted()) throw Error(ErrorCode::kInterrupted, "");
      if (!loss.unmeasured.empty()) Fail("nothing to compare: {}", loss.unmeasured);
      reference = loss.result.reference_perplexity;
      json.push_back({{"options", text},
                      {"bytes", report.output_bytes},
                      {"seconds", report.seconds},
                      {"loss", LossJson(loss)}});
      if (common.json) continue;
      PrintRow({text, BytesText(report.output_bytes), fmt::format("{:.3f}", loss.result.perplexity),
                fmt::format("{:.4f}", loss.result.kl_mean), DurationText(report.seconds)});
    }
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInterrupted) throw;
    if (common.json) PrintJson(json);
    Fail("interrupted; the rows above are what was compared");  // nothing to resume
  }
  if (common.json) return PrintJson(json);
  fmt::print("perplexity of the source {:.3f}; {} windows of calibration, {} others to measure\n",
             reference, windows, loss_windows);
}

}  // namespace nibble::cli
