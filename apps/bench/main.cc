// SPDX-License-Identifier: Apache-2.0
// The program nibble-bench: the verbs that measure, as `nibble bench` forwards to them.
#include <memory>

#include "apps/bench/bench.h"
#include "apps/bench/serve_formats.h"
#include "apps/cli/program.h"

namespace nibble::cli {

#ifndef NIBBLE_HAS_CUDA
void RunPaper(const BenchArguments&, const Common&) {
  FailUsage("bench paper needs a program that was built with CUDA");
}
#endif

namespace {

void AddRecipe(CLI::App& verb, BenchArguments& a) {
  verb.add_option("--recipe", a.recipe,
                  "--shape: whose formats and transforms (default: " + std::string(a.usual.name) +
                      "); its fields below change it");
  AddFields(verb, a.changes);
}

CLI::Option* AddShape(CLI::App& verb, BenchArguments& a) {
  CLI::Option* shape = verb.add_option(
      "--shape", a.shape, "Random weights of a known shape, as llama2-7b; another name lists them");
  verb.add_option("--layers", a.layers, "--shape: layers; 0 = all (llama2-70b: 1)")
      ->check(CLI::Range(0, 1000));
  AddRecipe(verb, a);
  return shape;
}

void AddModel(CLI::App& verb, BenchArguments& a) {
  CLI::Option* model = cli::AddModel(verb, a.model);
  AddShape(verb, a)->excludes(model);
}

void AddRepeats(CLI::App& verb, BenchArguments& a, const std::string& what) {
  verb.add_option("--repeats", a.repeats, what)->check(CLI::Range(1, 1000))->capture_default_str();
}

void AddCounts(CLI::App& verb, BenchArguments& a, const std::string& tokens) {
  verb.add_option("--tokens", a.tokens, tokens)
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddRepeats(verb, a, "Timed runs; the median counts");
}

void AddBatch(CLI::App& verb, BenchArguments& a, const std::string& sequences) {
  verb.add_option("--batch", a.batch, sequences)->check(CLI::Range(1, 1024))->capture_default_str();
}

// Adds verbs whose work is a function of their arguments.
class Verbs {
 public:
  using Work = void(const BenchArguments& arguments, const Common& common);
  using Added = std::pair<CLI::App&, BenchArguments&>;

  Verbs(CLI::App& app, Common& common, Run& run) : app_(app), common_(common), run_(run) {}

  Added Add(const std::string& name, const std::string& description, const std::string& example,
            Work* work) const {
    const auto a = std::make_shared<BenchArguments>();
    CLI::App* verb = AddVerb(app_, common_, name, description, example);
    verb->callback([a, &common = common_, &run = run_, work] {
      run = [a, &common, work] { work(*a, common); };
    });
    return {*verb, *a};
  }

 private:
  CLI::App& app_;
  Common& common_;
  Run& run_;
};

void AddKernelVerbs(const Verbs& verbs) {
  verbs.Add("doctor", "What this machine offers, what of it is used, and what to change",
            "nibble doctor", RunDoctor);
  verbs.Add("peak", "What this CPU or GPU multiplies and reads at most", "nibble bench peak",
            RunPeak);
  const auto [kernels, k] =
      verbs.Add("kernels", "Every op of one layer, and its share of the layer's time",
                "nibble bench kernels --shape llama2-7b --tokens 512", RunKernels);
  k.shape = "llama2-7b";
  AddModel(kernels, k);
  AddCounts(kernels, k, "Tokens of a batch");
  const auto [attention, t] =
      verbs.Add("attention", "Attention of one layer over caches of --kv-bits and of 16 bits",
                "nibble bench attention --shape llama3-8b --kv-bits 4", RunAttention);
  t.shape = "llama2-7b";
  AddModel(attention, t);
  AddCounts(attention, t, "Tokens of a prompt's last chunk");
  attention.add_option("--context", t.context, "Tokens of a sequence (default: 512, 2048, 4096)")
      ->check(CLI::Range(1, 1 << 20));
  AddBatch(attention, t, "Sequences that attend at once");
  const auto [paper, r] = verbs.Add(
      "paper", "The QuaRot paper's speed tables and Atom's products on a GPU, beside cuBLASLt",
      "nibble bench paper --device cuda:0", RunPaper);
  paper.add_option("--shape", r.shape,
                   "Products and layers of this shape alone; else of llama2-7b and llama2-70b");
  paper.add_flag("--full", r.full,
                 "Every batch and length of the paper's Tables 14 to 17, and llama2-13b, too");
  r.usual = kQuarotRecipe;
  r.usual.activations.bits = 8;
  AddRecipe(paper, r);
  AddRepeats(paper, r, "Turns; the median counts");
}

void AddServeVerb(const Verbs& verbs) {
  const auto [serve, l] =
      verbs.Add("serve",
                "A mixed load on the scheduler of `nibble serve`, beside its parts alone, or with "
                "--memory Atom's serving measurements: formats side by side in the same memory",
                "nibble bench serve --shape llama2-7b --device cuda:0 --batch 256\n"
                "  nibble bench serve --shape llama2-7b --device cuda:0 --memory 24GB",
                RunServeBench);
  AddModel(serve, l);
  serve.add_option("--tokens", l.tokens, "Tokens of prompts in a step, beside answers")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  AddRepeats(serve, l, "Requests of each stream");
  const auto longest = [&](const char* name, int64_t& tokens, int64_t least, const char* help) {
    serve.add_option(name, tokens, help)
        ->check(CLI::Range(least, int64_t{1} << 20))
        ->capture_default_str();
  };
  longest("--longest-prompt", l.longest_prompt, 32, "Prompts have 32 to so many tokens");
  longest("--longest-answer", l.longest_answer, 16, "Answers have 16 to so many tokens");
  AddBatch(serve, l, "Streams: requests that are under way");
  serve.add_option("--pages", l.pages, "Pages, in percent of what all streams could come to need")
      ->check(CLI::Range(1, 100))
      ->capture_default_str();
  CLI::Option* memory =
      serve
          .add_option("--memory", l.memory,
                      "Memory that weights and cache of each format share, as 24GB; pages are what "
                      "the weights leave")
          ->transform(CLI::AsSizeValue(true) & NumberBetween(1, 1e15))
          ->excludes("model", "--recipe", "--batch", "--pages");
  serve
      .add_option("--formats", l.formats,
                  fmt::format("Recipes, or of {}; NAME:FIELD=VALUE:.. changes one, options below "
                              "change all (default: all of these)",
                              fmt::join(DefaultFormats(), ",")))
      ->delimiter(',')
      ->needs(memory);
  serve.add_option("--streams", l.streams, "Streams of the rows")
      ->delimiter(',')
      ->check(CLI::Range(1, 1024))
      ->needs(memory)
      ->capture_default_str();
  serve
      .add_option(
          "--seconds", l.seconds,
          "A row ends after so many, if its requests last longer; until all streams write it takes "
          "as many more")
      ->check(NumberBetween(0.001, 1e6))
      ->needs(memory)
      ->capture_default_str();
}

void AddModelVerbs(const Verbs& verbs) {
  const auto [prefill, p] = verbs.Add(
      "prefill", "A prompt", "nibble bench prefill llama-w4a4kv4 --tokens 512", RunPrefill);
  AddModel(prefill, p);
  AddCounts(prefill, p, "Tokens of the prompt");
  const auto [decode, d] =
      verbs.Add("decode", "Tokens one by one",
                "nibble bench decode llama-w4a4kv4 --context 1024 --batch 8", RunDecode);
  d.tokens = 32;
  AddModel(decode, d);
  AddCounts(decode, d, "Tokens to write in a run");
  decode.add_option("--context", d.context, "Tokens in the cache before each run")
      ->check(CLI::Range(0, 1 << 20));
  AddBatch(decode, d, "Sequences written at once");
  AddServeVerb(verbs);
  const auto [startup, s] =
      verbs.Add("startup", "From the program's start to the first token, and the memory it takes",
                "nibble bench startup /tmp/7b --shape llama2-7b", RunStartup);
  startup.add_option("model", s.model, "Checkpoint; with --shape written first if absent")
      ->required();
  AddShape(startup, s);
  AddRepeats(startup, s, "Timed runs; the median counts");
}

void AddOfflineVerbs(const Verbs& verbs) {
  const auto [tokenizer, z] =
      verbs.Add("tokenizer", "A text to ids and back, on one thread",
                "nibble bench tokenizer llama --text test.raw", RunTokenizerBench);
  tokenizer.add_option("model", z.model, "Model whose tokenizer runs")->required();
  tokenizer.add_option("--text", z.text, "Text file")->required();
  AddRepeats(tokenizer, z, "Timed runs; the median counts");
  const auto [quantizing, q] =
      verbs.Add("quantize", "Quantizing one layer, by stage",
                "nibble bench quantize --shape llama2-7b --device cuda:0", RunQuantizing);
  q.recipe = "quarot", q.context = 2048;
  AddShape(quantizing, q)->required();
  quantizing.add_option("--calib-windows", q.windows, "Windows of calibration")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  quantizing.add_option("--context", q.context, "Tokens of a window")
      ->check(CLI::Range(1, 8192))
      ->capture_default_str();
}

}  // namespace
}  // namespace nibble::cli

int main(int argc, char** argv) {
  using namespace nibble::cli;
  return RunProgram(argc, argv,
                    {.name = "nibble bench",
                     .description = "Measure speed and quality",
                     .footer = "Example:\n"
                               "  nibble bench prefill MODEL --tokens 512\n"
                               "  nibble bench decode MODEL --context 1024 --batch 8\n"
                               "  nibble bench quality MODEL --text test.txt\n"
                               "More: nibble help bench VERB.",
                     .add = [](CLI::App& app, Common& common, Run& run) {
                       const Verbs verbs(app, common, run);
                       AddKernelVerbs(verbs);
                       AddModelVerbs(verbs);
                       AddOfflineVerbs(verbs);
                       AddQuality(app, common, run);
                     }});
}
