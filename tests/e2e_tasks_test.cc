// SPDX-License-Identifier: Apache-2.0
// eval tasks and eval loglikelihood: scores, batches, interruption, bad data.
#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// Questions cut out of the evaluation text.
class EvalTasks : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    std::istringstream text(Slurp(kEvaluationText));
    for (std::string word; text >> word;) words_.push_back(word);
    fs::create_directory(Path("data"));
  }

  std::string Words(size_t count) {
    const size_t begin = rng_.Below(words_.size() - count);
    std::string text = words_[begin];
    for (size_t i = 1; i < count; ++i) text += " " + words_[begin + i];
    return text;
  }

  // Choices of 1 to 12 words; `pairs` receives what the task should ask.
  void WriteArc(int64_t questions, Json* pairs) {
    std::string lines;
    for (int64_t q = 0; q < questions; ++q) {
      Json line = {{"query", "Question: " + Words(5 + rng_.Below(20))}, {"choices", Json::array()}};
      const auto choices = static_cast<int64_t>(2 + rng_.Below(4));
      for (int64_t c = 0; c < choices; ++c) {
        line["choices"].push_back(Words(1 + rng_.Below(12)));
        pairs->push_back({{"context", line["query"].get<std::string>() + "\nAnswer:"},
                          {"continuation", " " + line["choices"].back().get<std::string>()}});
      }
      line["gold"] = rng_.Below(static_cast<uint64_t>(choices));
      lines += line.dump() + "\n";
    }
    Spill(Path("data/arc_easy.jsonl"), lines);
  }

  void WriteLambada(int64_t questions, Json* pairs) {
    std::string lines;
    for (int64_t q = 0; q < questions; ++q) {
      const std::string context = Words(60), word = Words(1);
      lines += Json{{"context", context}, {"continuation", word}}.dump() + "\n";
      pairs->push_back({{"context", context}, {"continuation", " " + word}});
    }
    Spill(Path("data/lambada_openai.jsonl"), lines);
  }

  Arguments Command(const std::string& model, const Arguments& options = {}) const {
    return Arguments{"eval", "tasks", model, "--data", Path("data"), "--json"} + options;
  }

  Json Requests(const std::string& model, const Json& requests) const {
    std::string lines;
    for (const Json& r : requests) lines += r.dump() + "\n";
    Spill(Path("requests"), lines);
    const Result r =
        Nibble({"eval", "loglikelihood", model, "--requests", Path("requests"), "--json"});
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json() : Json();
  }

  Rng rng_{5};
  std::vector<std::string> words_;
};

TEST_F(EvalTasks, ScoresAreThoseOfTheSingleRequests) {
  Json arc = Json::array(), lambada = Json::array();
  WriteArc(12, &arc);
  WriteLambada(12, &lambada);
  const Result run = Nibble(Command(kTiny, {"--tasks", "arc_easy,lambada_openai"}));
  ASSERT_EQ(run.code, 0) << run.err;
  const Json rows = run.json();
  ASSERT_EQ(rows.size(), 2u);

  const Json answers = Requests(kTiny, arc);
  std::istringstream lines(Slurp(Path("data/arc_easy.jsonl")));
  size_t at = 0;
  double right = 0, right_normalized = 0;
  for (std::string text; std::getline(lines, text);) {
    const Json line = ParseJson(text, "line");
    std::vector<double> plain, normalized;
    for (const Json& choice : line["choices"]) {
      plain.push_back(answers[at++]["log_likelihood"]);
      // The evaluation text is ASCII: a byte is a character.
      normalized.push_back(plain.back() / static_cast<double>(choice.get<std::string>().size()));
    }
    const auto best = [](const auto& v) {
      return std::max_element(v.begin(), v.end()) - v.begin();
    };
    right += best(plain) == line["gold"].get<int64_t>();
    right_normalized += best(normalized) == line["gold"].get<int64_t>();
  }
  EXPECT_EQ(rows[0]["task"], "arc_easy");
  EXPECT_EQ(rows[0]["questions"], 12);
  EXPECT_DOUBLE_EQ(rows[0]["acc"], right / 12);
  EXPECT_DOUBLE_EQ(rows[0]["acc_norm"], right_normalized / 12);
  const double p = right / 12;  // sample variance of a share: n p (1 - p) / (n - 1)
  EXPECT_NEAR(rows[0]["acc_stderr"], std::sqrt(p * (1 - p) / 11), 1e-12);

  double sum = 0, greedy = 0;
  for (const Json& answer : Requests(kTiny, lambada)) {
    sum += answer["log_likelihood"].get<double>();
    greedy += answer["is_greedy"].get<bool>();
  }
  EXPECT_DOUBLE_EQ(rows[1]["acc"], greedy / 12);
  EXPECT_NEAR(rows[1]["perplexity"], std::exp(-sum / 12), 1e-9 * std::exp(-sum / 12));

  const Result table = Nibble(
      {"eval", "tasks", "--tasks", "arc_easy", kTiny, "--data", Path("data"), "--limit", "3"});
  EXPECT_THAT(table.out, AllOf(HasSubstr("acc_norm"), HasSubstr("stderr"), HasSubstr("arc_easy")));
}

// The cache of 4 bits is cut back between requests; entries behind the cut must not matter.
TEST_F(EvalTasks, AnswersDoNotDependOnTheBatch) {
  Quantize("out", {"--rounding", "rtn"});
  Json requests = Json::array();
  WriteArc(6, &requests);
  const Json together = Requests(Path("out"), requests);
  ASSERT_EQ(together.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(Requests(Path("out"), Json::array({requests[i]}))[0], together[i]) << i;
  }
}

TEST_F(EvalTasks, RequestsAreTextsOrIds) {
  const auto ids = [&](const std::string& text) {
    return ParseJson("[" + Nibble({"tokenize", kTiny, "--text", text}).out + "]", "ids");
  };
  const Json context = ids("The river"), whole = ids("The river was");
  Json rest = Json::array();
  for (size_t i = context.size(); i < whole.size(); ++i) rest.push_back(whole[i]);
  const Json answers =
      Requests(kTiny, Json::array({{{"context", "The river "}, {"continuation", "was"}},
                                   {{"context", "The river"}, {"continuation", " was"}},
                                   {{"context", context}, {"continuation", rest}},
                                   {{"context", ""}, {"continuation", "The"}}}));
  EXPECT_EQ(answers[0], answers[1]);
  EXPECT_EQ(answers[0], answers[2]);
  EXPECT_LT(answers[3]["log_likelihood"], 0);
}

TEST_F(EvalTasks, AnInterruptedRunGoesOn) {
  Json unused = Json::array();
  WriteArc(20, &unused);
  WriteLambada(180, &unused);
  const std::string kept = Path("kept");
  const auto command = [&](const Arguments& options) {
    return Command(small_, Arguments{"--tasks", "arc_easy,lambada_openai"} + options);
  };
  const Json whole = Nibble(command({})).json();
  Process process(Arguments{NIBBLE_PROGRAM} + command({"--results", kept}), "", {});
  const auto kept_lines = [&] {
    const std::string text = Slurp(kept);
    return std::count(text.begin(), text.end(), '\n');
  };
  ASSERT_TRUE(WaitUntil([&] { return fs::exists(kept) && kept_lines() > 1; }));
  process.Signal(SIGINT);
  const Result stopped = process.Wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_THAT(stopped.err,
              AllOf(HasSubstr("of 200 questions"), HasSubstr("--resume"), HasSubstr(kept)));
  EXPECT_LT(kept_lines(), 201);

  const Result again = Nibble(command({"--results", kept}));
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, AllOf(HasSubstr(kept), HasSubstr("--resume")));
  const Result other = Nibble(command({"--results", kept, "--resume", "--limit", "7"}));
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, HasSubstr("(limit)"));
  const Result another =
      Nibble(Command(kTiny, {"--tasks", "arc_easy,lambada_openai", "--results", kept, "--resume"}));
  EXPECT_EQ(another.code, 1);
  EXPECT_THAT(another.err, HasSubstr("(model)"));

  const Result resumed = Nibble(command({"--results", kept, "--resume"}));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(resumed.json(), whole);
  EXPECT_EQ(kept_lines(), 201);  // nothing was answered twice
}

TEST_F(EvalTasks, BadInputIsOneLine) {
  const auto expect = [&](int code, const Arguments& arguments,
                          const std::vector<std::string>& words) {
    const Result r = Nibble(arguments);
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
    for (const std::string& word : words) EXPECT_THAT(r.err, HasSubstr(word));
  };
  const Arguments piqa = Command(small_, {"--tasks", "piqa", "--results", Path("kept")});
  expect(1, piqa, {"piqa.jsonl"});
  Spill(Path("data/piqa.jsonl"), "{\"query\": \"a\", \"choices\": [\"b\", \"c\"]}\n");
  expect(1, piqa, {"piqa.jsonl:1", "\"gold\""});
  EXPECT_FALSE(fs::exists(Path("kept")));
  expect(2, Command(small_, {"--tasks", "piqa,boolq"}), {"boolq", "winogrande"});
  expect(2, Command(small_, {"--tasks", "piqa", "--resume"}), {"--results"});
  const Arguments requests = {"eval", "loglikelihood", small_, "--requests", Path("requests")};
  for (const auto& [line, word] : std::vector<std::pair<std::string, std::string>>{
           {"{\"context\": \"a\"}", "\"continuation\""},
           {"{\"context\": \"a\", \"continuation\": \"\"}", "no token"},
           {"{\"context\": \"a\", \"continuation\": [1]}", "continuation must be a string"},
           {"{\"context\": [], \"continuation\": [1]}", "the context has no token"},
           {"{\"context\": [1], \"continuation\": [4096]}", "4096"},
           {"{\"context\": [1], \"continuation\": [1.5]}", "continuation[] must be an integer"},
           {"{", "JSON"}}) {
    Spill(Path("requests"), "{\"context\": \"a\", \"continuation\": \" b\"}\n" + line + "\n");
    expect(1, requests, {"requests:2", word});
  }
}

}  // namespace
}  // namespace nibble
