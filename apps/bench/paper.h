// SPDX-License-Identifier: Apache-2.0
// Tools that the parts of `bench paper` share: contenders that take turns, and the table.
#pragma once

#include <functional>

#include "apps/bench/bench.h"
#include "measure/peak.h"

namespace nibble::cli {

// Something whose time is taken; run enqueues.
struct Contender {
  std::string name;
  std::function<void()> run;
  double units = 1;  // what one run counts for
  std::vector<double> seconds{};

  double median() const;  // of a unit
};

// Runs all contenders in turn, `repeats` times; each turn takes some milliseconds.
void TakeTurns(const std::vector<Contender*>& contenders, int64_t repeats);

class PaperTable {
 public:
  // The most that this GPU reaches, measured in this run: 8-bit integer operations and bytes read,
  // each a second.
  struct Ceilings {
    double operations, bytes;
  };
  explicit PaperTable(const Ceilings& ceilings);

  // The least that one unit of the work needs; 0 is not printed.
  struct Work {
    double operations = 0, bytes = 0;
  };
  // Adds one line: Nibble's time beside that of the others.
  void Add(const std::string& what, const std::string& shape, const Work& work,
           const Contender& nibble, const std::vector<const Contender*>& others);
  void AddMemory(const std::string& what, const std::string& shape, double bytes,
                 double bf16_bytes);
  void Print(bool json) const;

 private:
  Ceilings ceilings_;
  std::vector<std::vector<std::string>> rows_ = {
      {"what", "shape", "us", "TOPS", "GB/s", "% of peak", "time of others / Nibble", "paper"}};
  Json json_ = Json::array();
};

// Context that every part needs.
struct PaperBench {
  const BenchArguments& arguments;
  std::string device;
  Backend& backend;
  PaperTable& table;
};

// 8-bit products and the memory's read stream, in this order.
std::vector<cpu::Peak> MeasureGpuPeaks(int64_t repeats);

inline constexpr int64_t kCachedBytes = 200 << 20;  // weights in turn, so that no cache holds them

// paper_layers.cc: whole layers of prompts and of decode steps beside 16-bit ones, and the
// memory they take.
void BenchLayers(const PaperBench& bench, const std::string& name, const Network& network);
// paper_attention.cc: attention of one token in each of `batch` sequences over `keys`, by itself
// and behind what appends the token to the cache.
void BenchDecodeAttention(const PaperBench& bench, const Network& network, int64_t batch,
                          int64_t keys);
// paper_products.cc: 4-bit products of 4096 x 4096 weights without and with Atom's outliers and
// groups; products of 2:4 sparse weights beside dense ones.
void BenchAtomProducts(const PaperBench& bench);
void BenchSparseProducts(const PaperBench& bench);

}  // namespace nibble::cli
