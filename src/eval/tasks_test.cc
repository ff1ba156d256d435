// SPDX-License-Identifier: Apache-2.0
#include "eval/tasks.h"

#include <cmath>
#include <fstream>

#include "engine/engine_testing.h"
#include "eval/results_file.h"
#include "eval/task_run.h"
#include "io/io_testing.h"
#include "tests/shared_data.h"

namespace nibble {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Pair = std::pair<std::string, std::string>;

class Tasks : public TemporaryDirectoryTest {
 protected:
  std::vector<TaskQuestion> LoadText(const char* task, const std::string& lines,
                                     int64_t limit = 0) const {
    Write("data.jsonl", lines);
    return LoadTask(FindTask(task), Path("data.jsonl"), limit);
  }
  TaskQuestion Load(const char* task, const std::string& line) const {
    return LoadText(task, line).at(0);
  }
  std::string LoadError(const char* task, const std::string& lines) const {
    return ErrorOf([&] { LoadText(task, lines); });
  }
  void Write(const char* name, const std::string& text) const {
    std::ofstream(Path(name), std::ios::binary) << text;
  }
  std::string Read(const char* name) const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
};

// The texts that lm-evaluation-harness 0.4.13 makes of the same questions.
TEST_F(Tasks, TextsOfEachTask) {
  EXPECT_EQ(
      Load("piqa", R"({"query": "Question: a?\n", "choices": ["b", "c d"], "gold": 1})").pairs,
      (std::vector<Pair>{{"Question: a?\nAnswer:", " b"}, {"Question: a?\nAnswer:", " c d"}}));
  const TaskQuestion arc = Load(
      "arc_easy", R"({"query": "Question: a?", "choices": ["b", "\u00fc\u6c34", "d"], "gold": 2})");
  EXPECT_EQ(arc.pairs, (std::vector<Pair>{{"Question: a?\nAnswer:", " b"},
                                          {"Question: a?\nAnswer:", " \u00fc\u6c34"},
                                          {"Question: a?\nAnswer:", " d"}}));
  EXPECT_EQ(arc.lengths, (std::vector<double>{1, 2, 1}));
  EXPECT_EQ(arc.gold, 2);
  EXPECT_EQ(Load("winogrande",
                 R"({"context_options": ["A so B", "A so C"], "continuation": "won.", "gold": 0})")
                .pairs,
            (std::vector<Pair>{{"A so B", " won."}, {"A so C", " won."}}));
  EXPECT_EQ(Load("lambada_openai", R"({"context": "a b", "continuation": "c"})").pairs,
            (std::vector<Pair>{{"a b", " c"}}));
}

// Expected: Python's str and re methods on the same text.
TEST_F(Tasks, HellaSwagIsPreparedAsPublished) {
  const std::string start =
      R"({"activity_label": " Baking  bread", "ctx_b": "the Man WALKS", "ind": 4,
          "ctx_a": "[header] How to bake [title] Mix it. [step] Use a bowl[x\ny] now [.",
          "endings": [" [substeps] a  b   c ", "x [title] y [z]", "plain."], "label": )";
  std::string line = start;
  std::erase(line, '\n');
  const std::string query =
      "Baking bread: How to bake. Mix it. Use a bowl[x\ny] now [. The man walks";
  for (const char* label : {"2}", "\"2\"}"}) {
    const TaskQuestion question = Load("hellaswag", line + label);
    EXPECT_EQ(question.pairs,
              (std::vector<Pair>{{query, "  a b  c"}, {query, " x. y "}, {query, " plain."}}));
    EXPECT_EQ(question.lengths, (std::vector<double>{7, 5, 6}));
    EXPECT_EQ(question.gold, 2);
  }
  EXPECT_THAT(LoadError("hellaswag", line + "\"two\"}"), HasSubstr("data.jsonl:1: label"));
}

TEST_F(Tasks, TheLimitIsANumberOfLines) {
  const std::string line = R"({"context": "a", "continuation": "b"})";
  const std::string three = line + "\n" + line + "\r\n" + line;
  EXPECT_EQ(LoadText("lambada_openai", three).size(), 3u);
  EXPECT_EQ(LoadText("lambada_openai", three + "\n").back().where, Path("data.jsonl") + ":3");
  EXPECT_EQ(LoadText("lambada_openai", three + "\nnot JSON", 2).size(), 2u);
}

TEST_F(Tasks, BadDataIsNamedByLineAndField) {
  const std::string good = R"({"query": "a", "choices": ["b", "c"], "gold": 1})";
  const auto error = [&](const std::string& line) { return LoadError("piqa", good + "\n" + line); };
  const auto at = [&](const char* word) {
    return AllOf(HasSubstr("data.jsonl:2: "), HasSubstr(word));
  };
  EXPECT_THAT(error(R"({"choices": ["b", "c"], "gold": 1})"), at("query"));
  EXPECT_THAT(error(R"({"query": 5, "choices": ["b", "c"], "gold": 1})"), at("query"));
  EXPECT_THAT(error(R"({"query": "a", "choices": "b", "gold": 0})"), at("choices"));
  EXPECT_THAT(error(R"({"query": "a", "choices": ["b", 7], "gold": 0})"), at("choices"));
  EXPECT_THAT(error(R"({"query": "a", "choices": ["b"], "gold": 0})"), at("choices"));
  EXPECT_THAT(error(R"({"query": "a", "choices": ["b", "c"], "gold": 2})"), at("gold = 2"));
  EXPECT_THAT(error(R"({"query": "a", "choices": ["b", "c"], "gold": -1})"), at("gold = -1"));
  EXPECT_THAT(error(R"({"query": "a", "choices": ["b", "c"], "gold": "1"})"), at("gold"));
  EXPECT_THAT(error(R"(["query"])"), at("object"));
  EXPECT_THAT(error(R"({"query": "a")"), at("JSON"));
  EXPECT_THAT(error("\n" + good), at("JSON"));
  EXPECT_THAT(error("{\"query\": \"\xff\", \"choices\": [\"b\", \"c\"], \"gold\": 1}"), at("JSON"));
  EXPECT_THAT(LoadError("piqa", ""), AllOf(HasSubstr("data.jsonl"), HasSubstr("no questions")));
  EXPECT_THAT(
      LoadError("winogrande", R"({"context_options": ["a"], "continuation": "b", "gold": 0})"),
      HasSubstr("data.jsonl:1: context_options"));
  EXPECT_THAT(ErrorOf([] { FindTask("boolq"); }), AllOf(HasSubstr("boolq"), HasSubstr("piqa")));
}

TEST_F(Tasks, ChoicesAndScores) {
  const TaskSpec& piqa = FindTask("piqa");
  // Lengths 1 and 4: the second choice wins per character unless it is over 4 times as unlikely.
  std::vector<TaskQuestion> questions;
  for (const int gold : {0, 0, 1, 1}) {
    questions.push_back({.pairs = {{"", ""}, {"", ""}}, .lengths = {1, 4}, .gold = gold});
  }
  const auto answer = [](double a, double b) { return std::vector<Likelihood>{{a}, {b}}; };
  const std::vector<std::vector<Likelihood>> answers = {answer(-1, -2), answer(-2, -8),
                                                        answer(-3, -3), answer(-2, -9)};
  const int64_t choices[] = {0, 0, 0, 0};     // the third is a tie
  const int64_t normalized[] = {1, 0, 1, 0};  // -1, -0.5; -2, -2; -3, -0.75; -2, -2.25
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(Choice(answers[i]), choices[i]) << i;
    EXPECT_EQ(NormalizedChoice(answers[i], questions[i]), normalized[i]) << i;
  }
  const std::vector<Metric> metrics = Metrics(piqa, questions, answers);
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_EQ(metrics[0].name, "acc");
  EXPECT_EQ(metrics[0].value, 0.5);  // right, right, wrong, wrong
  // Sample variance of 1, 1, 0, 0 = 1/3, over n = 4.
  EXPECT_DOUBLE_EQ(metrics[0].standard_error, std::sqrt(1.0 / 12));
  EXPECT_EQ(metrics[1].name, "acc_norm");
  EXPECT_EQ(metrics[1].value, 0.5);  // wrong, right, right, wrong
}

TEST_F(Tasks, TheScoresOfLambada) {
  const std::vector<TaskQuestion> questions(3, {.pairs = {{"", ""}}, .lengths = {1}});
  const std::vector<std::vector<Likelihood>> answers = {
      {{-std::log(2), true}}, {{-std::log(4), false}}, {{-std::log(8), false}}};
  const std::vector<Metric> metrics = Metrics(FindTask("lambada_openai"), questions, answers);
  ASSERT_EQ(metrics.size(), 2u);
  EXPECT_DOUBLE_EQ(metrics[0].value, 1.0 / 3);
  EXPECT_DOUBLE_EQ(metrics[0].standard_error, 1.0 / 3);  // variance 1/3, over 3
  EXPECT_EQ(metrics[1].name, "perplexity");
  EXPECT_NEAR(metrics[1].value, 4, 1e-12);
  EXPECT_NEAR(metrics[1].standard_error, 4 * std::log(2) / std::sqrt(3), 1e-12);
}

TEST_F(Tasks, TheWholeDataLoads) {
  NIBBLE_SKIP_WITHOUT_DATA("data/tasks");
  const std::string folder = test::DataPath("data/tasks");
  for (const auto& [task, rows] :
       std::vector<std::pair<std::string, size_t>>{{"piqa", 1838},
                                                   {"winogrande", 1267},
                                                   {"arc_easy", 2376},
                                                   {"arc_challenge", 1172},
                                                   {"lambada_openai", 5153}}) {
    EXPECT_EQ(LoadTask(FindTask(task), folder + "/" + task + ".jsonl", 0).size(), rows) << task;
  }
}

TEST_F(Tasks, LogitsThatAreNotFiniteNameTheQuestionAndAreNotKept) {
  Write("piqa.jsonl", R"({"query": "Question: a?\n", "choices": ["b", "c d"], "gold": 1})");
  const TaskOptions options = {
      .tasks = {"piqa"}, .data = root_.string(), .results = Path("results")};
  const Tokenizer tokenizer = Tokenizer::Load(kTinyModel);
  const auto bad = TinyWithHeadValue(NAN);
  EXPECT_THAT(ErrorOf([&] { EvaluateTasks(*bad, tokenizer, options); }),
              AllOf(HasSubstr("piqa.jsonl:1: "), HasSubstr("logits are NaN")));
  EXPECT_THAT(Read("results"), testing::Not(HasSubstr("log_likelihoods")));
}

class Kept : public Tasks {
 protected:
  std::string Error(const Json& identity, bool resume) const {
    return ErrorOf([&] { ResultsFile(Path("r"), identity, resume); });
  }
  const Json identity_ = {{"model", "m"}, {"limit", 5}};
  const std::vector<std::vector<Likelihood>> answers_ = {{{-0.1, true}, {-1e-300, false}},
                                                         {{-123.456789012345678, false}}};
};

TEST_F(Kept, AnswersComeBackBitByBit) {
  ResultsFile(Path("r"), identity_, false).Append("piqa", 7, answers_);
  {
    ResultsFile again(Path("r"), identity_, true);
    ASSERT_EQ(again.answers().size(), 2u);
    for (int64_t q : {7, 8}) {
      const auto& expected = answers_[static_cast<size_t>(q - 7)];
      const auto& read = again.answers().at({"piqa", q});
      ASSERT_EQ(read.size(), expected.size());
      for (size_t i = 0; i < read.size(); ++i) {
        EXPECT_EQ(read[i].log_likelihood, expected[i].log_likelihood);
        EXPECT_EQ(read[i].greedy, expected[i].greedy);
      }
    }
    again.Append("arc_easy", 0, std::span(answers_).first(1));
    EXPECT_THAT(Error(identity_, true), HasSubstr("in use"));
  }
  EXPECT_EQ(ResultsFile(Path("r"), identity_, true).answers().size(), 3u);
}

TEST_F(Kept, ALineCutOffIsDropped) {
  ResultsFile(Path("r"), identity_, false).Append("piqa", 0, answers_);
  const std::string whole = Read("r");
  Write("r", whole.substr(0, whole.size() - 9));
  {
    ResultsFile again(Path("r"), identity_, true);
    EXPECT_EQ(again.answers().size(), 1u);
    again.Append("piqa", 1, std::span(answers_).last(1));
  }
  EXPECT_EQ(Read("r"), whole);
}

TEST_F(Kept, WhatIsNotThisRunIsRefused) {
  ResultsFile(Path("r"), identity_, false).Append("piqa", 0, answers_);
  EXPECT_THAT(Error(identity_, false), HasSubstr("--resume"));
  const std::string other = Error({{"model", "m"}, {"limit", 6}}, true);
  EXPECT_THAT(other, HasSubstr("(limit)"));
  EXPECT_THAT(Error({{"model", "n"}, {"limit", 5}, {"new", 1}}, true), HasSubstr("(model, new)"));
  Write("r", Read("r") + "{\"task\": \"piqa\", \"question\": 2, \"log_likelihoods\": [-1]}\n");
  EXPECT_THAT(Error(identity_, true), AllOf(HasSubstr("r:4"), HasSubstr("greedy")));
  Write("r", "");
  EXPECT_THAT(Error(identity_, true), HasSubstr("not a file of results"));
}

}  // namespace
}  // namespace nibble
