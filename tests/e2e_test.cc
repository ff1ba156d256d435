// SPDX-License-Identifier: Apache-2.0
// Tests the program on a model that is not quantized: help, tokens, text, perplexity, and errors
// for bad input.
#include <algorithm>

#include "base/cpu_features.h"
#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::StartsWith;

TEST(CommandLine, VersionHelpAndWrongUsage) {
  const Result version = Nibble({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, testing::MatchesRegex("nibble [0-9]+\\.[0-9]+\\.[0-9]+\n"));
  EXPECT_EQ(Nibble({"--help"}).code, 0);
  EXPECT_EQ(Nibble({}).code, 2);
  const Result unknown = Nibble({"quantise", kTiny});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("no verb \"quantise\"; did you mean quantize?"));
  EXPECT_THAT(Nibble({"eval", "pp", kTiny}).err, HasSubstr("did you mean ppl?"));
  EXPECT_THAT(Nibble({"run", kTiny}).err, HasSubstr("did you mean chat?"));
  EXPECT_EQ(Nibble({"help"}).out, Nibble({"--help"}).out);
  EXPECT_EQ(Nibble({"help", "eval", "ppl"}).out, Nibble({"eval", "ppl", "--help"}).out);
  EXPECT_EQ(Nibble({"inspect", kTiny, "--jsno"}).err,
            "nibble: nibble inspect has no option --jsno; did you mean --json? nibble inspect "
            "--help lists all\n");
  EXPECT_EQ(Nibble({"chat"}).err, "nibble: model is required; nibble chat --help says more\n");
  EXPECT_THAT(Nibble({"inspect", kTiny, "more"}).err, HasSubstr("\"more\" is more than"));
  EXPECT_THAT(Nibble({"eval", "ppl", kTiny, "--windows", "-1"}).err,
              HasSubstr("must be 0 or more, not -1"));
  EXPECT_EQ(Nibble({"inspect"}).code, 2);
  EXPECT_EQ(Nibble({"inspect", kTiny, "--frobnicate"}).code, 2);
  EXPECT_EQ(Nibble({"quantize", kTiny, "--w-bits", "9", "-o", "x"}).code, 2);
  EXPECT_EQ(Nibble({"generate", kTiny, "--prompt", "a", "--device", "abacus"}).code, 2);
  EXPECT_EQ(Nibble({"quantize", kTiny}).code, 2) << "no -o";
}

TEST(CommandLine, HelpLeavesRareOptionsToHelpAllAndTopics) {
  const std::string help = Nibble({"quantize", "--help"}).out;
  EXPECT_THAT(help, AllOf(HasSubstr("--kv-bits"), HasSubstr("--recipe"),
                          testing::Not(HasSubstr("--gptaq")), HasSubstr("nibble help recipes")));
  EXPECT_LT(std::ranges::count(help, '\n'), 80);
  EXPECT_THAT(Nibble({"quantize", "--help-all"}).out, HasSubstr("--gptaq"));
  EXPECT_THAT(Nibble({"help", "recipes"}).out,
              AllOf(HasSubstr("quarot: "), HasSubstr("--gptaq"), HasSubstr("--kv-bits")));
  const std::string topics = Nibble({"help", "topics"}).out;
  for (const char* topic : {"recipes", "models", "environment", "exit", "man"}) {
    EXPECT_THAT(topics, HasSubstr(topic));
    const Result text = Nibble({"help", topic});
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_GT(text.out.size(), 100u) << topic;
  }
}

TEST(CommandLine, TheManualPageHasEveryOptionAndNoOtherRequests) {
  const std::string page = Nibble({"help", "man"}).out;
  for (const char* option : {"\\-\\-gptaq", "\\-\\-no\\-keep", "\\-\\-kernels", "NIBBLE_ISA"}) {
    EXPECT_THAT(page, HasSubstr(option));
  }
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with('.') && !line.starts_with('\'')) continue;
    EXPECT_THAT(line, testing::MatchesRegex("[.](TH|SH|TP|B|I|nf|fi|PP)( .*)?"));
  }
}

// What bash would offer behind these words.
std::string Completed(const std::vector<std::string>& words) {
  const std::string script = Nibble({"completion", "bash"}).out;
  const std::string command =
      fmt::format("{}COMP_WORDS=({}); COMP_CWORD={}; _nibble; echo \"${{COMPREPLY[*]}}\"", script,
                  fmt::join(words, " "), words.size() - 1);
  return Process({"/bin/bash", "-c", command}, "", {}).Wait().out;
}

TEST(CommandLine, CompletionKnowsVerbsOptionsAndValues) {
  EXPECT_EQ(Completed({"nibble", "qu"}), "quantize\n");
  EXPECT_EQ(Completed({"nibble", "eval", "p"}), "ppl\n");
  EXPECT_EQ(Completed({"nibble", "quantize", "m", "--rec"}), "--recipe --recent\n");
  EXPECT_EQ(Completed({"nibble", "quantize", "m", "--recipe", "qua"}), "quarot quarot-paper\n");
  EXPECT_EQ(Completed({"nibble", "quantize", "m", "--rotation", "ha"}), "hadamard\n");
  EXPECT_EQ(Completed({"nibble", "inspect", NIBBLE_SOURCE_DIR "/LICEN"}),
            NIBBLE_SOURCE_DIR "/LICENSE\n");
  EXPECT_THAT(Nibble({"completion", "zsh"}).out, StartsWith("#compdef nibble\n"));
  EXPECT_THAT(Nibble({"completion", "fish"}).out,
              HasSubstr("complete -c nibble -n '__fish_seen_subcommand_from quantize' -l recipe"));
  EXPECT_EQ(Nibble({"completion", "tcsh"}).code, 2);
}

// Every example of a --help must at least be an accepted command line: it fails, here, because
// there is no such model (1), not because of its options (2).
TEST(CommandLine, EveryVerbShowsAnExampleThatParses) {
  const Arguments verbs[] = {{"quantize"},        {"eval"},
                             {"eval", "ppl"},     {"eval", "kl"},
                             {"eval", "tasks"},   {"eval", "loglikelihood"},
                             {"generate"},        {"chat"},
                             {"tokenize"},        {"detokenize"},
                             {"inspect"},         {"report"},
                             {"bench"},           {"bench", "prefill"},
                             {"bench", "decode"}, {"bench", "quality"}};
  for (const Arguments& verb : verbs) {
    const Result help = Nibble(verb + Arguments{"--help"});
    EXPECT_EQ(help.code, 0);
    std::istringstream lines(help.out.substr(std::min(help.out.size(), help.out.find("Example:"))));
    int examples = 0;
    for (std::string line; std::getline(lines, line);) {
      if (!line.starts_with("  nibble ")) continue;
      ++examples;
      const std::string command = "cd /; exec " NIBBLE_PROGRAM + line.substr(8);
      const Result r = Process({"/bin/sh", "-c", command}, "", {}).Wait();
      EXPECT_EQ(r.code, 1) << line << "\n" << r.err;
    }
    EXPECT_GT(examples, 0) << help.out;
  }
}

TEST(CommandLine, OutputThatCannotBeWrittenIsAFailure) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  const std::string command = NIBBLE_PROGRAM " inspect " + kTiny + " --json >/dev/full";
  const Result r = Process({"/bin/sh", "-c", command}, "", {}).Wait();
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("standard output"));
}

TEST(CommandLine, TokensAndBack) {
  const std::string text = "The river, 1234 times: na\u00efve \u6c34 \U0001F600\n\n  end ";
  const Result ids = Nibble({"tokenize", kTiny, "--text", text, "--no-special"});
  ASSERT_EQ(ids.code, 0) << ids.err;
  const std::string list = ids.out.substr(0, ids.out.size() - 1);
  EXPECT_EQ(Nibble({"detokenize", kTiny, "--ids", list}).out, text + "\n");
  EXPECT_EQ(Nibble({"detokenize", kTiny, "--ids", list, "--json"}).json()["text"], text);
  // BOS stands in front unless told otherwise; --file reads the same text.
  EXPECT_EQ(Nibble({"tokenize", kTiny, "--text", text}).out, "0," + ids.out);
  const std::string file = testing::TempDir() + "/nibble_e2e_text";
  Spill(file, text);
  EXPECT_EQ(Nibble({"tokenize", kTiny, "--file", file, "--no-special"}).out, ids.out);
  fs::remove(file);
  EXPECT_EQ(Nibble({"detokenize", kTiny, "--ids", "0," + list, "--no-special"}).out, text + "\n");
  EXPECT_EQ(Nibble({"tokenize", kTiny, "--text", text, "--json"}).json()["ids"].dump(),
            "[0," + list + "]");
  EXPECT_EQ(Nibble({"tokenize", kTiny}).code, 2);
  EXPECT_EQ(Nibble({"tokenize", kTiny, "--text", "a", "--file", kEvaluationText}).code, 2);
  EXPECT_EQ(Nibble({"detokenize", kTiny, "--ids", "4096"}).code, 2);
}

TEST(GenerateVerb, TextAndIdsGiveTheSameContinuation) {
  const Arguments generate = {"generate", kTiny, "--max-tokens", "12"};
  const Result r = Nibble(generate + Arguments{"--prompt", "The river", "--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json text = r.json();
  EXPECT_EQ(text["completion_tokens"], 12);
  EXPECT_EQ(text["finish_reason"], "length");
  EXPECT_EQ(text["token_ids"].size(), 12u);
  std::string ids = Nibble({"tokenize", kTiny, "--text", "The river"}).out;
  ids.pop_back();
  const Json same = Nibble(generate + Arguments{"--prompt-ids", ids, "--json"}).json();
  EXPECT_EQ(same["token_ids"], text["token_ids"]);
  EXPECT_EQ(same["prompt_tokens"], text["prompt_tokens"]);
  // Without --json the text alone is on standard output.
  const Result plain = Nibble(generate + Arguments{"--prompt", "The river"});
  EXPECT_EQ(plain.out, text["text"].get<std::string>() + "\n");
  EXPECT_THAT(plain.err, HasSubstr("12 tokens written"));
}

TEST(GenerateVerb, SamplingIsRepeatable) {
  const auto sample = [](const std::string& seed) {
    return Nibble({"generate", kTiny, "--prompt", "", "--max-tokens", "12", "--temperature", "1",
                   "--seed", seed, "--json"})
        .json()["token_ids"];
  };
  EXPECT_EQ(sample("1"), sample("1"));
  EXPECT_NE(sample("1"), sample("2"));
}

TEST(GenerateVerb, PromptsOfUnusualSize) {
  const Result empty = Nibble({"generate", kTiny, "--prompt", "", "--max-tokens", "4", "--json"});
  ASSERT_EQ(empty.code, 0) << empty.err;
  EXPECT_EQ(empty.json()["prompt_tokens"], 1);  // BOS
  std::string ids = "0";
  for (int i = 1; i < 1024; ++i) ids += "," + std::to_string(i);
  const Result full =
      Nibble({"generate", kTiny, "--prompt-ids", ids, "--max-tokens", "4", "--json"});
  ASSERT_EQ(full.code, 0) << full.err;
  EXPECT_EQ(full.json()["completion_tokens"], 1) << "the context is full";
  EXPECT_THAT(Nibble({"generate", kTiny, "--prompt-ids", ids, "--max-tokens", "4"}).err,
              HasSubstr("stopped: the context is full"));
  const Result beyond = Nibble({"generate", kTiny, "--prompt-ids", ids + ",7"});
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.err, AllOf(HasSubstr("1025 tokens"), HasSubstr("context is 1024")));
}

TEST(GenerateVerb, ExactlyOnePrompt) {
  for (const Arguments& prompt : {Arguments{}, Arguments{"--prompt", "a", "--prompt-ids", "1"}}) {
    const Result r = Nibble(Arguments{"generate", kTiny} + prompt);
    EXPECT_EQ(r.code, 2);
    EXPECT_THAT(r.err, HasSubstr("pass one of --prompt TEXT, --prompt-ids"));
  }
  EXPECT_EQ(Nibble({"generate", kTiny, "--prompt-ids", "4096"}).code, 2);
  EXPECT_EQ(Nibble({"generate", kTiny, "--prompt-ids=-1"}).code, 2);
}

std::string Trim(const std::string& text) {
  const size_t begin = text.find_first_not_of(" \n\t\r");
  if (begin == std::string::npos) return "";
  return text.substr(begin, text.find_last_not_of(" \n\t\r") - begin + 1);
}

TEST(GenerateVerb, InterruptedItIsAFailure) {
  Process process({NIBBLE_PROGRAM, "generate", kTiny, "--prompt", "The", "--max-tokens", "1000"},
                  "", {});
  ASSERT_TRUE(WaitUntil([&] { return !process.Output().empty(); }));
  process.Signal(SIGINT);
  const Result stopped = process.Wait();
  EXPECT_EQ(stopped.code, 1);
  EXPECT_THAT(stopped.err, HasSubstr("nibble: interrupted"));
  const Result whole = Nibble({"generate", kTiny, "--prompt", "The", "--max-tokens", "1000"});
  EXPECT_LT(stopped.out.size(), whole.out.size());
}

// The sample's template writes <|role|>\ncontent\n for each message, then <|assistant|>\n.
TEST(ChatVerb, ThroughAPipeIsGenerateOnTheRenderedConversation) {
  const Result chat =
      Nibble({"chat", kTiny, "--temperature", "0", "--max-tokens", "8", "--json"}, "hello\nmore\n");
  ASSERT_EQ(chat.code, 0) << chat.err;
  std::istringstream lines(chat.out);
  std::string first, second, rest;
  std::getline(lines, first);
  std::getline(lines, second);
  EXPECT_FALSE(std::getline(lines, rest)) << rest;
  const Json a = ParseJson(first, "turn 1"), b = ParseJson(second, "turn 2");
  const auto generate = [](const std::string& prompt) {
    return Nibble({"generate", kTiny, "--max-tokens", "8", "--json", "--prompt", prompt})
        .json()["token_ids"];
  };
  const std::string turn1 = "<|user|>\nhello\n<|assistant|>\n";
  EXPECT_EQ(a["token_ids"], generate(turn1));
  const std::string turn2 = turn1 + Trim(a["text"]) + "\n<|user|>\nmore\n<|assistant|>\n";
  EXPECT_EQ(b["token_ids"], generate(turn2));
  // Tokens that the first turn cached, all but the last one written, are not computed again.
  const size_t all = Nibble({"tokenize", kTiny, "--text", turn2, "--json"}).json()["ids"].size();
  const size_t cached = a["prompt_tokens"].get<size_t>() + a["token_ids"].size() - 1;
  EXPECT_EQ(b["prompt_tokens"], all - cached);
  // Without --json the texts are the same.
  EXPECT_EQ(Nibble({"chat", kTiny, "--temperature", "0", "--max-tokens", "8"}, "hello\nmore\n").out,
            a["text"].get<std::string>() + "\n" + b["text"].get<std::string>() + "\n");
}

TEST(EvalVerb, PerplexityFieldsFitTogether) {
  const Arguments eval = {"eval",      "ppl", kTiny,       "--text", kEvaluationText,
                          "--windows", "2",   "--context", "256"};
  const Result r = Nibble(eval + Arguments{"--json"});
  ASSERT_EQ(r.code, 0) << r.err;
  const Json json = r.json();
  EXPECT_EQ(json["tokens"], 2 * 255);
  EXPECT_EQ(json["windows"], 2);
  EXPECT_EQ(json["context"], 256);
  EXPECT_DOUBLE_EQ(json["perplexity"], std::exp(json["nll"].get<double>()));
  // Text of the model itself: far below the 4096 of a model that knows nothing.
  EXPECT_LT(json["perplexity"], 100);
  EXPECT_THAT(Nibble(eval).out,
              StartsWith(fmt::format("perplexity  {:.4f}\n", json["perplexity"].get<double>())));
  EXPECT_GT(json["tokens_per_second"], 0);
  const Arguments window = {"--text", kEvaluationText, "--context", "1024", "--windows", "1"};
  EXPECT_EQ(Nibble(Arguments{"eval", "ppl", kTiny} + window).code, 0);
  const std::string other = NIBBLE_SOURCE_DIR "/tests/data/architectures/llama2";
  const Result apart = Nibble(Arguments{"eval", "kl", kTiny, "--reference", other} + window);
  EXPECT_EQ(apart.code, 2);
  EXPECT_THAT(apart.err, HasSubstr("vocabularies of 4096 and"));
  for (const char* context : {"1", "1025"}) {
    EXPECT_EQ(Nibble({"eval", "ppl", kTiny, "--text", kEvaluationText, "--context", context}).code,
              2);
  }
}

TEST(EvalVerb, InstructionSetIsChecked) {
  const Result r = Nibble({"inspect", kTiny}, "", {"NIBBLE_ISA=bogus"});
  EXPECT_EQ(r.code, 2);
  EXPECT_THAT(r.err, AllOf(HasSubstr("NIBBLE_ISA=bogus"), HasSubstr("avx2")));
}

// A build without CUDA shows the first part of the page.
TEST(CommandLine, TheDocumentedKernelsAreTheTables) {
  const Result result = Nibble({"inspect", "--kernels"});
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string page = Slurp(NIBBLE_SOURCE_DIR "/docs/kernels.md"), fence = "```\n";
  const size_t begin = page.find(fence) + fence.size(), end = page.find(fence, begin);
  const std::string shown = page.substr(begin, end - begin);
  EXPECT_EQ(result.out, shown.substr(0, result.out.size()));
  EXPECT_THAT(result.out, HasSubstr("cpu, avx2"));
  const bool all = result.out.find("cuda") != std::string::npos;
  EXPECT_EQ(result.out.size() == shown.size(), all);
}

TEST(InspectVerb, ShowsWhatLoadingMakesOfAFloatModel) {
  const Result r = Nibble({"inspect", kTiny, "--kernels"});
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_THAT(r.out, ContainsRegex("in the file +12.9 MB: 12.9 MB BF16\n"));
  EXPECT_THAT(r.out, ContainsRegex("as it runs +rounded to 8 bits"));
  EXPECT_THAT(r.out, ContainsRegex("layers\\.\\*\\.q +256 x 256 +BF16 +8 +8 "));
  EXPECT_THAT(r.out, ContainsRegex("layers\\.\\*\\.q +1-[0-9]+ [a-z0-9_]+8s8"));
  const Json four = Nibble({"inspect", kTiny, "--load-bits", "4", "--json"}).json();
  EXPECT_EQ(four["plan"]["linears"]["layers.0.q"]["weights"]["bits"], 4);
  EXPECT_EQ(four["file_bytes"]["BF16"], 12900864);
  const Json floats = Nibble({"inspect", kTiny, "--load-bits", "32", "--json"}).json();
  EXPECT_FALSE(floats.contains("plan"));
  EXPECT_EQ(floats["quantized_bytes"], 0);
  EXPECT_LT(four["quantized_bytes"], floats["other_bytes"]);
}

TEST(DoctorVerb, SaysWhatIsUsedAndWhatToChange) {
  const Result well = Nibble({"doctor"}, "", {"OPENBLAS_CORETYPE=Haswell"});
  EXPECT_EQ(well.code, 0) << well.err;
  for (const char* name : {"processor", "kernels", "threads", "memory", "OpenBLAS", "GPU", "-> "}) {
    EXPECT_THAT(well.out, HasSubstr(name));
  }
  EXPECT_THAT(well.out, Not(HasSubstr("-> OpenBLAS")));
  if (!MachineHas(Isa::kAvx512)) GTEST_SKIP() << "needs avx512";
  const Arguments badly = {"NIBBLE_ISA=avx2", "OPENBLAS_CORETYPE=Prescott"};
  const std::string advice = Nibble({"doctor", "--json"}, "", badly).json()["advice"].dump();
  EXPECT_THAT(advice, HasSubstr("NIBBLE_ISA is set"));
  EXPECT_THAT(advice, HasSubstr("OPENBLAS_CORETYPE=SkylakeX"));
}

// Every bench gives rows with these fields; figures are not looked at.
TEST(BenchVerb, RowsHaveTheirFields) {
  const Arguments few = {kTiny, "--tokens", "20", "--repeats", "1", "--json"};
  const auto rows = [](const Arguments& arguments) {
    const Result r = Nibble(Arguments{"bench"} + arguments);
    EXPECT_EQ(r.code, 0) << r.err;
    return r.code == 0 ? r.json() : Json::array();
  };
  for (const Arguments& verb : {Arguments{"prefill"}, Arguments{"decode", "--batch", "3"}}) {
    const Json one = rows(verb + few);
    ASSERT_EQ(one.size(), 1u);
    EXPECT_EQ(one[0]["name"], verb[0]);
    EXPECT_GT(one[0]["tokens_per_second"], 0);
  }
  for (const char* verb : {"kernels", "attention"}) {
    const Json several = rows(Arguments{verb} + few);
    EXPECT_GE(several.size(), 12u) << verb;
    for (const Json& row : several) {
      EXPECT_TRUE(row["name"].is_string() && row["shape"].is_string()) << row;
      EXPECT_GE(row["median_us"], row["min_us"]) << row;
      EXPECT_LE(row["median_us"], row["max_us"]) << row;
    }
  }
  EXPECT_THAT(rows(Arguments{"attention"} + few)[1]["shape"], HasSubstr("KV16"));
  const Json batch = rows(Arguments{"attention", "--batch", "3", "--context", "70"} + few);
  ASSERT_EQ(batch.size(), 4u);
  EXPECT_THAT(batch[2]["shape"], HasSubstr("3 x 1 tokens of 70"));
  EXPECT_EQ(rows({"peak", "--json"}).back()["name"], "memory read");
  if (!std::filesystem::exists("/dev/nvidiactl")) {
    const Result gpu = Nibble({"bench", "peak", "--device", "cuda:0"});
    EXPECT_NE(gpu.code, 0);
    EXPECT_THAT(gpu.err, StartsWith("nibble: "));
  }
  EXPECT_EQ(Nibble({"bench", "prefill"}).code, 2);
  const Result beyond = Nibble({"bench", "prefill", kTiny, "--tokens", "1025"});
  EXPECT_EQ(beyond.code, 2);
  EXPECT_THAT(beyond.err, HasSubstr("the model's context is 1024"));
  EXPECT_EQ(Nibble({"bench", "prefill", "--shape", "llama9"}).code, 2);
}

class BadInput : public EndToEnd {
 protected:
  // Expects exit code 1, one line on standard error with these words, and nothing written.
  void Expect(const Arguments& arguments, const std::vector<std::string>& words) const {
    const Result r = Nibble(arguments);
    EXPECT_EQ(r.code, 1) << r.err;
    EXPECT_EQ(r.out, "");
    EXPECT_THAT(r.err, StartsWith("nibble: "));
    EXPECT_EQ(r.err.find('\n'), r.err.size() - 1) << r.err;
    for (const std::string& word : words) EXPECT_THAT(r.err, HasSubstr(word));
    EXPECT_FALSE(fs::exists(Path("out"))) << r.err;
    EXPECT_FALSE(fs::exists(Path("out.partial"))) << r.err;
  }
  Arguments QuantizeArguments(const std::string& rotation = "hadamard") const {
    return {"quantize", small_, "-o", Path("out"), "--rounding", "rtn", "--rotation", rotation};
  }
  std::string weights() const { return small_ + "/model.safetensors"; }
};

TEST_F(BadInput, TruncatedWeights) {
  fs::resize_file(weights(), fs::file_size(weights()) - 100);
  Expect(QuantizeArguments(), {"model.safetensors", "truncated"});
  Expect({"generate", small_, "--prompt", "a"}, {"model.safetensors", "truncated"});
}

TEST_F(BadInput, NanIsNamedByItsTensor) {
  const std::string tensor = "model.layers.0.mlp.up_proj.weight";
  RawTensors raw = RawTensors::Read(weights());
  const size_t at = raw.header[tensor]["data_offsets"][0].get<size_t>() + 2 * 1000;
  raw.data.replace(at, 2, "\xC0\x7F");  // bf16 NaN
  raw.Write(weights());
  Expect(QuantizeArguments(), {tensor, "1 of 98304 values"});
  Expect(QuantizeArguments("none"), {tensor, "1 of 98304 values"});
}

TEST_F(BadInput, UnknownElementType) {
  RawTensors raw = RawTensors::Read(weights());
  raw.header["model.norm.weight"]["dtype"] = "F8_E4M3";
  raw.Write(weights());
  Expect(QuantizeArguments(), {"model.norm.weight", "F8_E4M3"});
}

TEST_F(BadInput, MissingFiles) {
  fs::remove(small_ + "/tokenizer.json");
  Expect({"generate", small_, "--prompt", "a"}, {"tokenizer.json"});
  Expect({"quantize", small_, "-o", Path("out"), "--calib", kEvaluationText}, {"tokenizer.json"});
  Expect({"quantize", small_, "-o", Path("out"), "--calib", Path("absent")}, {Path("absent")});
  Expect({"eval", "ppl", kTiny, "--text", Path("absent")}, {Path("absent")});
  fs::remove(small_ + "/config.json");
  Expect(QuantizeArguments(), {"config.json"});
  Expect({"inspect", Path("absent")}, {Path("absent"), "no such model directory"});
  fs::create_directory(Path("empty"));
  Expect({"inspect", Path("empty")}, {Path("empty"), "neither config.json nor a GGUF file"});
  Expect({"chat", "llama3.2:1b"}, {"llama3.2:1b", "Ollama's names", "OWNER/NAME"});
  Expect({"chat", "https://huggingface.co/a/b/tree/main"}, {"`hf download a/b`"});
}

TEST_F(BadInput, UnwritableOutput) {
  Spill(Path("file"), "");
  Expect({"quantize", small_, "-o", Path("file/out"), "--rounding", "rtn"}, {Path("file/out")});
  EXPECT_EQ(Slurp(Path("file")), "");
}

TEST_F(BadInput, IndexThatPointsOutside) {
  fs::rename(weights(), Path("model.safetensors"));
  const Json index = {{"weight_map", {{"model.norm.weight", "../model.safetensors"}}}};
  Spill(small_ + "/model.safetensors.index.json", index.dump());
  Expect(QuantizeArguments(), {"../model.safetensors", "not a plain file name"});
}

}  // namespace
}  // namespace nibble
