// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <exception>
#include <initializer_list>
#include <new>
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/cli/cli.h"
#include "apps/cli/progress_line.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/progress.h"
#include "base/thread_pool.h"

// OpenBLAS asks this function of its own, while it is loaded, how many threads to start. Ours are
// the pool's; each one of its would take 128 MiB of address space, and hang the exit without them.
extern "C" int openblas_num_threads_env() {
  return 1;
}

namespace nibble::cli {
namespace {

constexpr size_t kStackBytes = size_t{256} << 10, kPage = 4096;

// Of a frame of its own: whatever a function with this array calls lies behind it.
[[gnu::noinline]] void TouchStack() {
  volatile char stack[kStackBytes];
  for (size_t end = kStackBytes; end > 0; end -= kPage) stack[end - 1] = 0;
  static_cast<void>(stack[0]);
}

// A stack that cannot grow because the address space is used up is a SIGSEGV; so it grows here.
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

// What the system would end the process for fails like any other write: a pipe that nobody reads
// any more, a file above `ulimit -f`.
void TakeFailedWritesAsErrors() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
}

// Single letters to put in, take out or replace (Levenshtein 1966).
size_t Edits(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// A word where a verb should stand is an error that names the nearest one.
void RefuseUnknownVerb(const CLI::App& app, int argc, char** argv) {
  const CLI::App* at = &app;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    const auto verbs = at->get_subcommands([](const CLI::App*) { return true; });
    if (verbs.empty() || word.starts_with('-')) return;
    const auto known = std::ranges::find(verbs, word, &CLI::App::get_name);
    if (known == verbs.end()) {
      const CLI::App* nearest = *std::ranges::min_element(
          verbs, {}, [&](const CLI::App* verb) { return Edits(word, verb->get_name()); });
      FailUsage("there is no verb \"{}\"; did you mean {}? --help lists all", Printable(word),
                nearest->get_name());
    }
    at = *known;
  }
}

// CLI11 exits with its own numbers; ours are 0 for --help and --version, 2 for wrong usage.
int ParseExit(const CLI::App& app, const CLI::ParseError& error) {
  const int code = app.exit(error);
  FlushOutput();
  return code == 0 ? 0 : static_cast<int>(ErrorCode::kUsage);
}

int Main(int argc, char** argv) {
  GrowStack();
  KeepStandardStreams();
  TakeFailedWritesAsErrors();
  CLI::App app("nibble runs large language models in 4 bits: weights, activations and KV cache");
  app.set_version_flag("--version", "nibble " NIBBLE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Example:\n"
      "  nibble chat MODEL\n"
      "  nibble quantize MODEL -o OUT --calib text.txt\n"
      "  nibble eval ppl OUT --text test.txt\n"
      "  nibble generate OUT --prompt \"Once upon a time\"\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 75 stopped, --resume continues.");
  Common common;
  Run run;
  AddQuantize(app, common, run);
  AddEval(app, common, run);
  AddGenerate(app, common, run);
  AddChat(app, common, run);
  AddServe(app, common, run);
  AddTokenize(app, common, run);
  AddInspect(app, common, run);
  AddRepack(app, common, run);
  AddBench(app, common, run);
  RefuseUnknownVerb(app, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ParseExit(app, error);
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

int MainWithErrors(int argc, char** argv) {
  try {
    return Main(argc, argv);
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

}  // namespace
}  // namespace nibble::cli

int main(int argc, char** argv) {
  return nibble::cli::MainWithErrors(argc, argv);
}
