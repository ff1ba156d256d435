// SPDX-License-Identifier: Apache-2.0
// Tests that quantize never harms a user's files, and never continues or publishes work that does
// not fit.
#include <sys/stat.h>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;
using testing::Not;

class Output : public EndToEnd {
 protected:
  // Runs quantize, rounding to nearest so that it takes a moment.
  Result Run(const std::string& model, const std::string& out, const std::string& options) const {
    return Nibble(Arguments{"quantize", model, "-o", out, "--rounding", "rtn"} + Words(options));
  }
  void ExpectRefused(const Result& r, int code, const std::string& message) const {
    EXPECT_EQ(r.code, code) << r.err;
    EXPECT_THAT(r.err, HasSubstr(message));
    EXPECT_EQ(std::ranges::count(r.err, '\n'), 1) << r.err;
  }
  // Begins a run with `options` and kills it when its first layer is finished.
  void Begin(const std::string& out, const Arguments& options) const {
    Process process(Arguments{NIBBLE_PROGRAM, "quantize", small_, "-o", Path(out)} + options, "",
                    {});
    ASSERT_TRUE(
        WaitUntil([&] { return fs::exists(Path(out + ".partial/layer-00000.safetensors")); }));
    process.Signal(SIGKILL);
    ASSERT_EQ(process.Wait().code, 128 + SIGKILL);
  }
};

TEST_F(Output, TheSourceIsNeverReplaced) {
  const auto before = Files("small");
  fs::create_directory_symlink(small_, Path("link"));
  fs::create_directory(Path("above"));
  fs::rename(small_, Path("above/model"));
  fs::create_directory_symlink(Path("above/model"), small_);
  fs::create_directory_symlink(Path("above/model"), Path("way.partial"));
  for (const std::string& out :
       {small_, small_ + "/", small_ + "/.", Path("link"), Path("above"), Path("above/model"),
        Path("none/../above/model"), small_ + "/inside", Path("link/inside/deeper"), Path("way"),
        std::string("/")}) {
    for (const char* options : {"", "--force", "--force --resume", "--dry-run"}) {
      const Result r = Run(small_, out, options);
      EXPECT_EQ(r.code, 1) << out;
      EXPECT_THAT(r.err, HasSubstr(out));
    }
  }
  EXPECT_EQ(Files("above/model"), before);
  EXPECT_FALSE(fs::exists(Path("above.partial")));
  // "none/.." is resolved although there is no folder "none".
  EXPECT_EQ(Run(small_, Path("none/../out"), "").code, 0);
  EXPECT_TRUE(fs::exists(Path("out/manifest.json")));
  EXPECT_FALSE(fs::exists(Path("none")));
}

TEST_F(Output, FoldersOfTheUserStayAsTheyAre) {
  const auto refused = [&](const std::string& file, const std::string& options) {
    const std::string directory = fs::path(file).parent_path();
    fs::create_directories(directory);
    Spill(file, "mine");
    const Result r = Run(small_, Path("out"), options);
    EXPECT_EQ(r.code, 1) << file;
    EXPECT_THAT(r.err, HasSubstr(Path("out")));
    EXPECT_EQ(Slurp(file), "mine");
    fs::remove_all(file);
  };
  for (const char* options : {"", "--resume", "--resume --force"}) {
    refused(Path("out.partial/thesis.txt"), options);
    refused(Path("out.partial/config.json"), options);
    refused(Path("out.partial/notes.tmp"), options);
    refused(Path("out.partial/folder/layer-00000.safetensors"), options);
    fs::remove_all(Path("out.partial"));
    fs::create_directories(Path("elsewhere"));
    fs::create_directory_symlink(Path("elsewhere"), Path("out.partial"));
    refused(Path("elsewhere/a"), options);
    EXPECT_EQ(Run(small_, Path("out"), options).code, 1) << "a link to an empty folder";
    EXPECT_TRUE(Files("elsewhere").empty());
    fs::remove(Path("out.partial"));
  }
  refused(Path("out.partial"), "");
  ASSERT_EQ(Run(small_, Path("out"), "").code, 0);
  const auto before = Files("out");
  for (const char* name : {"out/notes.txt", "out/model.safetensors", "out/sub/a"}) {
    refused(Path(name), "--force");
    EXPECT_FALSE(fs::exists(Path("out.partial"))) << "refused before any work";
    fs::remove_all(Path("out/sub"));
    EXPECT_EQ(Files("out"), before);
  }
  // A link is no file of a checkpoint, whatever its name.
  Spill(Path("mine"), "{}");
  fs::create_symlink(Path("mine"), Path("out/special_tokens_map.json"));
  EXPECT_EQ(Run(small_, Path("out"), "--force").code, 1);
  EXPECT_TRUE(fs::is_symlink(Path("out/special_tokens_map.json")));
  fs::remove(Path("out/special_tokens_map.json"));
  // A model of floats is nothing that --force may replace.
  fs::copy(small_, Path("floats"));
  EXPECT_EQ(Run(small_, Path("floats"), "--force").code, 1);
  EXPECT_EQ(Files("floats"), Files("small"));
  // Neither is a directory that has only some of the files of a checkpoint.
  fs::remove(Path("out/provenance.json"));
  EXPECT_EQ(Run(small_, Path("out"), "--force").code, 1);
  EXPECT_TRUE(fs::exists(Path("out/layer-00000.safetensors")));
}

TEST_F(Output, UnfinishedWorkWithAFileOfTheUserIsNotContinued) {
  Begin("out", Words("--rounding rtn"));
  Spill(Path("out.partial/thesis.txt"), "mine");
  const auto before = Files("out.partial");
  const Result r = Run(small_, Path("out"), "--resume");
  EXPECT_EQ(r.code, 1);
  EXPECT_THAT(r.err, HasSubstr("thesis.txt"));
  EXPECT_EQ(Files("out.partial"), before);
}

TEST_F(Output, ReplacesWhatALinkLeadsToAndFinishesAnotherRunsExchange) {
  fs::permissions(small_ + "/tokenizer.json", fs::perms::owner_read);
  ASSERT_EQ(Run(small_, Path("out"), "").code, 0);
  EXPECT_NE(fs::status(Path("out/tokenizer.json")).permissions() & fs::perms::owner_write,
            fs::perms::none);
  const auto before = Files("out");
  fs::create_directory_symlink(Path("out"), Path("link"));
  EXPECT_EQ(Run(small_, Path("link"), "--force --seed 1").code, 0);
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_NE(Files("out"), before);
  // The state after a kill between the exchange of OUT and OUT.partial and the removal of the old
  // content.
  ASSERT_EQ(Run(small_, Path("new"), "").code, 0);
  fs::rename(Path("out"), Path("out.partial"));
  fs::rename(Path("new"), Path("out"));
  struct stat old;
  ASSERT_EQ(stat(Path("out.partial").c_str(), &old), 0);
  Spill(Path("out/replaced"), fmt::format("{}:{}\n", old.st_dev, old.st_ino));
  EXPECT_THAT(Run(small_, Path("out"), "").err, HasSubstr("--force"));
  EXPECT_FALSE(fs::exists(Path("out.partial")));
  EXPECT_EQ(Files("out"), before);
}

TEST_F(Output, ASecondStartTakesWhatTheFirstOneKept) {
  const Arguments cache = {"XDG_CACHE_HOME=" + Path("cache")};
  const auto generate = [&](const std::string& options) {
    const Arguments verb = {"generate", small_, "--prompt", "The", "--max-tokens", "4"};
    const Result r = Nibble(verb + Words(options), "", cache);
    EXPECT_EQ(r.code, 0) << r.err;
    return r;
  };
  const Result once = generate("--no-keep");
  EXPECT_FALSE(fs::exists(Path("cache")));
  const Result first = generate(""), second = generate(""), never = generate("--no-keep");
  EXPECT_THAT(first.err, HasSubstr(", kept for the next start in " + Path("cache")));
  EXPECT_THAT(second.err, HasSubstr("as an earlier start rounded them to 8 bits"));
  EXPECT_THAT(never.err, Not(HasSubstr(Path("cache"))));
  for (const Result& r : {first, second, never}) EXPECT_EQ(r.out, once.out);
}

// The largest number of bf16, times a norm, a rotation or 8 steps of a grid, overflows. It may be
// refused by name; a checkpoint that is published can be opened.
TEST_F(Output, LargestWeightsAreRefusedOrKept) {
  const std::string file = small_ + "/model.safetensors";
  const RawTensors whole = RawTensors::Read(file);
  for (const char* tensor :
       {"model.embed_tokens.weight", "lm_head.weight", "model.norm.weight",
        "model.layers.1.input_layernorm.weight", "model.layers.1.self_attn.v_proj.weight",
        "model.layers.1.mlp.down_proj.weight"}) {
    RawTensors large = whole;
    const size_t begin = whole.header[tensor]["data_offsets"][0];
    large.data.replace(begin, 8, "\x7f\x7f\x7f\xff\x7f\x7f\x7f\x7f");
    large.Write(file);
    for (const char* options : {"--rotation none", "--rotation none --group 64", ""}) {
      for (const char* name : {"out", "out.partial"}) fs::remove_all(Path(name));
      const Result r = Run(small_, Path("out"), options + std::string(" --loss-windows 1"));
      if (r.code == 0) {
        const Result opened = Nibble({"inspect", Path("out")});
        EXPECT_EQ(opened.code, 0) << tensor << " " << options << ": " << opened.err;
        continue;
      }
      EXPECT_EQ(r.code, 1);
      EXPECT_THAT(r.err, AnyOf(HasSubstr("too large"), HasSubstr("is not a scale")))
          << tensor << " " << options;
      EXPECT_FALSE(fs::exists(Path("out")));
    }
  }
}

#ifndef NIBBLE_SLOW_BUILD  // learns six times; StoppedWhileScalesAreLearnedItGoesOn once
// Learned rotation and factors belong together with the layers that were made with them.
TEST_F(Output, PartsOfLearnedWorkAreNotMixed) {
  Json config = Json::parse(Slurp(small_ + "/config.json"));
  config["max_position_embeddings"] = 16;  // 120 sequences of so many tokens are enough
  Spill(small_ + "/config.json", config.dump());
  const Arguments options = Words("--learned-rotation --learned-scales --calib-windows 120");
  const auto run = [&](const char* more) {
    return Nibble(Arguments{"quantize", small_, "-o", Path("out")} + options + Words(more));
  };
  ASSERT_EQ(run("").code, 0);
  fs::rename(Path("out"), Path("whole"));
  Process process(Arguments{NIBBLE_PROGRAM, "quantize", small_, "-o", Path("begun")} + options, "",
                  {});
  // Waits for the first layer that was scaled by learned factors, which its shard says.
  const std::string first = Path("begun.partial/layer-00000.safetensors");
  ASSERT_TRUE(WaitUntil([&] { return Slurp(first).find("\"learned\"") != std::string::npos; }));
  process.Signal(SIGKILL);
  process.Wait();
  ASSERT_TRUE(fs::exists(Path("begun.partial/factors.safetensors"))) << "published too early";
  const auto resumed = [&](const std::string& missing) {
    fs::remove_all(Path("out.partial"));
    fs::copy(Path("begun.partial"), Path("out.partial"));
    if (!missing.empty()) fs::remove(Path("out.partial/" + missing));
    return run("--resume");
  };
  for (const char* missing :
       {"rotation.safetensors", "factors.safetensors", "layer-00001.safetensors"}) {
    const Result r = resumed(missing);
    EXPECT_EQ(r.code, 1) << missing;
    EXPECT_THAT(r.err, AllOf(HasSubstr(missing), HasSubstr("is not what was saved there")));
    EXPECT_FALSE(fs::exists(Path("out")));
  }
  const Result r = resumed("");
  EXPECT_EQ(r.code, 0) << r.err;
  ExpectSameFiles("whole", "out");
}
#endif

// A run that was begun with another value of anything that the result depends on is not continued.
TEST_F(Output, ResumeRefusesWhateverChangedMeanwhile) {
  constexpr const char* kWindows = "--calib-windows 2 --context 64";
  Spill(Path("text"), Slurp(NIBBLE_SOURCE_DIR "/samples/calibration.txt"));
  const Arguments text = {"--calib", Path("text")};
  Begin("begun", Words(kWindows) + text);
  struct Change {
    const char* field;           // named in the refusal
    std::function<void()> make;  // changes the files
    const char* options = "";
    Arguments environment = {};
    const char* windows = kWindows;
  };
  const auto append = [&](const std::string& file, const std::string& more) {
    return [this, file, more] { Spill(Path(file), Slurp(Path(file)) + more); };
  };
  // Another one than this machine's: OpenBLAS takes processors newer than itself for this oldest
  // one.
  const bool oldest =
      Slurp(Path("begun.partial/provenance.json")).find("Prescott") != std::string::npos;
  const std::vector<Change> changes = {
      {"source_config",
       [&] {
         Json config = Json::parse(Slurp(small_ + "/config.json"));
         config["rope_theta"] = 12345.0;
         Spill(small_ + "/config.json", config.dump());
       }},
      {"source_files/model.safetensors",
       [&] {
         std::string bytes = Slurp(small_ + "/model.safetensors");
         bytes[bytes.size() / 2] ^= 1;
         Spill(small_ + "/model.safetensors", bytes);
       }},
      {"source_files/tokenizer.json", append("small/tokenizer.json", " ")},
      {"source_files/tokenizer_config.json", append("small/tokenizer_config.json", " ")},
      {"source_files/generation_config.json", append("small/generation_config.json", " ")},
      {"source_files/special_tokens_map.json",
       [&] { Spill(small_ + "/special_tokens_map.json", "{}"); }},
      {"source_files/chat_template.jinja", [&] { Spill(small_ + "/chat_template.jinja", "x"); }},
      {"source_files/tokenizer.json", [&] { fs::remove(small_ + "/tokenizer.json"); },
       "--rounding rtn"},
      {"calibration_text", append("text", "more")},
      {"plan", [] {}, "--a-bits 4"},
      {"settings/seed", [] {}, "--seed 1"},
      {"settings/recipe", [] {}, "--recipe qserve"},
      {"settings/rotation", [] {}, "--rotation random"},
      {"settings/rounding", [] {}, "--rounding rtn"},
      {"settings/damp", [] {}, "--damp 0.02"},
      {"settings/act-order", [] {}, "--act-order"},
      {"settings/gptaq", [] {}, "--gptaq 0.5"},
      {"settings/sweeps", [] {}, "--sweeps 1"},
      {"settings/calib-quantized", [] {}, "--calib-float"},
      {"settings/rules", [] {}, "--rule o_proj:w-bits=8"},
      {"settings/calibration_windows", [] {}, "", {}, "--calib-windows 3 --context 64"},
      {"settings/calibration_context", [] {}, "", {}, "--calib-windows 2 --context 65"},
      {"backend", [] {}, "", {"NIBBLE_ISA=ref"}},
      {"host_blas",
       [] {},
       "",
       {oldest ? "OPENBLAS_CORETYPE=Nehalem" : "OPENBLAS_CORETYPE=Prescott"}},
  };
  fs::copy(small_, Path("source"));
  const std::string words = Slurp(Path("text"));
  for (const Change& change : changes) {
    fs::remove_all(Path("out.partial"));
    fs::copy(Path("begun.partial"), Path("out.partial"));
    const auto before = Files("out.partial");
    change.make();
    const Result r = Nibble(Arguments{"quantize", small_, "-o", Path("out"), "--resume"} + text +
                                Words(change.windows) + Words(change.options),
                            "", change.environment);
    EXPECT_EQ(r.code, 1) << change.field << r.err;
    EXPECT_THAT(r.err, AllOf(HasSubstr("other settings"), HasSubstr(change.field)));
    EXPECT_EQ(Files("out.partial"), before) << change.field;
    EXPECT_FALSE(fs::exists(Path("out")));
    fs::remove_all(small_);
    fs::copy(Path("source"), small_);
    Spill(Path("text"), words);
  }
  // Work of another version of the program is not continued.
  Json identity = Json::parse(Slurp(Path("out.partial/provenance.json")));
  EXPECT_EQ(identity.size(), 8u) << "a field without a change above";
  identity["nibble_version"] = "0.0.0";
  Spill(Path("out.partial/provenance.json"), identity.dump());
  EXPECT_THAT(
      Nibble(Arguments{"quantize", small_, "-o", Path("out"), "--resume"} + Words(kWindows) + text)
          .err,
      HasSubstr("nibble_version"));
}

// After one bit of any byte of OUT.partial is flipped, the damaged part is made again, or named and
// refused.
TEST_F(Output, DamagedWorkIsNeverPublished) {
  const Arguments options = Words("--rounding rtn");
  ASSERT_EQ(Run(small_, Path("whole"), "").code, 0);
  Begin("begun", options);
  Spill(Path("begun.partial/tokenizer.json"), "{ half of");
  for (const auto& [name, bytes] : Files("begun.partial")) {
    if (bytes.empty() || name.ends_with(".tmp")) continue;
    for (int flip = 0; flip < 6; ++flip) {
      fs::remove_all(Path("out"));
      fs::remove_all(Path("out.partial"));
      fs::copy(Path("begun.partial"), Path("out.partial"));
      const size_t at = bytes.size() * static_cast<size_t>(flip) / 6;
      std::string damaged = bytes;
      damaged[at] = static_cast<char>(damaged[at] ^ (1 << flip));
      Spill(Path("out.partial/" + name), damaged);
      const Result r = Run(small_, Path("out"), "--resume");
      if (r.code == 0) {
        ExpectSameFiles("whole", "out");
      } else {
        EXPECT_EQ(r.code, 1);
        EXPECT_THAT(r.err, HasSubstr(Path("out.partial"))) << name << " " << at;
        EXPECT_FALSE(fs::exists(Path("out")));
      }
    }
  }
}

}  // namespace
}  // namespace nibble
