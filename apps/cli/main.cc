// SPDX-License-Identifier: Apache-2.0
#include <cblas.h>

#include <cstdio>
#include <exception>
#include <new>

#include "apps/cli/cli.h"
#include "base/cpu_features.h"
#include "base/error.h"
#include "base/interrupt.h"
#include "base/thread_pool.h"

namespace nibble::cli {
namespace {

// CLI11 exits with its own numbers; ours are 0 for --help and --version, 2 for wrong usage.
int ParseExit(const CLI::App& app, const CLI::ParseError& error) {
  const int code = app.exit(error);
  return code == 0 ? 0 : static_cast<int>(ErrorCode::kUsage);
}

int Main(int argc, char** argv) {
  CLI::App app("nibble runs large language models in 4 bits: weights, activations and KV cache");
  app.set_version_flag("--version", "nibble " NIBBLE_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Example:\n"
      "  nibble quantize MODEL -o MODEL-w4a4kv4 --calib text.txt\n"
      "  nibble eval ppl MODEL-w4a4kv4 --text test.txt\n"
      "  nibble generate MODEL-w4a4kv4 --prompt \"Once upon a time\"\n"
      "Exit codes: 0 done, 1 failed, 2 wrong usage, 75 stopped, --resume continues.");
  Common common;
  Run run;
  AddQuantize(app, common, run);
  AddEval(app, common, run);
  AddGenerate(app, common, run);
  AddChat(app, common, run);
  AddTokenize(app, common, run);
  AddInspect(app, common, run);
  AddRepack(app, common, run);
  AddBench(app, common, run);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return ParseExit(app, error);
  }
  SetThreads(common.threads);
  openblas_set_num_threads(1);  // our pool calls it from every thread
  CatchInterrupts();
  ActiveIsa();  // a wrong NIBBLE_ISA is an error even where no kernel runs
  run();
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    Fail("standard output cannot be written");
  }
  return 0;
}

int MainWithErrors(int argc, char** argv) {
  try {
    return Main(argc, argv);
  } catch (const Error& error) {
    fmt::print(stderr, "nibble: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "nibble: out of memory\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "nibble: {}\n", error.what());
  }
  return static_cast<int>(ErrorCode::kFailed);
}

}  // namespace
}  // namespace nibble::cli

int main(int argc, char** argv) {
  return nibble::cli::MainWithErrors(argc, argv);
}
