// SPDX-License-Identifier: Apache-2.0
// Death, I/O errors, a full disk, short transfers and interruptions at every system call of a
// quantization that touches its files: OUT is whole, the old or the new one, and the same command
// with --resume gives the bytes of an undisturbed run. NIBBLE_FAULTS=all tries every call;
// otherwise a sample of them.
#include <random>

#include "tests/fault_tracer.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::StartsWith;

// The number of calls tried of some five hundred: a run takes a tenth of a second, one that learns
// ten times as long.
#ifdef NIBBLE_SLOW_BUILD
constexpr size_t kCalls = 10, kLearningCalls = 1;
#else
constexpr size_t kCalls = 50, kLearningCalls = 8;
#endif

using Tree = std::map<std::string, std::string>;

Tree ReadTree(const std::string& directory) {
  Tree tree;
  if (!fs::exists(directory)) return tree;
  for (const auto& entry : fs::directory_iterator(directory)) {
    tree[entry.path().filename().string()] = Slurp(entry.path());
  }
  return tree;
}

struct Scenario {
  const char* name;
  bool old_output, begun;  // OUT, OUT.partial exist at the start
  bool learns = false;     // a rotation and scales
};

class Faults : public TemporaryDirectoryTest, public testing::WithParamInterface<Scenario> {
 protected:
  void SetUp() override {
    TemporaryDirectoryTest::SetUp();
    if (GetParam().learns) {
      MakeSmallModel(Path("model"));
      Json config = Json::parse(Slurp(Path("model/config.json")));
      config["max_position_embeddings"] = 16;  // 120 sequences of so many tokens are enough
      Spill(Path("model/config.json"), config.dump());
    } else {
      fs::copy(NIBBLE_SOURCE_DIR "/tests/data/architectures/llama2", Path("model"));
    }
    ASSERT_EQ(Nibble(Command("--seed 1")).code, 0);
    fs::rename(Path("out"), Path("old"));
    ASSERT_EQ(Nibble(Command("")).code, 0);
    fs::rename(Path("out"), Path("new"));
    old_ = ReadTree(Path("old"));
    new_ = ReadTree(Path("new"));
  }

  // The command needs no text, so that a run takes a tenth of a second.
  Arguments Command(const std::string& options) const {
    return Arguments{"quantize",   Path("model"), "-o",        Path("out"),
                     "--rounding", "rtn",         "--threads", "2"} +
           Words(options);
  }

  FaultTracer Tracer(const std::string& options) const {
    return FaultTracer(Arguments{NIBBLE_PROGRAM} + Command(options), root_.string());
  }

  // Makes the state of a run that died when its first layer was finished.
  void MakeBegun() const {
    FaultTracer tracer = Tracer("");
    for (int64_t at = 0; !fs::exists(Path("begun/layer-00000.safetensors")); at += 3) {
      fs::remove_all(Path("out.partial"));
      ASSERT_EQ(tracer.Run(Fault::kKill, at).code, 128 + SIGKILL);
      if (!fs::exists(Path("out.partial/layer-00000.safetensors"))) continue;
      fs::rename(Path("out.partial"), Path("begun"));
    }
  }

  void Prepare(const Scenario& scenario) const {
    for (const char* name : {"out", "out.partial"}) fs::remove_all(Path(name));
    if (scenario.old_output) fs::copy(Path("old"), Path("out"));
    if (scenario.begun) fs::copy(Path("begun"), Path("out.partial"));
  }

  // Checks the directories after a run that ended with `result`.
  void Check(const Scenario& scenario, Fault fault, const Result& result) const {
    Tree out = ReadTree(Path("out"));
    out.erase("replaced");  // the next run removes it
    if (fault == Fault::kKill) {
      EXPECT_EQ(result.code, 128 + SIGKILL);
    } else if (fault == Fault::kInterrupted) {
      EXPECT_EQ(result.code, 0) << result.err;
    } else if (result.code != 0) {
      EXPECT_EQ(result.code, 1) << result.err;
      const std::string last = result.err.substr(result.err.rfind("nibble: "));
      EXPECT_EQ(std::ranges::count(last, '\n'), 1) << result.err;
    }
    EXPECT_TRUE(out == new_ || (result.code != 0 && out == (scenario.old_output ? old_ : Tree{})))
        << result.err;
    const Result again = Nibble(Command("--resume --force"));
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(ReadTree(Path("out")), new_) << "resumed";
    EXPECT_FALSE(fs::exists(Path("out.partial")));
  }

  Tree old_, new_;
};

TEST_P(Faults, OutputIsWholeAndResumesToTheSameBytes) {
  const Scenario scenario = GetParam();
  if (scenario.begun) MakeBegun();
  FaultTracer tracer = Tracer(std::string(scenario.old_output ? "--force " : "") +
                              (scenario.begun ? "--resume" : ""));
  Prepare(scenario);
  ASSERT_EQ(tracer.Run(Fault::kNone, -1).code, 0);
  std::vector<std::pair<Fault, int64_t>> points;
  for (int64_t at = 0; at < tracer.calls(); ++at) {
    points.emplace_back(Fault::kIoError, at);
    if (!tracer.changes(at)) continue;
    for (Fault fault : {Fault::kKill, Fault::kDiskFull, Fault::kShort, Fault::kInterrupted}) {
      points.emplace_back(fault, at);
    }
  }
  RecordProperty("points", static_cast<int>(points.size()));
  const char* all = std::getenv("NIBBLE_FAULTS");
  if (all == nullptr) {
    std::mt19937 random(std::random_device{}());  // the trace names what failed
    std::ranges::shuffle(points, random);
    points.resize(scenario.learns ? kLearningCalls : kCalls);
  }
  for (const auto& [fault, at] : points) {
    SCOPED_TRACE("fault " + std::to_string(static_cast<int>(fault)) + " at call " +
                 std::to_string(at));
    Prepare(scenario);
    const Result result = tracer.Run(fault, at);
    // The order of threads moves a few calls, so the last ones may not come.
    if (fault == Fault::kKill && result.code == 0) continue;
    Check(scenario, fault, result);
    if (HasFatalFailure() || HasNonfatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Table, Faults,
                         testing::Values(Scenario{"Fresh", false, false},
                                         Scenario{"Resumed", false, true},
                                         Scenario{"Forced", true, false},
                                         Scenario{"ForcedAndResumed", true, true},
                                         Scenario{"Learned", false, false, true}),
                         [](const auto& scenario) { return scenario.param.name; });

}  // namespace
}  // namespace nibble
