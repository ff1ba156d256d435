// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/program.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "apps/cli/cli.h"
#include "apps/cli/progress_line.h"
#include "apps/cli/reference.h"
#include "apps/cli/usage.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "transforms/blas.h"

// OpenBLAS asks this function of its own, while it is loaded, how many threads to start. Nibble's
// threads are the pool's; each one of OpenBLAS' would take 128 MiB of address space, and would hang
// the exit where these are missing.
extern "C" int openblas_num_threads_env() {
  return 1;
}

namespace nibble::cli {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10, kPage = 4096;

// Touches an array in a frame of its own, since all that a function with this array calls lies
// behind the array on the stack.
[[gnu::noinline]] void TouchStack() {
  volatile char stack[kStackBytes];
  for (size_t end = kStackBytes; end > 0; end -= kPage) stack[end - 1] = 0;
  static_cast<void>(stack[0]);
}

// If the address space is used up, a stack that must grow ends in SIGSEGV; so it grows here.
void GrowStack() {
  constexpr size_t kBytes = kStackBytes + 4 * kPage;  // with the frames around the array
  void* room = mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) throw std::bad_alloc();
  munmap(room, kBytes);
  TouchStack();
}

// A standard stream that is closed must not become the number of a file opened later on. Opened the
// wrong way round, it still cannot be read or written.
void KeepStandardStreams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(fd, F_GETFD) == -1 && errno == EBADF) {
      open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
    }
  }
}

// Writes that would end the process fail like any other: to a pipe that nobody reads any more, or
// to a file above `ulimit -f`.
void TakeFailedWritesAsErrors() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// Starts the program again where verbs that use BLAS would run on its kernels for an older
// processor: GPTQ would take several times as long.
void RestartWithBetterBlas(const std::vector<std::string>& words, char** argv) {
  constexpr std::array kVerbs = {"quantize", "quality", "eval", "report"};
  constexpr const char* kVariable = "OPENBLAS_CORETYPE";
  if (words.empty() || std::ranges::find(kVerbs, words[0]) == kVerbs.end()) return;
  const std::string core = BetterBlasCore();
  if (core.empty() || std::getenv(kVariable) != nullptr) return;
  setenv(kVariable, core.c_str(), 0);
  execv("/proc/self/exe", argv);  // where it fails, slow kernels are still right
}

// --help and --version, where that is what `error` is.
void PrintHelp(CLI::App& app, const CLI::ParseError& error, bool all) {
  if (error.get_exit_code() != 0) RefuseArguments(app, error);
  if (!all) HideRareOptions(app);
  app.exit(error);
  FlushOutput();
}

int Main(int argc, char** argv, const Program& program) {
  GrowStack();
  KeepStandardStreams();
  TakeFailedWritesAsErrors();
  CommandLine line = ReadCommandLine(argc, argv);
  RestartWithBetterBlas(line.words, argv);
  CLI::App app(program.description);
  app.set_version_flag("--version", "nibble " NIBBLE_VERSION);
  app.require_subcommand(1);
  app.footer(program.footer);
  Common common;
  Run run;
  program.add(app, common, run);
  if (const std::string text = TopicText(app, line.topic); !text.empty()) {
    fmt::print("{}", text);
    FlushOutput();
    return 0;
  }
  RefuseUnknownVerb(app, line.words);
  try {
    app.name(program.name);
    std::ranges::reverse(line.words);  // CLI11 takes them from the end
    app.parse(std::move(line.words));
  } catch (const CLI::ParseError& error) {
    PrintHelp(app, error, line.all);
    return 0;
  }
  SetThreads(common.threads);
  CatchInterrupts();
  const ProgressReceiver receiver(ProgressLine());
  ActiveIsa();  // a wrong NIBBLE_ISA is an error even where no kernel runs
  run();
  FlushOutput();
  return 0;
}

// Neither throws nor allocates: it may be memory or standard error that fails.
void PrintError(const char* text) {
  std::fprintf(stderr, "nibble: %s\n", text);
}

}  // namespace

int RunProgram(int argc, char** argv, const Program& program) {
  try {
    return Main(argc, argv, program);
  } catch (const Error& error) {
    PrintError(error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    PrintError("out of memory");
  } catch (const std::exception& error) {
    PrintError(std::ferror(stdout) != 0 ? "standard output cannot be written"
                                        : Printable(error.what()).c_str());
  }
  return static_cast<int>(ErrorCode::kFailed);
}

}  // namespace nibble::cli
