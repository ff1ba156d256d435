// SPDX-License-Identifier: Apache-2.0
// Tests the way from a model to a checkpoint and its perplexity: formats, repeatability,
// interruption.
#include <cmath>

#include "base/cpu_features.h"
#include "base/file.h"
#include "base/rng.h"
#include "tests/e2e_testing.h"
#include "tests/shared_data.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// GPTQ on little text; every run of it takes part in comparisons of bytes.
const Arguments kGptq = {"--calib-windows", "4", "--context", "128"};

class QuantizeVerb : public EndToEnd {
 protected:
  Arguments Command(const std::string& out, const Arguments& text = kGptq) const {
    return Arguments{"quantize", small_, "-o", Path(out), "--recipe", "quarot"} + text;
  }
  Process Start(const std::string& out, const Arguments& text = kGptq) const {
    return Process(Arguments{NIBBLE_PROGRAM} + Command(out, text), "", {});
  }
  bool Exists(const std::string& name) const { return fs::exists(Path(name)); }
};

TEST_F(QuantizeVerb, TheWholeWayOnTheSampleModel) {
  const std::string out = Path("out");
  const Result quantize =
      Nibble({"quantize", kTiny, "-o", out, "--recipe", "quarot", "--rounding", "rtn", "--json"});
  ASSERT_EQ(quantize.code, 0) << quantize.err;
  const Json report = quantize.json();
  EXPECT_EQ(report["layers"].size(), 6u);
  // Codes of 4 bits and one fp32 scale per row of 256 or 688.
  EXPECT_GT(report["bits_per_weight"], 4 + 32.0 / 688);
  EXPECT_LT(report["bits_per_weight"], 4 + 32.0 / 256);
  EXPECT_EQ(report["output"], out);
  double bytes = 0;
  for (const auto& [name, content] : Files("out")) bytes += static_cast<double>(content.size());
  EXPECT_EQ(report["bytes"], bytes);
  EXPECT_GT(report["invariance"], 0) << "fp32 is never exact";

  // The integers against their decoded values in fp32: both compute the same function but for fp32
  // rounding, which now and then moves a 4-bit code, which moves later ones. So the two are not
  // equal, but closer to each other than to the unquantized model. AMX also rounds queries and
  // probabilities, to bf16.
  const Json twin = Eval("kl", out, {"--reference", out, "--decoded"}, {"NIBBLE_ISA=avx2"});
  const Json source = Eval("kl", out, {"--reference", kTiny});
  const double kl = twin["kl_mean"], tokens = twin["tokens"];
  EXPECT_GT(source["kl_p99"], source["kl_mean"].get<double>());
  EXPECT_GT(source["loss_difference_stderr"], 0);
  EXPECT_NEAR(
      source["loss_difference"],
      std::log(source["perplexity"].get<double>() / source["reference_perplexity"].get<double>()),
      1e-6);
  EXPECT_NE(Eval("ppl", out)["perplexity"], Eval("ppl", out, {"--decoded"})["perplexity"]);
  EXPECT_LT(kl, source["kl_mean"]);
  // A text's log-likelihood ratio of two close models has mean -KL and variance 2 KL per token.
  const double change = std::log(twin["perplexity"].get<double>()) -
                        std::log(twin["reference_perplexity"].get<double>());
  EXPECT_LT(std::fabs(change), kl + 4 * std::sqrt(2 * kl / tokens));
  // 4 bits cost this model about a fifth of its perplexity.
  EXPECT_LT(source["perplexity"], 1.5 * source["reference_perplexity"].get<double>());
  EXPECT_GT(source["top1_agreement"], 0.5);

  const Result inspect = Nibble({"inspect", out, "--kernels", "--verify"});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  for (const char* text :
       {"files as written", "layers.*.down", "kernels on", "tokens and kernel"}) {
    EXPECT_THAT(inspect.out, HasSubstr(text));
  }
  const Json shown = Nibble({"inspect", out, "--json"}).json();
  EXPECT_EQ(shown["plan"]["provenance"]["recipe"], "quarot");
  // 64 codes of 4 bits for K and V of 2 heads in 6 layers, and their scales.
  EXPECT_GE(shown["cache_bytes_per_token"], 6 * 2 * 2 * 64 / 2);
  EXPECT_LT(shown["cache_bytes_per_token"], 2 * 6 * 2 * 2 * 64 / 2);
  const double weights = 6.0 * (256 * (256 + 2 * 128 + 256) + 3 * 256 * 688);
  EXPECT_DOUBLE_EQ(shown["quantized_bytes"], shown["bits_per_weight"].get<double>() * weights / 8);
  EXPECT_GE(shown["other_bytes"], 4096 * 256 * 2) << "the embedding";
  const Result text = Nibble({"generate", out, "--prompt", "The", "--max-tokens", "8", "--json"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.json()["completion_tokens"], 8);
  const Result chat =
      Nibble({"chat", out, "--temperature", "0", "--max-tokens", "8"}, "hello\nmore\n");
  EXPECT_EQ(chat.code, 0) << chat.err;
  EXPECT_EQ(Nibble({"quantize", out, "-o", Path("twice")}).code, 2) << "quantized already";

  // One bit changed on the way is found, in any file.
  for (const auto& [name, content] : Files("out")) {
    std::string damaged = content;
    char& byte = damaged[damaged.size() / 2];
    byte = static_cast<char>(byte ^ 4);
    Spill(out + "/" + name, damaged);
    const Result r = Nibble({"inspect", out, "--verify", "--json"});
    EXPECT_EQ(r.code, 1);
    EXPECT_THAT(r.err, HasSubstr(name));
    Spill(out + "/" + name, content);
  }
  EXPECT_EQ(Nibble({"inspect", out, "--verify"}).code, 0);
}

TEST_F(QuantizeVerb, RepackChangesWhereWeightsLieAndNothingElse) {
  const Arguments nearest = {"--rounding", "rtn", "--w-clip", "1"};
  Quantize("out", nearest);
  Quantize("other", nearest + Arguments{"--seed", "1"});
  const std::string out = Path("out"), plane = out + "/cpu-tiles.safetensors";
  const auto measure = [&] {
    Json numbers = Eval("ppl", out);
    for (const char* time : {"seconds", "tokens_per_second"}) numbers.erase(time);
    return numbers;
  };
  const Json before = measure();
  EXPECT_THAT(Nibble({"inspect", out}).out, HasSubstr("tile plane         none"));
  const Result repack = Nibble({"repack", out, "--json"});
  ASSERT_EQ(repack.code, 0) << repack.err;
  EXPECT_EQ(repack.json()["bytes"], fs::file_size(plane));
  EXPECT_GT(Nibble({"inspect", out, "--json"}).json()["tile_bytes"], fs::file_size(plane) / 2);
  EXPECT_EQ(measure(), before);
  const Result inspect = Nibble({"inspect", out, "--verify"});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_THAT(inspect.out, HasSubstr("used in place"));

  // A tile plane of other weights is named and not used.
  EXPECT_EQ(Nibble({"repack", Path("other")}).code, 0);
  fs::copy_file(Path("other/cpu-tiles.safetensors"), plane, fs::copy_options::overwrite_existing);
  EXPECT_EQ(measure(), before);
  const Result stale = Nibble({"generate", out, "--prompt-ids", "1", "--max-tokens", "1"});
  EXPECT_EQ(stale.code, 0) << stale.err;
  EXPECT_THAT(stale.err, AllOf(HasSubstr(plane), HasSubstr("other weights"), HasSubstr("repack")));
  EXPECT_THAT(Nibble({"inspect", out}).out, HasSubstr("not used"));
  EXPECT_EQ(Nibble({"inspect", out, "--verify"}).code, 1);
  EXPECT_EQ(Nibble({"repack", out}).code, 0);
  EXPECT_EQ(Nibble({"inspect", out, "--verify"}).code, 0);
  EXPECT_EQ(Nibble({"repack", small_}).code, 2) << "not quantized";
}

TEST_F(QuantizeVerb, DryRunWritesNothing) {
  const Result r = Nibble(Command("out") + Arguments{"--dry-run", "--json"});
  EXPECT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(r.json()["plan"]["linears"].size(), 3u * 7 + 2);
  EXPECT_GE(r.json()["disk_bytes"], r.json()["bytes"].get<double>());
  EXPECT_GT(r.json()["peak_memory_bytes"], 4096 * 256 * 2) << "the embedding";
  EXPECT_GT(r.json()["seconds"], 0);
  EXPECT_FALSE(Exists("out") || Exists("out.partial"));
}

TEST_F(QuantizeVerb, MemoryIsWhatARunMayUse) {
  const auto with = [&](const std::string& memory) {
    return Nibble(Command("out") + Arguments{"--memory", memory});
  };
  const Result little = with("1MiB");
  EXPECT_EQ(little.code, 1);
  EXPECT_THAT(little.err, AllOf(HasSubstr("1.0 MB are given by --memory"),
                                HasSubstr("use --rounding rtn, or a machine with more")));
  // The options that a message names are there.
  const Arguments learning = {"quantize", small_,   "-o",         Path("out"),
                              "--recipe", "nibble", "--rotation", "hadamard"};
  const Result learned = Nibble(learning + Arguments{"--memory", "1MiB"});
  EXPECT_THAT(learned.err, HasSubstr("use --fixed-rotation, --rounding rtn, or a machine"));
  const Arguments named = {"--fixed-rotation", "--rounding", "rtn"};
  EXPECT_EQ(Nibble(learning + named + Arguments{"--dry-run"}).code, 0);
  EXPECT_FALSE(Exists("out") || Exists("out.partial"));
  EXPECT_EQ(with("much").code, 2);
  // Windows in a file change nothing: 512 tokens of 256 + 384 floats.
  const auto plan = [&](const Arguments& more) {
    return Nibble(Command("out") + Arguments{"--dry-run", "--json"} + more).json();
  };
  const Json roomy = plan({});
  const double windows = 512 * (256 + 384) * 4, all = roomy["peak_memory_bytes"];
  const std::string less = std::to_string(static_cast<int64_t>(all - windows / 2));
  const Json tight = plan({"--memory", less});
  EXPECT_FALSE(roomy["spills"]);
  EXPECT_TRUE(tight["spills"]);
  EXPECT_EQ(tight["peak_memory_bytes"], all - windows);
  EXPECT_EQ(tight["disk_bytes"], roomy["disk_bytes"].get<double>() + windows);
  EXPECT_EQ(with(less).code, 0);
  EXPECT_EQ(Nibble(Command("plenty")).code, 0);
  const auto layer = [&](const std::string& out) {
    return ReadFile(Path(out + "/layer-00002.safetensors"), 1 << 24);
  };
  EXPECT_EQ(layer("out"), layer("plenty"));
}

TEST_F(QuantizeVerb, RulesAreInThePlanAndWrongOnesUsageErrors) {
  const Arguments rules = {"--recipe",    "quik",
                           "--down-bits", "4",
                           "--rule",      "layers.1.*(?:gate|up)_proj:w-bits=3,w-asym",
                           "--rule",      "layers.1.*up:w-bits=6"};
  Quantize("out", rules + kGptq);
  const Json plan = Nibble({"inspect", Path("out"), "--json"}).json()["plan"];
  EXPECT_EQ(plan["provenance"]["rules"].size(), 4u) << "the recipe's own, too";
  EXPECT_EQ(plan["linears"]["layers.1.gate"]["weights"]["bits"], 3);
  EXPECT_EQ(plan["linears"]["layers.1.gate"]["weights"]["symmetric"], false);
  EXPECT_EQ(plan["linears"]["layers.1.up"]["weights"]["bits"], 6);
  EXPECT_EQ(plan["linears"]["layers.0.up"]["weights"]["bits"], 4);
  EXPECT_EQ(plan["linears"]["layers.1.down"]["activations"]["bits"], 4);
  const Result dry = Nibble(Arguments{"quantize", small_, "--dry-run"} + rules);
  EXPECT_THAT(dry.out, AllOf(HasSubstr("layers.0,2.up "), HasSubstr("layers.1.up "),
                             HasSubstr("6 asym + 32 at 16"), HasSubstr("layers.*.down")));
  EXPECT_THAT(Nibble({"inspect", Path("out")}).out, HasSubstr("layers.0,2.up "));
  for (const char* rule : {"q_proj", "q_proj:", "q_proj:kv-bits=4", "q_proj:w-bits=9",
                           "q_proj:a-bits=8", "fc1:w-bits=8", "(q:w-bits=8"}) {
    const Result r =
        Nibble({"quantize", small_, "--recipe", "quarot", "--dry-run", "--rule", rule});
    EXPECT_EQ(r.code, 2) << rule;
    EXPECT_THAT(r.err, HasSubstr("q")) << rule;
  }
}

// Without options `quantize` does what most users want, and says what it cost.
TEST_F(QuantizeVerb, TheDefaultSaysWhatWasLost) {
  const Arguments quantize = {"quantize", small_,           "-o", Path("out"), "--calib-windows",
                              "2",        "--loss-windows", "4"};
  const Json json = Nibble(quantize + Words("--context 96 --json")).json();
  EXPECT_EQ(json["loss"]["windows"], 4);
  EXPECT_GT(json["loss"]["kl_mean"], 0);
  const Json plan = Nibble({"inspect", Path("out"), "--json"}).json()["plan"];
  EXPECT_EQ(plan["provenance"]["recipe"], "w4a8");
  EXPECT_FALSE(
      Nibble(Arguments{"quantize", small_, "-o", Path("none"), "--json", "--rounding", "rtn"})
          .json()
          .contains("loss"));
  EXPECT_EQ(plan["linears"]["layers.1.gate"]["activations"]["bits"], 8);
  const Result again = Nibble(quantize + Words("--force --rounding rtn --a-bits 2"));
  EXPECT_THAT(again.out, AllOf(HasSubstr("on 4 windows of 512 tokens that were not calibrated on"),
                               HasSubstr("that is much    rounded inputs cost "),
                               HasSubstr("; try --a-bits 8")));
  const auto parts = [&](const std::string& options) {
    const Json loss =
        Nibble(quantize + Words("--force --json --rounding rtn " + options)).json()["loss"];
    const double all = loss["kl_mean"], inputs = loss["parts"]["kl_mean_float_inputs"],
                 cache = loss["parts"]["kl_mean_float_cache"];
    return std::pair((all - inputs) / all, (all - cache) / all);
  };
  const auto [coarse_inputs, fine_cache] = parts("--a-bits 2");
  EXPECT_GT(coarse_inputs, 0.5);
  EXPECT_LT(fine_cache, 0.1);
  const auto [fine_inputs, coarse_cache] = parts("--w-bits 8 --kv-bits 2 --no-recent");
  EXPECT_LT(fine_inputs, 0.1);
  EXPECT_GT(coarse_cache, 0.5);
}

TEST_F(QuantizeVerb, LayersThatBearItCacheFourBits) {
  const Arguments calibration = Words("--recipe rtn --kv-bits 8 --context 128");
  const Arguments leave = calibration + Words("--cache-loss 10 --calib-windows 2");
  const Json all = Quantize("all", leave)["cache"];
  EXPECT_EQ(all["narrow"], all["parts"]);
  const double max = all["kl_mean"].get<double>() / 2;
  ASSERT_GT(max, 0);
  const Result text = Nibble(Arguments{"quantize", small_, "-o", Path("some")} + calibration +
                             Words(fmt::format("--cache-loss {} --calib-windows 2", max)));
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("cache           4 bits in "));
  const Json plan = Nibble({"inspect", Path("some"), "--json"}).json()["plan"];
  EXPECT_LE(plan["provenance"]["cache_kl"], max);
  EXPECT_GT(plan["cache"]["layers"].size(), 0u);
  // The engine reads the checkpoint.
  const double exact = Eval("ppl", Path("some"), {"--decoded"})["perplexity"];
  EXPECT_NEAR(Eval("ppl", Path("some"))["perplexity"].get<double>() / exact, 1, 0.02);
}

#ifndef NIBBLE_SLOW_BUILD  // its recipes run one by one in other tests
TEST_F(QuantizeVerb, RecipesAreComparedOnTheSameWindows) {
  const Arguments compare = {"quantize", small_,      "--compare", "--loss-windows",
                             "2",        "--context", "96"};
  const Json rows = Nibble(compare + Words("--json")).json();
  ASSERT_GE(rows.size(), 5u);
  for (const Json& row : rows) {
    EXPECT_EQ(row["loss"]["reference_perplexity"], rows[0]["loss"]["reference_perplexity"]);
    EXPECT_LE(row["bytes"], rows[0]["bytes"]) << row;
    EXPECT_GE(row["loss"]["kl_mean"], rows[0]["loss"]["kl_mean"]) << row;
  }
  EXPECT_EQ(Nibble(compare + Arguments{"-o", Path("out")}).code, 2);
  EXPECT_FALSE(Exists("out"));
}
#endif

TEST_F(QuantizeVerb, SparseWeightsAreSmaller) {
  for (const auto& [sparse, expected] :
       {std::pair{"none", 4 + 16.0 / 32}, std::pair{"2:4", 3 + 16.0 / 32}}) {
    const std::string out = std::string("out-") + sparse;
    const Json report = Quantize(
        out, {"--rounding", "rtn", "--w-clip", "1", "--w-group", "32", "--sparse", sparse});
    EXPECT_EQ(report["bits_per_weight"], expected);
    // The estimate against the planes in the file.
    EXPECT_EQ(Nibble({"inspect", Path(out), "--json"}).json()["bits_per_weight"], expected);
    EXPECT_EQ(Nibble({"repack", Path(out)}).code, 0);
  }
  const Result order = Nibble({"quantize", small_, "--dry-run", "--sparse", "2:4", "--act-order"});
  EXPECT_EQ(order.code, 2);
  EXPECT_THAT(order.err, HasSubstr("--no-act-order"));
}

TEST_F(QuantizeVerb, GptqFitsItsCalibrationBetterThanRounding) {
  const Json gptq = Quantize("gptq", kGptq);
  // So much damping leaves next to nothing of the Hessian but a multiple of the identity, with
  // which GPTQ is rounding to nearest; the errors are measured on the same text.
  const Json nearest = Quantize("nearest", kGptq + Arguments{"--damp", "10"});
  ASSERT_EQ(gptq["layers"].size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const Json& errors = gptq["layers"][i]["relative_errors"];
    ASSERT_EQ(errors.size(), 7u);
    for (const auto& [role, error] : errors.items()) {
      EXPECT_GT(error, 0);
      EXPECT_LT(error, nearest["layers"][i]["relative_errors"][role]) << i << " " << role;
    }
  }
}

TEST_F(QuantizeVerb, ThreadsDoNotChangeAByte) {
  Quantize("one", kGptq + Arguments{"--threads", "1"});
  Quantize("two", kGptq + Arguments{"--threads", "2"});
  ExpectSameFiles("one", "two");
}

TEST_F(QuantizeVerb, AnExistingOutputIsReplacedOnlyByForce) {
  const Arguments nearest = {"--rounding", "rtn", "--w-clip", "1"};
  Quantize("out", nearest);
  const auto before = Files("out");
  const Arguments again = Arguments{"quantize", small_, "-o", Path("out")} + nearest;
  const Result refused = Nibble(again + Arguments{"--w-bits", "8"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, AllOf(HasSubstr(Path("out")), HasSubstr("--force")));
  EXPECT_EQ(Files("out"), before);
  EXPECT_EQ(Nibble(again + Arguments{"--w-bits", "8", "--force"}).code, 0);
  EXPECT_NE(Files("out").at("config.json"), before.at("config.json"));
  EXPECT_FALSE(Exists("out.partial"));
  // A directory that is something else is nobody's to remove.
  fs::create_directories(Path("home"));
  Spill(Path("home/thesis"), "text");
  EXPECT_EQ(Nibble(Arguments{"quantize", small_, "-o", Path("home"), "--force"} + nearest).code, 1);
  EXPECT_EQ(Slurp(Path("home/thesis")), "text");
}

TEST_F(QuantizeVerb, InterruptedItSaysHowToContinue) {
  Quantize("whole", kGptq);
  Process process = Start("out");
  ASSERT_TRUE(WaitUntil([&] { return Exists("out.partial/layer-00000.safetensors"); }));
  process.Signal(SIGINT);
  const Result stopped = process.Wait();
  EXPECT_EQ(stopped.code, 75) << stopped.err;
  EXPECT_THAT(stopped.err, HasSubstr("--resume"));
  EXPECT_FALSE(Exists("out"));

  const Result again = Nibble(Command("out"));
  EXPECT_EQ(again.code, 1);
  EXPECT_THAT(again.err, AllOf(HasSubstr("out.partial"), HasSubstr("--resume")));
  const Result other = Nibble(Command("out") + Arguments{"--resume", "--seed", "1"});
  EXPECT_EQ(other.code, 1);
  EXPECT_THAT(other.err, AllOf(HasSubstr("out.partial"), HasSubstr("seed")));
  const Json report = Quantize("out", kGptq + Arguments{"--resume"});
  EXPECT_GE(report["resumed_layers"], 1);
  ExpectSameFiles("whole", "out");
}

TEST_F(QuantizeVerb, StoppedWhileALayerIsTunedItGoesOn) {
  const Arguments tuned = Words("--recipe quipsharp --tune-blocks 2") + kGptq;
  Quantize("whole", tuned);
  Process process(Arguments{NIBBLE_PROGRAM, "quantize", small_, "-o", Path("out")} + tuned, "", {});
  ASSERT_TRUE(WaitUntil([&] { return Exists("out.partial/layer-00000.safetensors"); }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait().code, 75);
  EXPECT_GE(Quantize("out", tuned + Arguments{"--resume"})["resumed_layers"], 1);
  ExpectSameFiles("whole", "out");
}

TEST_F(QuantizeVerb, StopsBeforeItsFirstLayerToo) {
  Process process(
      Arguments{NIBBLE_PROGRAM, "quantize", small_, "-o", Path("out"), "--learned-rotation"}, "",
      {});
  ASSERT_TRUE(WaitUntil([&] { return Exists("out.partial/provenance.json"); }));
  process.Signal(SIGINT);
  const Result stopped = process.Wait();
  EXPECT_EQ(stopped.code, 75);
  EXPECT_THAT(stopped.err, HasSubstr("stopped before the first layer"));
  EXPECT_FALSE(Exists("out") || Exists("out.partial"));
}

TEST_F(QuantizeVerb, StoppedWhileScalesAreLearnedItGoesOn) {
  Json config = Json::parse(Slurp(small_ + "/config.json"));
  config["max_position_embeddings"] = 16;  // 120 sequences of so many tokens, 8 are held out
  Spill(small_ + "/config.json", config.dump());
  const Arguments fixed =
      Words("--recipe quarot --w-bits 3 --calib-windows 128 --head-bits 16 --embed-bits 16");
  const Arguments learning = fixed + Arguments{"--learned-scales"};
  Quantize("whole", learning);
  const Json plan = Nibble({"inspect", Path("whole"), "--json"}).json()["plan"];
  EXPECT_EQ(plan["provenance"]["learned-scales"], true);
  // A head of its own is learned with the scales, the embedding is not.
  Quantize("fixed", fixed);
  const auto table = [&](const std::string& out, const char* name) {
    const RawTensors rest = RawTensors::Read(Path(out + "/model-rest.safetensors"));
    const size_t begin = rest.header.at(name)["data_offsets"][0],
                 end = rest.header.at(name)["data_offsets"][1];
    return rest.data.substr(begin, end - begin);
  };
  EXPECT_NE(table("whole", "head.weight"), table("fixed", "head.weight"));
  EXPECT_EQ(table("whole", "embedding.weight"), table("fixed", "embedding.weight"));
  Process process(Arguments{NIBBLE_PROGRAM, "quantize", small_, "-o", Path("out")} + learning, "",
                  {});
  ASSERT_TRUE(WaitUntil([&] { return Exists("out.partial/learning.safetensors"); }));
  process.Signal(SIGINT);
  const Result stopped = process.Wait();
  EXPECT_EQ(stopped.code, 75);
  EXPECT_THAT(stopped.err, HasSubstr("while scales were learned"));
  Quantize("out", learning + Arguments{"--resume"});
  ExpectSameFiles("whole", "out");
}

#ifndef NIBBLE_SLOW_BUILD  // family_recipes_test.cc has mixtures under sanitizers
TEST_F(QuantizeVerb, MixturesOfExpertsTakeEveryRecipe) {
  small_ = Path("mixture");
  MakeSmallMixture(small_);
  const auto divergence = [&](const std::string& out) -> double {
    return Eval("kl", Path(out), {"--reference", small_})["kl_mean"];
  };
  const Arguments tables = {"--head-bits", "32", "--embed-bits", "32"};
  Quantize("coarse", Arguments{"--recipe", "rtn", "--w-bits", "2"} + tables);
  const double coarse = divergence("coarse");
  // Experts see half of the tokens: with 128 of them GPTQ learned noise, and an instruction set
  // more or less decided.
  for (const char* options : {"--recipe quarot --gptaq 0.25", "--recipe nibble", "--recipe atom",
                              "--recipe quik --tail 512", "--recipe smoothquant", "--recipe awq",
                              "--recipe qserve --output-alpha 0.2"}) {
    const Json report =
        Quantize("out", Words("--calib-windows 16 --context 64 --force") + Words(options) + tables);
    const Json errors = report["layers"][2]["relative_errors"];
    EXPECT_TRUE(errors.contains("experts.2.down")) << options;
    EXPECT_FALSE(errors.contains("router")) << options;
    EXPECT_LT(divergence("out"), coarse / 3) << options;
  }
  const Result inspect = Nibble({"inspect", Path("out"), "--kernels", "--verify"});
  EXPECT_EQ(inspect.code, 0) << inspect.err;
  EXPECT_THAT(inspect.out, AllOf(HasSubstr("layers.*.router"), HasSubstr("experts.*.down")));

  const Arguments text = {"--calib-windows", "64", "--context", "128"};  // a signal comes in time
  Quantize("whole", text);
  Process process = Start("stopped", text);
  ASSERT_TRUE(WaitUntil([&] { return Exists("stopped.partial/layer-00000.safetensors"); }));
  process.Signal(SIGINT);
  EXPECT_EQ(process.Wait().code, 75);
  EXPECT_GE(Quantize("stopped", text + Arguments{"--resume"})["resumed_layers"], 1);
  ExpectSameFiles("whole", "stopped");
}
#endif

TEST_F(QuantizeVerb, TheSecondOfTwoWritersIsRefused) {
  Process first = Start("out");
  ASSERT_TRUE(WaitUntil([&] { return Exists("out.partial/provenance.json"); }));
  first.Signal(SIGSTOP);  // holds its lock for as long as the second one needs
  const Result second = Nibble(Command("out") + Arguments{"--resume"});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr("out.partial"), HasSubstr("in use by another")));
  first.Signal(SIGCONT);
  const Result done = first.Wait();
  EXPECT_EQ(done.code, 0) << done.err;
  EXPECT_TRUE(Exists("out/manifest.json"));
}

TEST_F(QuantizeVerb, InstructionSetsAgree) {
  // 8 bits: a code moved by another order of fp32 sums weighs little, unlike one of 4 bits.
  Quantize("out", {"--rounding", "rtn", "--a-bits", "8", "--kv-bits", "8"});
  double reference = 0;
  for (const char* isa : {"ref", "avx2", "avx_vnni", "avx512", "amx"}) {
    const std::string setting = "NIBBLE_ISA=" + std::string(isa);
    const Result supported = Nibble({"inspect", small_}, "", {setting});
    if (supported.code == 2) continue;
    const double perplexity = Eval("ppl", Path("out"), {}, {setting})["perplexity"];
    if (reference == 0) reference = perplexity;
    EXPECT_NEAR(perplexity / reference, 1, 0.005) << isa;
  }
}

TEST_F(QuantizeVerb, WhatIsNotRoundedChangesNothing) {
  const auto divergence = [&](const char* options) -> double {
    Quantize("out", Words("--a-bits 16 --kv-bits 32 --force --w-bits ") + Words(options));
    return Eval("kl", Path("out"), {"--reference", small_})["kl_mean"];
  };
  // Logits move by about 1e-5 of their deviation through rotations in fp32; KL by its square.
  EXPECT_LT(divergence("32"), 1e-7);
  // The model's own bf16 values.
  EXPECT_LT(divergence("16 --rotation none"), 1e-7);
  // Rotated values have 2^-9 of relative error where codes of 8 bits have 2^-8 of the largest.
  EXPECT_LT(divergence("16"), divergence("8 --rounding rtn"));
}

// A model whose first layer has one FFN, and the others experts that are all alike.
TEST_F(QuantizeVerb, InspectNamesTheLayersThatARowIsOf) {
  NIBBLE_SKIP_WITHOUT_DATA("data/architectures/glm4_moe");
  const Result r = Nibble({"inspect", test::DataPath("data/architectures/glm4_moe")});
  ASSERT_EQ(r.code, 0) << r.err;
  for (const char* name : {"layers.*.q ", "layers.0.gate ", "layers.0.down ", "layers.1-2.router ",
                           "layers.1-2.experts.*.gate ", "layers.1-2.experts.*.down "}) {
    EXPECT_THAT(r.out, HasSubstr(std::string("\n") + name));
  }
  EXPECT_THAT(r.out, testing::Not(HasSubstr("experts.0")));
}

}  // namespace
}  // namespace nibble
