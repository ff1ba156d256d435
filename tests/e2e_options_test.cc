// SPDX-License-Identifier: Apache-2.0
// Options that only change a number somewhere: each must reach it.
#include <set>
#include <tuple>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

using testing::HasSubstr;

class Options : public EndToEnd {
 protected:
  Json DryRun(const std::string& options) const {
    // Short windows: the estimate of the time runs some.
    const Result r = Nibble(
        Arguments{"quantize", small_, "--dry-run", "--json", "--context", "64"} + Words(options));
    EXPECT_EQ(r.code, 0) << options << r.err;
    return r.code == 0 ? r.json()["plan"] : Json();
  }
  std::vector<int32_t> Tokens(const Arguments& arguments) const {
    const Result r = Nibble(
        Arguments{"generate", small_, "--prompt", "The river", "--max-tokens", "12", "--json"} +
        arguments);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json()["token_ids"].get<std::vector<int32_t>>() : std::vector<int32_t>();
  }
};

#ifndef NIBBLE_SLOW_BUILD  // thirty programs, and recipe_fields_test.cc has the fields themselves
TEST_F(Options, OfRecipesReachThePlan) {
  // Options that do not influence each other share a run.
  struct Row {
    std::string recipe, options;
    std::vector<std::tuple<std::string, Json, Json>> fields;  // before and after the options
  };
  const std::string gate = "/linears/layers.1.gate";
  const std::vector<Row> rows = {
      {"quarot",
       "--a-clip 0.5 --w-clip 0.5 --w-asym --a-signed --kv-clip 0.5 --kv-group 32 --head-bits 6 "
       "--embed-bits 32 --learned-rotation",
       {{gate + "/activations/clip", 0.9, 0.5},
        {gate + "/activations/signed_scale", Json(), true},
        {gate + "/weights/clip", 0.0, 0.5},
        {gate + "/weights/symmetric", true, false},
        {"/cache/k/clip", 0.95, 0.5},
        {"/cache/v/clip", 0.95, 0.5},
        {"/cache/k/group", 0, 32},
        {"/cache/v/group", 0, 32},
        {"/linears/head/weights/bits", 8, 6},
        {"/linears/embedding/weights/bits", 8, 32},
        {"/provenance/learned-rotation", false, true}}},
      {"quarot",
       "--kv-sym --kv-bits 8 --rule lm_head:w-bits=5",
       {{"/cache/v/symmetric", false, true},
        {"/cache/k/bits", 4, 8},
        {"/cache/v/bits", 4, 8},
        {"/linears/head/weights/bits", 8, 5}}},
      {"quarot --kv-bits 8 --group 32 --down-bits 8",
       "--k-bits 3 --w-group 64 --rule down_proj:w-bits=3",
       {{"/cache/k/bits", 8, 3},
        {gate + "/weights/group", 32, 64},
        {"/linears/layers.1.down/weights/bits", 8, 3}}},
      {"quarot --kv-bits 8 --group 32",
       "--v-bits 3 --a-group 64",
       {{"/cache/v/bits", 8, 3}, {gate + "/activations/group", 32, 64}}},
      {"quarot --w-bits 3", "--codebook e8p", {{gate + "/weights/codebook", Json(), "e8p"}}},
      {"quipsharp",
       "--codebook half-integer --rotation kronecker",
       {{gate + "/weights/codebook", "e8p", "half-integer"},
        {"/provenance/rotation", "hadamard", "kronecker"}}},
      {"quipsharp",
       "--rotation fourier",
       {{"/provenance/rotation", "hadamard", "fourier"},
        {"/linears/layers.1.o/input_transform/factors/0/kind", "sylvester", "fourier"},
        {"/linears/layers.1.down/input_transform/factors/0/kind", "paley1", "fourier"}}},
      {"quipsharp", "--codebook none", {{gate + "/weights/codebook", "e8p", Json()}}},
      {"quik",
       "--a-sym --tail-bits 8 --tail 1024 --order energy",
       {{gate + "/activations/symmetric", false, true},
        {gate + "/tail/weights/bits", 16, 8},
        {gate + "/tail/activations/bits", 16, 8},
        {gate + "/tail/columns", 32, 64},
        {"/provenance/order", "largest", "energy"}}},
      {"qserve",
       "--w-sym --key-alpha 0.25",
       {{gate + "/weights/symmetric", false, true}, {"/provenance/key-alpha", 0.5, 0.25}}},
      {"qserve", "--one-level", {{gate + "/weights/second_level", true, Json()}}},
      {"rtn --kv-bits 4", "--kv-asym", {{"/cache/k/symmetric", true, false}}},
      {"w4a8 --kv-bits 4",
       "--raw-keys",
       {{"/cache/centered", true, Json()}, {"/provenance/center-keys", true, false}}},
      {"w4a8", "--cache-loss 0.02", {{"/provenance/cache-loss", 0.0, 0.02}}},
      {"awq",
       "--scale-steps 10 --no-output-clips",
       {{"/provenance/scale-steps", 20, 10}, {"/provenance/output-clips", true, Json()}}},
      {"smoothquant", "--alpha 0.25", {{"/provenance/alpha", 0.85, 0.25}}},
      {"nibble --rotation hadamard",
       "--a-unsigned --fixed-rotation",
       {{gate + "/activations/signed_scale", true, Json()},
        {"/provenance/learned-rotation", true, false}}},
      {"w4a8", "--quality fast", {{"/provenance/sweeps", 3, 0}}},
      {"w4a8 --calib-windows 1000",
       "--quality best",
       {{"/provenance/learned-scales", false, true}}},
      {"nibble --quality best --calib-windows 1000",
       "--fixed-scales",
       {{"/provenance/learned-scales", true, false}}},
  };
  const auto at = [](const Json& plan, const std::string& pointer) {
    const Json::json_pointer p(pointer);
    return plan.contains(p) ? plan.at(p) : Json();
  };
  for (const Row& row : rows) {
    const std::string base = "--recipe " + row.recipe;
    const Json before = DryRun(base), after = DryRun(base + " " + row.options);
    for (const auto& [pointer, value, changed] : row.fields) {
      EXPECT_EQ(at(before, pointer), value) << base << " " << pointer;
      EXPECT_EQ(at(after, pointer), changed) << base << " " << row.options << " " << pointer;
    }
  }
  // Without its online parts a rotated model has no factors anywhere.
  EXPECT_FALSE(
      DryRun("--online")["linears"]["layers.1.down"]["input_transform"]["factors"].empty());
  const Json offline = DryRun("--no-online");
  for (const auto& linear : offline["linears"]) {
    EXPECT_TRUE(linear["input_transform"]["factors"].empty());
  }
  const Result both = Nibble({"quantize", small_, "--dry-run", "--online", "--no-online"});
  EXPECT_EQ(both.code, 2);
  EXPECT_THAT(both.err, HasSubstr("--no-online"));
  // No machine has so many GPUs.
  EXPECT_NE(
      Nibble({"quantize", small_, "-o", Path("out"), "--rounding", "rtn", "--device", "cuda:63"})
          .code,
      0);
}
#endif

TEST_F(Options, ProgressAsJsonHasRateAndEta) {
  const Result r =
      Nibble({"quantize", small_, "-o", Path("out"), "--rounding", "rtn", "--progress", "json"});
  ASSERT_EQ(r.code, 0) << r.err;
  std::istringstream lines(r.err);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const Json json = ParseJson(line, "progress");
    for (const char* field : {"progress", "done", "total", "unit", "rate_per_s", "eta_s"}) {
      EXPECT_TRUE(json.contains(field)) << line;
    }
  }
  EXPECT_GT(count, 0);
}

// Every way to leave one token to choose from is greedy.
TEST_F(Options, SamplingDoesWhatItIsAsked) {
  const auto greedy = Tokens({});
  ASSERT_EQ(greedy.size(), 12u);
  const Arguments hot = {"--temperature", "5"};
  const Arguments seeded = hot + Arguments{"--seed", "1"};
  EXPECT_NE(Tokens(seeded), greedy);
  EXPECT_EQ(Tokens(seeded), Tokens(seeded));
  EXPECT_NE(Tokens(seeded), Tokens(hot + Arguments{"--seed", "2"}));
  EXPECT_NE(Tokens(hot), Tokens(hot)) << "a fresh seed";
  EXPECT_EQ(Tokens(hot + Arguments{"--min-p", "1"}), greedy);
  EXPECT_EQ(Tokens(hot + Arguments{"--top-k", "1"}), greedy);
  EXPECT_EQ(Tokens(hot + Arguments{"--top-p", "0.000001"}), greedy);
  // Close to 0 the temperature leaves the largest logit alone.
  EXPECT_EQ(Tokens({"--temperature", "0.0001"}), greedy);
  EXPECT_NE(Tokens({"--presence-penalty", "100"}), greedy);
  EXPECT_NE(Tokens({"--repetition-penalty", "100"}), greedy);
  // Values that no option gives come from the file.
  const std::string file = small_ + "/generation_config.json";
  Spill(file, R"({"do_sample": true, "temperature": 5.0})");
  EXPECT_EQ(Tokens({"--seed", "1"}), Tokens(seeded));
  EXPECT_EQ(Tokens({"--temperature", "0"}), greedy);
  for (const char* one : {R"("top_k": 1)", R"("top_p": 0.000001)"}) {
    Spill(file, R"({"do_sample": true, "temperature": 5.0, )" + std::string(one) + "}");
    EXPECT_EQ(Tokens({}), greedy) << one;
  }
  Spill(file, R"({"do_sample": false, "temperature": 5.0})");
  EXPECT_EQ(Tokens({}), greedy);
}

TEST_F(Options, TheSeedThatWasDrawnGivesTheSameTextAgain) {
  const Arguments hot = {"generate",      small_, "--prompt",     "The",
                         "--temperature", "5",    "--max-tokens", "8"};
  const Json first = Nibble(hot + Arguments{"--json"}).json();
  const std::string seed = first["seed"].dump();
  const Result again = Nibble(hot + Arguments{"--seed", seed});
  EXPECT_EQ(again.out, first["text"].get<std::string>() + "\n");
  EXPECT_THAT(again.err, HasSubstr("; seed " + seed));
}

TEST_F(Options, StopStringsEndTheText) {
  const Arguments generate = {"generate", small_,         "--prompt", "The",
                              "--json",   "--max-tokens", "12"};
  const std::string text = Nibble(generate).json()["text"];
  ASSERT_GT(text.size(), 8u);
  const std::string stop = text.substr(4, 3);
  const Json json = Nibble(generate + Arguments{"--stop", "absent", "--stop", stop}).json();
  EXPECT_EQ(json["text"], text.substr(0, text.find(stop)));
  EXPECT_EQ(json["finish_reason"], "stop");
}

TEST_F(Options, PromptsComeFromFilesAndStandardInput) {
  const Arguments generate = {"generate", small_, "--json", "--max-tokens", "6"};
  const auto text = [&](const Arguments& prompt, const std::string& input) {
    const Result r = Nibble(generate + prompt, input);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  const std::string one = text({"--prompt", "The\nriver"}, ""), two = text({"--prompt", "a"}, "");
  Spill(Path("prompt"), "The\nriver");
  EXPECT_EQ(text({"--prompt-file", Path("prompt")}, ""), one);
  EXPECT_EQ(text({"--prompt-file", "-"}, "The\nriver"), one);
  const std::string batch = "{\"prompt\": \"The\\nriver\"}\n\n{\"prompt\": \"a\"}\n";
  EXPECT_EQ(text({"--batch", "-"}, batch), one + two);
  for (const char* bad : {"[]\n", "{\"prompt\": 1}\n", "{\"prompt\"\n", "{}\n"}) {
    const Result r =
        Nibble(generate + Arguments{"--batch", "-"}, "{\"prompt\": \"a\"}\n" + std::string(bad));
    EXPECT_EQ(r.code, 1);
    EXPECT_EQ(r.out, "");
    EXPECT_THAT(r.err, HasSubstr("-:2"));
  }
}

TEST_F(Options, CommandsOfAConversation) {
  const Arguments chat = {"chat",         small_, "--temperature", "0", "--no-template",
                          "--max-tokens", "4",    "--json"};
  const std::string saved = Path("talk.json");
  const Result r =
      Nibble(chat, "/system Be brief.\nhello\n/save " + saved + "\n/stats\n/reset\nhello\n/load " +
                       saved + "\n/bogus\n/load absent\n/help\nmore\n/exit\nunheard\n");
  ASSERT_EQ(r.code, 0) << r.err;
  ASSERT_EQ(std::ranges::count(r.out, '\n'), 3);
  std::istringstream lines(r.out);
  std::string first, second;
  std::getline(lines, first), std::getline(lines, second);
  EXPECT_EQ(ParseJson(first, "")["text"], ParseJson(second, "")["text"]);
  const Json messages = ReadJsonFile(saved);
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[0]["content"], "Be brief.");
  EXPECT_EQ(messages[2]["content"], ParseJson(first, "")["text"]);
  EXPECT_THAT(r.err, AllOf(HasSubstr("3 messages; "), HasSubstr("there is no command /bogus"),
                           HasSubstr("nibble: absent: no such file"), HasSubstr("/save FILE")));
}

TEST_F(Options, AnswersAreSampled) {
  const auto chat = [&](const Arguments& more) {
    const Arguments base = {"chat", small_, "--no-template", "--max-tokens", "12"};
    return Nibble(base + more, "The river\n").out;
  };
  const auto text = [&](const Arguments& more) {
    const Arguments base = {"generate", small_, "--prompt", "The river\n", "--max-tokens", "12"};
    return Nibble(base + more).out;
  };
  const std::string greedy = text({}), sampled = chat({"--seed", "1"});
  EXPECT_EQ(chat({"--temperature", "0"}), greedy);
  EXPECT_NE(sampled, greedy);
  EXPECT_EQ(sampled, text({"--sample", "--seed", "1"}));
  Spill(small_ + "/generation_config.json", R"({"do_sample": true, "temperature": 0})");
  EXPECT_EQ(chat({"--seed", "1"}), greedy) << "the model's own";
}

TEST_F(Options, MessagesOfSeveralLines) {
  const auto chat = [&](const std::string& input) {
    const Result r =
        Nibble({"chat", small_, "--temperature", "0", "--no-template", "--max-tokens", "4"}, input);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.out;
  };
  const auto generate = [&](const std::string& prompt) {
    return Nibble({"generate", small_, "--prompt", prompt, "--max-tokens", "4"}).out;
  };
  EXPECT_EQ(chat("a\\\nb\n"), generate("a\nb\n"));
  EXPECT_EQ(chat("\"\"\"\na\n\nb\n\"\"\"\n"), generate("a\n\nb\n\n"));
}

TEST_F(Options, AMessageThatTheTemplateRefusesEndsNothing) {
  Spill(small_ + "/chat_template.jinja",
        "{% if messages|length > 1 %}{{ raise_exception('one message only') }}{% endif %}x");
  const Result r = Nibble({"chat", small_, "--temperature", "0", "--max-tokens", "4", "--json"},
                          "one\ntwo\n\xff\n/reset\nthree\n\"\"\"\nfour\n");
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_EQ(std::ranges::count(r.out, '\n'), 2);
  EXPECT_THAT(r.err,
              AllOf(HasSubstr("nibble: one message only"), HasSubstr("3 messages had no answer")));
}

// A history that fills the context loses its oldest turns; a message that never fits is refused.
TEST_F(Options, TheOldestTurnsAreForgotten) {
  Json config = ReadJsonFile(small_ + "/config.json");
  config["max_position_embeddings"] = 64;
  Spill(small_ + "/config.json", config.dump());
  const Arguments chat = {"chat",         small_, "--temperature", "0", "--no-template",
                          "--max-tokens", "4",    "--json"};
  std::string input, much;
  for (int i = 0; i < 12; ++i) input += "one two three four five six\n";
  for (int i = 0; i < 100; ++i) much += "seven ";
  const Result r = Nibble(chat, input + much + "\nlast\n");
  EXPECT_EQ(r.code, 1) << r.err;
  EXPECT_EQ(std::ranges::count(r.out, '\n'), 13);
  EXPECT_THAT(r.err, AllOf(HasSubstr("oldest 1 turns no longer fit"), HasSubstr("shorten it"),
                           HasSubstr("1 messages had no answer")));

  // A saved history keeps as many of its last turns as leave room for 4 tokens.
  Json history = Json::array();
  for (int i = 0; i < 2000; ++i) {
    history.push_back({{"role", "user"}, {"content", "one two three four five six"}});
    history.push_back({{"role", "assistant"}, {"content", "seven"}});
  }
  Spill(Path("history.json"), history.dump());
  const Result loaded = Nibble(chat, "/load " + Path("history.json") + "\nlast\n");
  ASSERT_EQ(loaded.code, 0) << loaded.err;
  const int64_t prompt = loaded.json()["prompt_tokens"], turn = 20;  // of a turn, at most
  EXPECT_LE(prompt, 64 - 4);
  EXPECT_GT(prompt, 64 - 4 - turn);
}

TEST_F(Options, TokensOfTheFileEndATurn) {
  const auto free = Tokens({});
  ASSERT_EQ(free.size(), 12u);
  const auto stop = static_cast<size_t>(std::ranges::find(free, free[4]) - free.begin());
  const Arguments chat = {"chat", small_, "--temperature", "0", "--max-tokens", "12", "--json"};
  const Json talk = Nibble(chat, "hello\n").json()["token_ids"];
  ASSERT_EQ(talk.size(), 12u);
  Spill(small_ + "/generation_config.json", Json{{"eos_token_id", free[4]}}.dump());
  EXPECT_LE(Tokens({}).size(), stop + 1);
  Spill(small_ + "/generation_config.json", Json{{"eos_token_id", talk[0]}}.dump());
  EXPECT_LE(Nibble(chat, "hello\n").json()["token_ids"].size(), 1u);
}

// The template keeps nothing of earlier turns, so their cached tokens must not be used.
TEST_F(Options, ChatForgetsWhatTheTemplateDrops) {
  Spill(small_ + "/chat_template.jinja", "{{ messages[-1].content }}");
  const std::string longer = "The river runs through the valley of the old town and into the sea.";
  const Result chat = Nibble({"chat", small_, "--temperature", "0", "--max-tokens", "4", "--json"},
                             "hello\n\n" + longer + "\n");
  ASSERT_EQ(chat.code, 0) << chat.err;
  ASSERT_EQ(std::ranges::count(chat.out, '\n'), 2) << "an empty line does nothing";
  const Json second = ParseJson(chat.out.substr(chat.out.find('\n') + 1), "turn 2");
  std::string ids = Nibble({"tokenize", small_, "--text", longer, "--no-special"}).out;
  ids.pop_back();
  const Json alone =
      Nibble({"generate", small_, "--prompt-ids", ids, "--max-tokens", "4", "--json"}).json();
  EXPECT_EQ(second["prompt_tokens"], alone["prompt_tokens"]);
  EXPECT_EQ(second["token_ids"], alone["token_ids"]);
}

// The one token that is written is never fed back, so all of the next prompt is cached already.
TEST_F(Options, ChatAnswersTheSamePromptAgain) {
  Spill(small_ + "/chat_template.jinja", "The river");
  const Result chat = Nibble({"chat", small_, "--temperature", "0", "--max-tokens", "1", "--json"},
                             "hello\nmore\n");
  ASSERT_EQ(chat.code, 0) << chat.err;
  const size_t end = chat.out.find('\n');
  EXPECT_EQ(ParseJson(chat.out.substr(0, end), "turn 1")["token_ids"],
            ParseJson(chat.out.substr(end + 1), "turn 2")["token_ids"]);
  EXPECT_EQ(Nibble({"chat", small_, "--temperature", "nan"}).code, 2) << "before any line";
}

// The last token is the first byte of a character, which nothing completes.
TEST_F(Options, TextEndsWithWhatCameOfACharacter) {
  const int32_t first = Tokens({})[0];
  Json tokenizer = Json::parse(Slurp(small_ + "/tokenizer.json"));
  Json& vocabulary = tokenizer["model"]["vocab"];
  const std::string byte = "\u00c3";
  for (auto& [token, id] : vocabulary.items()) {
    if (id == first) id = vocabulary[byte];
  }
  vocabulary[byte] = first;
  Spill(small_ + "/tokenizer.json", tokenizer.dump());
  const Json made =
      Nibble({"generate", small_, "--prompt", "The river", "--max-tokens", "1", "--json"}).json();
  EXPECT_EQ(made["token_ids"], Json{first});
  EXPECT_EQ(made["text"], "\uFFFD");
}

TEST_F(Options, ChatMessagesReachThePrompt) {
  const auto prompt_tokens = [&](const Arguments& arguments) {
    const Result r = Nibble(
        Arguments{"chat", small_, "--temperature", "0", "--max-tokens", "1", "--json"} + arguments,
        "hello\n");
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json()["prompt_tokens"].get<size_t>() : 0;
  };
  const auto tokens = [&](const std::string& text, const Arguments& options) {
    return Nibble(Arguments{"tokenize", small_, "--text", text, "--json"} + options)
        .json()["ids"]
        .size();
  };
  // The texts that the template in tokenizer_config.json renders.
  const std::string user = "<|user|>\nhello\n<|assistant|>\n", bos = "<|begin_of_text|>";
  EXPECT_EQ(prompt_tokens({}), tokens(bos + user, {"--no-special"}));
  EXPECT_EQ(prompt_tokens({"--system", "Be brief."}),
            tokens(bos + "<|system|>\nBe brief.\n" + user, {"--no-special"}));
  EXPECT_EQ(prompt_tokens({"--no-template"}), tokens("hello\n", {}));
  EXPECT_EQ(prompt_tokens({"--no-template", "--system", "Be brief."}),
            tokens("Be brief.\nhello\n", {}));
  Spill(small_ + "/tokenizer_config.json", "{}");
  const Result without = Nibble({"chat", small_}, "hello\n");
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, HasSubstr("--no-template"));
}

TEST_F(Options, OfTextsAndTasks) {
  // Each line of the file is a row, and " " is the empty row; rows are joined by blank lines.
  const std::string words = "The river runs through the valley of the old town. ";
  std::string rows, joined;
  for (int i = 0; i < 40; ++i) {
    rows += words + "\n \n";
    joined += (i == 0 ? "" : "\n\n") + words + "\n\n\n";
  }
  Spill(Path("rows"), rows);
  Spill(Path("joined"), joined);
  const auto perplexity = [&](const std::string& text, const Arguments& options) -> double {
    const Result r =
        Nibble(Arguments{"eval", "ppl", small_, "--text", Path(text), "--context", "64", "--json"} +
               options);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json()["perplexity"].get<double>() : 0;
  };
  EXPECT_EQ(perplexity("rows", {"--protocol", "gptq"}), perplexity("joined", {}));
  EXPECT_NE(perplexity("rows", {}), perplexity("joined", {}));
  // The text has one BOS in front, so that the first window has it anyway.
  const Arguments bos = {"--window-bos", "always"}, none = {"--window-bos", "none"};
  const Arguments first = {"--windows", "1"};
  EXPECT_EQ(perplexity("rows", none), perplexity("rows", {})) << "Llama knows texts without";
  EXPECT_EQ(perplexity("rows", first + bos), perplexity("rows", first));
  EXPECT_NE(perplexity("rows", bos), perplexity("rows", {}));

  // Without special tokens a question is read without BOS: other likelihoods.
  std::filesystem::create_directory(Path("tasks"));
  Spill(Path("tasks/piqa.jsonl"),
        R"({"query": "Question: Which?\n", "choices": ["the first one", "a second"], "gold": 0})");
  std::set<std::string> answers;
  for (const Arguments& options : {Arguments{}, Arguments{"--no-bos"}}) {
    const std::string results = Path("results") + std::to_string(options.size());
    const Result r = Nibble(Arguments{"eval", "tasks", small_, "--tasks", "piqa", "--data",
                                      Path("tasks"), "--results", results} +
                            options);
    EXPECT_EQ(r.code, 0) << r.err;
    // Looks behind the line that says what was asked for.
    const std::string lines = Slurp(results);
    answers.insert(lines.substr(lines.find('\n')));
  }
  EXPECT_EQ(answers.size(), 2u);
}

TEST_F(Options, InspectShowsKeysThatNothingReads) {
  Json config = ParseJson(Slurp(small_ + "/config.json"), "config.json");
  config["nobody_knows"] = 1;
  Spill(small_ + "/config.json", config.dump());
  Spill(small_ + "/generation_config.json", R"({"eos_token_id": 1, "num_beams": 4})");
  const std::string answers = "generation_config.json: num_beams = 4",
                    unknown = "config.json: nobody_knows = 1";
  const Result r = Nibble({"inspect", small_});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out,
              AllOf(HasSubstr("not read           " + answers + " (answers depend on them)\n"),
                    HasSubstr("not known          " + unknown + "\n")));
  EXPECT_THAT(r.err, AllOf(HasSubstr(answers + "\n"), HasSubstr(unknown + "\n")));
  EXPECT_EQ(Nibble({"inspect", small_, "--json"}).json()["unread_keys"],
            Json({{"answers", {answers}}, {"unknown", {unknown}}}));
  config["is_causal"] = false;
  Spill(small_ + "/config.json", config.dump());
  const Result refused = Nibble({"generate", small_, "--prompt", "a"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_EQ(refused.err,
            fmt::format("nibble: {}: not supported: config.json: is_causal = false\n", small_));
}

TEST_F(Options, LayersOfARandomShape) {
  const Result r = Nibble(
      {"bench", "decode", "--shape", "smollm2-135m", "--layers", "1", "--context", "16", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.json()[0]["shape"].get<std::string>(),
              AllOf(HasSubstr("1 layers"), HasSubstr("w4a8")));
}

}  // namespace
}  // namespace nibble
