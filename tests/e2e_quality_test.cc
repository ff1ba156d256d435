// SPDX-License-Identifier: Apache-2.0
// Tests bench quality: every row of the suite is understood, rows equal the results of quantize and
// eval ppl, and a stopped run goes on.
#include <set>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

class QualityVerb : public EndToEnd {
 protected:
  // The command. With --only rounding its rows are GPTQ at 4 bits, rounding to nearest at 4, 6 and
  // 8, and GPTQ at 6 and 8.
  Arguments Command(const std::string& work, const Arguments& more = {}) const {
    return Arguments{"bench",     "quality", small_,      "--text", kEvaluationText,
                     "--windows", "2",       "--context", "128",    "--calib-windows",
                     "4",         "--work",  Path(work)} +
           more;
  }
  Json Rows(const std::string& work, const Arguments& more = {"--only", "rounding"}) const {
    const Result r = Nibble(Command(work, more + Arguments{"--json"}));
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json()["rows"] : Json();
  }
  void ExpectQuantizeAndEval(const Json& row) const {
    const Json report =
        Quantize("out", Words(row["arguments"]) + Arguments{"--calib-windows", "4", "--force"});
    EXPECT_EQ(row["bits_per_weight"], report["bits_per_weight"]) << row;
    EXPECT_EQ(row["perplexity"], Eval("ppl", Path("out"))["perplexity"]) << row;
  }
  std::string ResultsFile(const std::string& work) const { return Path(work + "/results.json"); }
  // Expects that a finished run leaves only its results and its lock.
  void ExpectClean(const std::string& work) const {
    for (const auto& entry : fs::directory_iterator(Path(work))) {
      EXPECT_THAT(entry.path().filename().string(), AnyOf("results.json", "lock"));
    }
  }
};

std::vector<double> Perplexities(const Json& rows) {
  std::vector<double> values;
  for (const Json& row : rows) values.push_back(row["perplexity"]);
  return values;
}

// A row that does not run has a reason, and a misspelt option is not among the reasons.
TEST_F(QualityVerb, EveryRowIsUnderstoodOrHasAReason) {
  const Json rows = Rows("work", {"--dry-run"});
  EXPECT_FALSE(fs::exists(Path("work")));
  EXPECT_EQ(rows[0]["arguments"], "");
  std::set<std::string> sections, names;
  for (const Json& row : rows) {
    const std::string section = row["section"], reason = row["skipped"], options = row["arguments"];
    sections.insert(section);
    EXPECT_TRUE(names.insert(section + ": " + row["name"].get<std::string>()).second) << row;
    if (reason == "not measured") continue;
    EXPECT_THAT(reason, AnyOf(HasSubstr("multiple of 32 that divides"), HasSubstr("not expected"),
                              HasSubstr("needs --data"), HasSubstr("by itself")));
    if (reason.find("not expected") != std::string::npos) {
      EXPECT_THAT(options, ContainsRegex("--sparse"));
    }
    EXPECT_EQ(reason.find("by itself") != std::string::npos, section == "hadamard") << row;
    // Rows that need only the recipe quarot run on this model, except those with groups of 256.
    if (section == "cache" || section == "weights" || section == "clips" || section == "rounding" ||
        section == "rotation") {
      ADD_FAILURE() << row;
    }
  }
  EXPECT_GE(sections.size(), 14u);
  EXPECT_GE(names.size(), 70u);
}

TEST_F(QualityVerb, PublishedFiguresStandBesideTheModelThatIsNamed) {
  const auto tables = [&](const Arguments& more) {
    const Result r =
        Nibble(Command("work", Arguments{"--dry-run", "--only", "methods,quik"} + more));
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  const std::string named = tables({"--as", "llama2-7b"}), other = tables({});
  EXPECT_THAT(named, HasSubstr("llama2-7b, published: perplexity |"));
  EXPECT_THAT(named, ContainsRegex("\\| SmoothQuant \\|.*\\| 83.12 \\|"));
  EXPECT_THAT(named, ContainsRegex("\\| OmniQuant \\|.*not measured.*\\| 14.26 \\|"));
  EXPECT_THAT(named, ContainsRegex("\\| SmoothQuant W4A4 \\|.*published only.*\\| 83.12 \\|"));
  EXPECT_THAT(other, Not(AnyOf(HasSubstr("published"), HasSubstr("SmoothQuant W4A4"))));
}

#ifndef NIBBLE_SLOW_BUILD  // recipes and tasks have sanitized tests of their own
TEST_F(QualityVerb, RowsAreQuantizeAndEval) {
  const Result text =
      Nibble(Command("work", {"--only", "rounding,hadamard", "--markdown", Path("tables.md")}));
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(Slurp(Path("tables.md")), text.out);
  EXPECT_THAT(text.err, HasSubstr("row 9 of 9"));
  ExpectClean("work");
  const Json rows = Rows("work", {"--only", "rounding,hadamard"});
  ASSERT_EQ(rows.size(), 1u + 6 + 2);
  EXPECT_EQ(rows[0]["perplexity"], Eval("ppl", small_)["perplexity"]);
  for (size_t i = 1; i < rows.size(); ++i) {
    ExpectQuantizeAndEval(rows[i]);
    EXPECT_DOUBLE_EQ(rows[i]["gap"],
                     rows[i]["perplexity"].get<double>() - rows[0]["perplexity"].get<double>());
    EXPECT_THAT(text.out,
                HasSubstr(fmt::format("| {:.3f} |", rows[i]["perplexity"].get<double>())));
  }
  EXPECT_EQ(rows[3]["formats"], "W6A6 K6V6");
  EXPECT_EQ(rows[1]["published"]["llama2-7b"]["perplexity"], 6.10);
  EXPECT_EQ(rows[7]["perplexity"], rows[1]["perplexity"]) << "a CPU has fp32 by itself";
  EXPECT_NE(rows[8]["perplexity"], rows[7]["perplexity"]);
  EXPECT_EQ(rows[8]["published"]["llama2-7b"]["perplexity"], 6.08);
}

// Rows without a rotation share one pass over the channels.
TEST_F(QualityVerb, RowsDoNotDependOnEarlierOnes) {
  const Json rows = Rows("work", {"--only", "atom"});
  ASSERT_EQ(rows.size(), 9u);
  for (size_t i : {4, 8}) ExpectQuantizeAndEval(rows[i]);
}

TEST_F(QualityVerb, ZeroShotAccuracyIsThatOfEvalTasks) {
  fs::create_directory(Path("tasks"));
  Spill(
      Path("tasks/piqa.jsonl"),
      R"({"query": "Question: Where do boats go?\n", "choices": ["on a river", "in a shoe"], "gold": 0}
{"query": "Question: What is bread made of?\n", "choices": ["stone", "flour and water"], "gold": 1}
{"query": "Question: When is it dark?\n", "choices": ["at night", "at noon, always"], "gold": 0}
)");
  // The perplexity was measured earlier, the answers were not.
  Rows("work", {"--only", "hadamard"});
  const Arguments only = {"--only", "tasks", "--data", Path("tasks"), "--limit", "2"};
  const Json rows = Rows("work", only);
  const std::string nearest_arguments =
      "--recipe quarot --quality best --rounding rtn --head-bits 16 --embed-bits 16";
  Quantize("out", Words(nearest_arguments));
  const auto accuracy = [&](const std::string& model) {
    return Nibble({"eval", "tasks", model, "--tasks", "piqa", "--data", Path("tasks"), "--limit",
                   "2", "--json"})
        .json()[0]["acc_norm"];
  };
  const Json* plain = nullptr;
  const Json* nearest = nullptr;
  for (const Json& row : rows) {
    if (row["section"] != "tasks") continue;
    if (row["arguments"] == "") plain = &row;
    if (row["arguments"] == nearest_arguments) nearest = &row;
  }
  ASSERT_TRUE(plain != nullptr && nearest != nullptr);
  EXPECT_EQ(plain->at("accuracies").at("piqa"), accuracy(small_));
  EXPECT_EQ(nearest->at("accuracies").at("piqa"), accuracy(Path("out")));
  const std::string before = Slurp(ResultsFile("work"));
  EXPECT_EQ(Rows("work", only), rows);
  EXPECT_EQ(Slurp(ResultsFile("work")), before) << "nothing ran again";
  // Without --data these rows have a reason; the others stay.
  EXPECT_EQ(Rows("work", {"--only", "tasks"})[1]["skipped"], "needs --data DIR");
}
#endif

TEST_F(QualityVerb, GoesOnWhereItWasStopped) {
  const std::vector<double> whole = Perplexities(Rows("whole"));
  ASSERT_EQ(whole.size(), 7u);
  const std::string before = Slurp(ResultsFile("whole"));
  EXPECT_EQ(Perplexities(Rows("whole")), whole);
  EXPECT_EQ(Slurp(ResultsFile("whole")), before) << "nothing ran again";

  Process process(Arguments{NIBBLE_PROGRAM} + Command("work", {"--only", "rounding"}), "", {});
  ASSERT_TRUE(WaitUntil([&] { return fs::exists(ResultsFile("work")); }));
  process.Signal(SIGINT);
  const Result stopped = process.Wait();
  if (stopped.code != 0) {  // the little that is left may be done by then
    EXPECT_EQ(stopped.code, 75) << stopped.err;
    EXPECT_THAT(stopped.err, HasSubstr("the same command continues"));
    EXPECT_EQ(stopped.out, "");
  }
  EXPECT_EQ(Perplexities(Rows("work")), whole);
  ExpectClean("work");

  // A result that was lost is measured again; one that is there is believed.
  Json json = ParseJson(Slurp(ResultsFile("work")), "results.json");
  Json& results = json["results"];
  std::string lost;
  for (size_t i = results.size(); i-- > 0;) {
    if (results[i]["formats"] == "W8A8 K8V8")
      results.erase(i);
    else if (results[i]["formats"] == "W6A6 K6V6")
      results[i]["perplexity"] = 1234.5;
  }
  Spill(ResultsFile("work"), json.dump());
  const std::vector<double> again = Perplexities(Rows("work"));
  EXPECT_EQ(again[3], 1234.5);
  EXPECT_EQ(again[4], whole[4]);
}

TEST_F(QualityVerb, BadInput) {
  const auto expect = [&](const Arguments& arguments, int code, const std::string& words) {
    const Result r = Nibble(arguments);
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_THAT(r.err, HasSubstr(words));
    return r.err;
  };
  expect(Command("work", {"--only", "methods,tables"}), 2, "--only tables: no such section");
  expect(Command("work", {"--suite", "novel"}), 2, "--suite");
  expect({"bench", "quality", small_}, 2, "--text is required");
  expect({"bench", "quality", small_, "--text", Path("absent")}, 1, Path("absent"));
  expect(Command("work", {"--calib", Path("absent")}), 1, Path("absent"));
  EXPECT_FALSE(fs::exists(Path("work")));
  expect(Command("work", {"--data", Path("absent")}), 2, "--data");
  Spill(Path("file"), "");
  expect(Command("file/work"), 1, Path("file/work"));

  Rows("work", {"--only", "hadamard"});
  expect(Command("work", {"--seed", "1"}), 1, "other settings (seed)");
  Spill(ResultsFile("work"), R"({"identity": {}, "results")");
  expect(Command("work"), 1, "results.json");
  Quantize("out", {"--rounding", "rtn", "--w-clip", "1"});
  Arguments packed = Command("other");
  packed[2] = Path("out");
  expect(packed, 2, "is quantized already");
}

}  // namespace
}  // namespace nibble
