// SPDX-License-Identifier: Apache-2.0
// Tests `bench serve --memory`: formats side by side in the same memory. Speeds are not looked at,
// only how they follow from each other.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// One layer and both tables of SmolLM2-135M's shape in bf16.
constexpr int64_t kWideBytes =
    2 * (2 * 49152 * 576 + 2 * 576 * 576 + 2 * 192 * 576 + 3 * 1536 * 576);
// 64 tokens of keys and values, 3 heads of 64 each, in bf16.
constexpr int64_t kWidePage = 64 * 2 * 3 * 64 * 2;

Result ServeTable(int64_t memory, const std::string& rest) {
  return Nibble(
      Words("bench serve --shape smollm2-135m --layers 1 --longest-prompt 64 "
            "--longest-answer 16 --seconds 60 --repeats 2 --json --memory " +
            std::to_string(memory) + " " + rest));
}

TEST(BenchServeTable, RowsAndSummaryAgree) {
  const Result r = ServeTable(1'000'000'000, "--formats quarot,w16a16 --streams 1,3");
  ASSERT_EQ(r.code, 0) << r.err;
  const Json json = r.json(), &rows = json["rows"];
  ASSERT_EQ(rows.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const Json &row = rows[i], &wide = rows[i % 2];
    const int64_t streams = i % 2 == 0 ? 1 : 3;
    EXPECT_EQ(row["format"], i < 2 ? "w16a16" : "quarot") << "16 bits come first";
    EXPECT_EQ(row["bits"], i < 2 ? "W16A16KV16" : "W4A4KV4");
    EXPECT_EQ(row["streams"], streams);
    EXPECT_EQ(row["most_running"], streams);
    EXPECT_GE(row["answered"], 2 * streams) << "streams go on until so many have ended";
    EXPECT_LT(row["answered"], 3 * streams);
    EXPECT_EQ(row["preemptions"], 0);
    EXPECT_LE(row["between_tokens_ms"], row["between_tokens_99_ms"]);
    EXPECT_LE(row["first_token_ms"], row["first_token_99_ms"]);
    EXPECT_LE(row["most_cache_bytes"], row["cache_bytes"]);
    EXPECT_DOUBLE_EQ(
        row["ratio_to_16_bits"].get<double>(),
        row["tokens_per_second"].get<double>() / wide["tokens_per_second"].get<double>());
  }
  EXPECT_EQ(rows[0]["weight_bytes"], kWideBytes);
  EXPECT_LT(rows[2]["weight_bytes"], rows[0]["weight_bytes"]);
  const auto most = [&](size_t first) {
    return std::max(rows[first]["tokens_per_second"].get<double>(),
                    rows[first + 1]["tokens_per_second"].get<double>());
  };
  const Json& summary = json["summary"];
  ASSERT_EQ(summary.size(), 2u);
  EXPECT_EQ(summary[0]["tokens_per_second"], most(0));
  EXPECT_DOUBLE_EQ(summary[1]["ratio_to_16_bits"].get<double>(), most(2) / most(0));
  EXPECT_DOUBLE_EQ(summary[0]["w4a4_ratio_to_it"].get<double>(), most(2) / most(0));
  EXPECT_EQ(summary[0]["published_w4a4_ratio_to_it"], "7.73");
  EXPECT_FALSE(summary[1].contains("w4a4_ratio_to_it"));
}

TEST(BenchServeTable, WeightsAndCacheShareTheMemory) {
  // A request needs a page, of which there are three.
  const Result narrow = ServeTable(kWideBytes + 4 * kWidePage - 1, "--formats w16a16 --streams 8");
  ASSERT_EQ(narrow.code, 0) << narrow.err;
  const Json row = narrow.json()["rows"][0];
  EXPECT_EQ(row["cache_bytes"], 3 * kWidePage);
  EXPECT_LE(row["most_cache_bytes"], 3 * kWidePage);
  EXPECT_GE(row["most_running"], 1);
  EXPECT_LE(row["most_running"], 3);
  EXPECT_GE(row["answered"], 16);

  const Result none = ServeTable(kWideBytes - 1, "--formats w16a16,quarot --streams 1");
  ASSERT_EQ(none.code, 0) << none.err;
  const Json rows = none.json()["rows"];
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_THAT(rows[0]["problem"].get<std::string>(), HasSubstr("do not fit into"));
  EXPECT_FALSE(rows[0].contains("tokens_per_second"));
  EXPECT_GT(rows[1]["tokens_per_second"], 0) << "other formats run";
  EXPECT_FALSE(rows[1].contains("ratio_to_16_bits"));

  const Result full = ServeTable(kWideBytes, "--formats w16a16 --streams 1");
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_THAT(full.json()["rows"][0]["problem"].get<std::string>(),
              HasSubstr("of cache, weights leave 0 B"));
}

TEST(BenchServeTable, RowsEndInTime) {
  const std::string arguments =
      "bench serve --shape smollm2-135m --layers 1 --memory 1GB --formats quarot --streams 2 "
      "--seconds 0.2 --repeats 1000";
  const Result r = Nibble(Words(arguments));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, HasSubstr("1000 requests a stream or 0.2 s\n"));
  EXPECT_THAT(r.out, HasSubstr("\nquarot    W4A4KV4 "));
  const Result json = Nibble(Words(arguments + " --json"));
  ASSERT_EQ(json.code, 0) << json.err;
  EXPECT_LT(json.json()["rows"][0]["answered"], 2000);
  EXPECT_THAT(json.err, HasSubstr("\nquarot    W4A4KV4 ")) << "rows are told as they come";
}

TEST(BenchServe, AnswersAllRequests) {
  const Result r = Nibble({"bench", "serve", kTiny, "--batch", "2", "--repeats", "2", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json row = r.json();
  EXPECT_EQ(row["streams"], 2);
  EXPECT_EQ(row["requests"], 4);
  EXPECT_GT(row["written_per_second"], 0);
  EXPECT_LE(row["most_pages_in_use"], 1);
  EXPECT_EQ(row["preemptions"], 0);
}

TEST(BenchServeTable, BadOptionsAreOneLine) {
  const std::string shape = "bench serve --shape smollm2-135m ";
  for (const auto& [options, words] : std::map<std::string, std::string>{
           {shape + "--streams 2", "--streams requires --memory"},
           {shape + "--formats atom", "--formats requires --memory"},
           {shape + "--memory 1GB --batch 2", "--batch excludes --memory"},
           {shape + "--memory 1GB --streams 0", "--streams"},
           {shape + "--memory -1", "--memory"},
           {shape + "--memory much", "--memory"},
           {shape + "--memory 1GB --formats w4a9", "no recipe \"w4a9\""},
           {shape + "--memory 1GB --formats atom:a-bits=9", "a-bits \"9\""},
           {shape + "--memory 1GB --formats gptq:a-clip=0.9", "--a-clip 0.9 changes nothing"},
           {"bench serve " + kTiny + " --memory 1GB", "model excludes --memory"},
           {"bench serve --memory 1GB", "--shape"}}) {
    const Result r = Nibble(Words(options));
    EXPECT_EQ(r.code, 2) << options;
    EXPECT_EQ(r.out, "") << options;
    EXPECT_THAT(r.err, StartsWith("nibble: ")) << options;
    EXPECT_THAT(r.err, HasSubstr(words)) << options;
    EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << r.err;
  }
}

}  // namespace
}  // namespace nibble
