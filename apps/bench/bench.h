// SPDX-License-Identifier: Apache-2.0
// Tools that the benches share: the model they run on, timing, and the table.
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include "apps/cli/cli.h"
#include "apps/cli/recipe_options.h"
#include "engine/model.h"
#include "measure/peak.h"
#include "quantize/recipes/recipe.h"

namespace nibble::cli {

struct BenchArguments {
  std::string model;  // a directory, or
  std::string shape;  // a name of FindShape with random weights
  int64_t layers = 0;
  std::string recipe;  // of the shape; empty: `usual`
  Recipe usual = kW4a8Recipe;
  RecipeChanges changes;
  std::string text;  // a file
  int64_t tokens = 512, context = 0, batch = 1, repeats = 5, windows = 128, pages = 100;
  bool full = false;
  // Of loads on the scheduler.
  int64_t longest_prompt = 2048, longest_answer = 512;  // tokens
  double memory = 0;                                    // bytes of weights and cache; 0: no table
  std::vector<std::string> formats;                     // empty: all of the paper's
  std::vector<int64_t> streams = {1, 2, 4, 8, 16, 32, 64, 128, 256};
  double seconds = 10;  // that count in a row
};

struct Timing {
  double median = 0, min = 0, max = 0;  // seconds
};

inline double Seconds(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Times `repeats` runs of `work` after one that warms up; `prepare` runs before each and is not
// timed.
template <typename Work, typename Prepare>
Timing Measure(int64_t repeats, Work&& work, Prepare&& prepare) {
  std::vector<double> seconds;
  for (int64_t i = 0; i <= repeats; ++i) {
    prepare();
    const auto start = std::chrono::steady_clock::now();
    work();
    if (i > 0) seconds.push_back(Seconds(start));
  }
  std::sort(seconds.begin(), seconds.end());
  return {seconds[seconds.size() / 2], seconds.front(), seconds.back()};
}
template <typename Work>
Timing Measure(int64_t repeats, Work&& work) {
  return Measure(repeats, work, [] {});
}

// One line of a bench; numbers that are 0 are not printed.
struct BenchRow {
  std::string name, shape;
  Timing time{};
  double tokens = 0, operations = 0, bytes = 0;  // of one run
  double peak = 0;   // integer operations per second that this machine reaches at most
  double share = 0;  // of the whole
};
void PrintRows(const std::vector<BenchRow>& rows, const Common& common);

// The config, shape and recipe that the options --shape, --layers, --recipe and its changes ask
// for.
Json BenchConfig(const BenchArguments& arguments);  // of --shape
ModelConfig BenchShape(const BenchArguments& arguments);
Recipe BenchRecipe(const BenchArguments& arguments);
// --shape with random weights, or the model directory.
Network BenchNetwork(const BenchArguments& arguments);
// "llama2-7b, 32 layers, quarot W4A8KV4, head W8A8"
std::string BenchName(const BenchArguments& arguments, const Network& network);
std::vector<int32_t> RandomIds(const ModelConfig& config, int64_t count);
// One greedy token of each sequence, as `nibble serve` writes it: the logits stay where they are.
void WriteTokens(Model& model, std::span<const Model::Sequence> sequences);
// Uniform random values with variance 1 in the backend's memory: cheap, and no kernel's time
// depends on their distribution.
Buffer<float> RandomFloats(Backend& backend, int64_t count);
Buffer<Intermediate> RandomIntermediates(Backend& backend, int64_t count);
// Bytes of all linears as stored; of experts, the share `experts_read`.
double WeightBytes(const Network& network, double experts_read = 1);
// Bytes of all linears and tables.
double StoredBytes(const Network& network);

void RunPrefill(const BenchArguments& arguments, const Common& common);
void RunDecode(const BenchArguments& arguments, const Common& common);
// What the device of `common` multiplies and reads at most.
std::vector<cpu::Peak> MeasurePeaks(const Common& common);
void RunDoctor(const BenchArguments& arguments, const Common& common);
void RunPeak(const BenchArguments& arguments, const Common& common);
void RunKernels(const BenchArguments& arguments, const Common& common);
void RunAttention(const BenchArguments& arguments, const Common& common);
void RunPaper(const BenchArguments& arguments, const Common& common);
void RunQuantizing(const BenchArguments& arguments, const Common& common);
void RunServeBench(const BenchArguments& arguments, const Common& common);
// serve_table.cc: formats side by side in the same memory, which RunServeBench gives over to where
// --memory is there.
void RunServeTable(const BenchArguments& arguments, const Common& common);
void RunStartup(const BenchArguments& arguments, const Common& common);
void RunTokenizerBench(const BenchArguments& arguments, const Common& common);
void AddQuality(CLI::App& bench, Common& common, Run& run);

}  // namespace nibble::cli
