// SPDX-License-Identifier: Apache-2.0
// Tests what happens where the system refuses memory, threads, disk space or a standard stream: the
// program ends soon with its exit code and one line, and leaves nothing half written.
#include <cctype>

#include "tests/e2e_testing.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

// Runs the program in `sh`, behind `before` and with `redirections`; kills it (137) after a minute.
Result Shell(const std::string& before, const Arguments& arguments,
             const std::string& redirections = "", const Arguments& environment = {}) {
  const std::string command =
      before + " timeout -s KILL 60 \"$0\" \"$@\" " + redirections + "\nexit $?";
  return Process(Arguments{"/bin/sh", "-c", command, NIBBLE_PROGRAM} + arguments, "", environment)
      .Wait();
}

// Expects an orderly end: behind lines of progress one printable line that says `what`.
void ExpectFailed(const Result& r, const std::string& what) {
  EXPECT_EQ(r.code, 1) << r.err;
  std::istringstream lines(r.err);
  std::string line;
  while (std::getline(lines, line) && line.find(" %") != std::string::npos) continue;
  EXPECT_THAT(line, AllOf(StartsWith("nibble: "), HasSubstr(what)));
  EXPECT_FALSE(std::getline(lines, line)) << r.err;
  for (const char c : r.err) EXPECT_TRUE(std::isprint(c) != 0 || c == '\n') << r.err;
}

class Limits : public EndToEnd {
 protected:
  void SetUp() override {
    EndToEnd::SetUp();
    Spill(Path("text"), Slurp(kEvaluationText).substr(0, 20'000));
  }
  // GPTQ calls BLAS and LAPACK, from all threads.
  Arguments QuantizeTo(const std::string& out) const {
    return {"quantize",  small_, "-o",        Path(out), "--calib",         Path("text"), "--json",
            "--threads", "2",    "--context", "64",      "--calib-windows", "2"};
  }
  Arguments Generate() const {
    return Words("generate " + small_ + " --prompt The --max-tokens 4 --threads 2 --load-bits 32");
  }
};

TEST_F(Limits, StandardErrorThatCannotBeWrittenChangesNothingElse) {
  const Arguments bad = {"generate", Path("absent"), "--prompt", "The"};
  const std::string text = Nibble(Generate()).out;
  for (const char* closed : {"2>/dev/full", "2>&-"}) {
    EXPECT_EQ(Shell("", Generate(), closed).code, 0) << closed;
    EXPECT_EQ(Shell("", Generate(), closed).out, text) << closed;
    EXPECT_EQ(Shell("", bad, closed).code, 1) << closed;
    EXPECT_EQ(Shell("", {"generate", "--bogus"}, closed).code, 2) << closed;
    EXPECT_EQ(Shell("", QuantizeTo("out") + Words("--force"), closed).code, 0) << closed;
  }
}

TEST_F(Limits, StandardOutputThatCannotBeWrittenIsAnError) {
  for (const Arguments& verb : {Generate() + Words("--json"), QuantizeTo("out") + Words("--force"),
                                Arguments{"inspect", small_}, Arguments{"--help"}}) {
    ExpectFailed(Shell("", verb, ">/dev/full"), "standard output cannot be written (disk full");
    ExpectFailed(Shell("", verb, ">&-"), "standard output cannot be written (Bad file descriptor)");
    // The reader has gone by the time that something is written.
    const Result pipe = Shell("{ sleep 0.2;", verb, "; echo $? >&2; } | true");
    EXPECT_THAT(pipe.err, AllOf(HasSubstr("(Broken pipe)"), testing::EndsWith("\n1\n")));
  }
  EXPECT_EQ(Nibble({"inspect", Path("out"), "--verify"}).code, 0);
  // The first token fails, not the last.
  const Result r =
      Shell("", Words("generate " + small_ + " --prompt The --max-tokens 100000"), ">/dev/full");
  EXPECT_THAT(r.err, HasSubstr("standard output cannot be written"));
}

TEST_F(Limits, NoFileTakesThePlaceOfAClosedStream) {
  ASSERT_EQ(Shell("", QuantizeTo("out")).code, 0);
  const auto whole = Files("out");
  Shell("", QuantizeTo("closed"), "<&- >&- 2>&-");
  EXPECT_EQ(Files("closed"), whole);
}

TEST_F(Limits, AFileAboveItsLimitIsAnError) {
  ASSERT_EQ(Shell("", QuantizeTo("whole")).code, 0);
  ExpectFailed(Shell("ulimit -f 64;", QuantizeTo("out")), "see ulimit -f");
  EXPECT_FALSE(fs::exists(Path("out")));
  EXPECT_EQ(Shell("", QuantizeTo("out") + Words("--resume")).code, 0);
  ExpectSameFiles("whole", "out");
}

// Under the sanitizers neither address space nor preloaded functions are the program's own.
#ifndef NIBBLE_SLOW_BUILD

const std::string kFailingCalls = "LD_PRELOAD=" NIBBLE_FAILING_CALLS;

TEST_F(Limits, AFullDiskIsCalledSo) {
  const Result whole = Shell("", QuantizeTo("whole"));
  ASSERT_EQ(whole.code, 0) << whole.err;
  int64_t bytes = 0;
  for (const auto& [name, content] : Files("whole")) bytes += static_cast<int64_t>(content.size());
  for (const int64_t written : {int64_t{0}, bytes / 3, bytes / 2, bytes - 1}) {
    fs::remove_all(Path("out"));
    fs::remove_all(Path("out.partial"));
    const Result r = Shell("", QuantizeTo("out"), "",
                           {kFailingCalls, "NIBBLE_TEST_BYTES=" + std::to_string(written)});
    ExpectFailed(r, "disk full; free space");
    EXPECT_THAT(r.err, HasSubstr(Path("out.partial/"))) << written;
    EXPECT_FALSE(fs::exists(Path("out")));
    EXPECT_EQ(Shell("", QuantizeTo("out") + Words("--resume")).code, 0);
    ExpectSameFiles("whole", "out");
  }
}

TEST_F(Limits, AThreadThatCannotStartIsAnError) {
  const Arguments two = {kFailingCalls, "NIBBLE_TEST_THREADS=2"};
  const Arguments verb = {"generate", small_, "--prompt", "The", "--max-tokens", "4"};
  ExpectFailed(Shell("", verb + Words("--threads 8"), "", two), "only 3 of 8 threads");
  EXPECT_EQ(Shell("", verb + Words("--threads 3"), "", two).code, 0);
}

// Returns whether the program reaches main: the loader says so when all libraries have begun.
bool ReachesMain(const std::string& limit, const Arguments& verb) {
  return Shell(limit, verb, "", {"LD_DEBUG=libs"})
             .err.find("transferring control: " NIBBLE_PROGRAM) != std::string::npos;
}

// Limits of memory go from too little for the libraries to enough: the program succeeds, or says in
// one line that memory is short. (Below what the program's own file takes, the system ends it
// before it begins.) OpenBLAS tries for ever where it gets no memory; the program must never let
// it.
TEST_F(Limits, EveryLimitOfMemoryEndsInALineOrSuccess) {
  ASSERT_EQ(Shell("", QuantizeTo("whole")).code, 0);
  const Arguments measure = {"--text",    Path("text"), "--windows", "1",
                             "--context", "64",         "--threads", "2"};
  const Arguments twin = {"eval", "kl", Path("whole"), "--reference", Path("whole"), "--decoded"};
  const double program_kilobytes = 1024 + fs::file_size(NIBBLE_PROGRAM) / 1024.0;
  for (const Arguments& verb : {QuantizeTo("out"), Generate(),
                                Arguments{"eval", "ppl", small_} + measure, twin + measure}) {
    int failed = 0, code = 1;
    for (double kilobytes = program_kilobytes; code != 0 && kilobytes < 4e6; kilobytes *= 1.04) {
      const std::string limit = "ulimit -v " + std::to_string(static_cast<int>(kilobytes)) + ";";
      const Result r = Shell(limit, verb);
      code = r.code;
      // 127: the libraries cannot be loaded. With 90 KB more libgfortran is loaded, and calls
      // itself for ever if it then gets no memory to begin.
      if (code == 0 || code == 127 || (code == 128 + SIGSEGV && !ReachesMain(limit, verb)))
        continue;
      SCOPED_TRACE(limit + " " + verb[0]);
      ExpectFailed(r, "");
      EXPECT_THAT(r.err, testing::AnyOf(HasSubstr("out of memory"), HasSubstr("emory)"),
                                        HasSubstr("threads can be started")));
      EXPECT_TRUE(verb[0] != "quantize" || !fs::exists(Path("out")));
      fs::remove_all(Path("out.partial"));
      ++failed;
    }
    EXPECT_EQ(code, 0);
    EXPECT_GT(failed, 2);
  }
  ExpectSameFiles("whole", "out");
}

#endif

}  // namespace
}  // namespace nibble
