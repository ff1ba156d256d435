// SPDX-License-Identifier: Apache-2.0
// A text to ids and back on one thread.
#include "text/tokenizer.h"

#include "apps/bench/bench.h"

namespace nibble::cli {

void RunTokenizerBench(const BenchArguments& a, const Common& common) {
  const std::string text = ReadText(a.text);
  const auto start = std::chrono::steady_clock::now();
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  const double load = Seconds(start);
  std::vector<int32_t> ids;
  const Timing encode = Measure(a.repeats, [&] { ids = tokenizer.Encode(text, false); });
  const Timing decode = Measure(a.repeats, [&] { tokenizer.Decode(ids, false); });
  const double megabytes = static_cast<double>(text.size()) / 1e6;
  if (common.json) {
    return PrintJson({{"load_seconds", load},
                      {"tokens", ids.size()},
                      {"encode_megabytes_per_second", megabytes / encode.median},
                      {"decode_megabytes_per_second", megabytes / decode.median}});
  }
  fmt::print(
      "{:.2f} MB are {} tokens; loaded in {:.3f} s, encoded at {:.1f} MB/s, decoded at {:.1f}\n",
      megabytes, ids.size(), load, megabytes / encode.median, megabytes / decode.median);
}

}  // namespace nibble::cli
