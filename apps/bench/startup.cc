// SPDX-License-Identifier: Apache-2.0
// A whole process from its start to its first token, as a user runs it.
#include <fcntl.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "apps/bench/bench.h"
#include "base/progress.h"
#include "base/thread_pool.h"
#include "measure/random_network.h"
#include "models/import/open_network.h"

namespace nibble::cli {
namespace {

struct Run {
  double seconds, peak_bytes;
};

// A child's peak memory starts from its parent's, which may just have written a checkpoint: set it
// back to what is in use (proc(5), clear_refs).
void ForgetPeakMemory() {
  if (std::FILE* file = std::fopen("/proc/self/clear_refs", "w")) {
    std::fputs("5", file);
    std::fclose(file);
  }
}

// `nibble generate MODEL --prompt-ids 1,2,3,4 --max-tokens 1` in a process of its own.
Run GenerateOneToken(const std::string& model, const Common& common) {
  const std::string threads = std::to_string(Threads());
  const char* arguments[] = {"nibble",    "generate",      model.c_str(), "--prompt-ids",
                             "1,2,3,4",   "--max-tokens",  "1",           "--json",
                             "--threads", threads.c_str(), "--device",    common.device.c_str(),
                             nullptr};
  ForgetPeakMemory();
  posix_spawn_file_actions_t silent;
  posix_spawn_file_actions_init(&silent);
  posix_spawn_file_actions_addopen(&silent, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  const auto start = std::chrono::steady_clock::now();
  pid_t child = 0;
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("nibble");
  const int error = posix_spawn(&child, program.c_str(), &silent, nullptr,
                                const_cast<char* const*>(arguments), environ);
  posix_spawn_file_actions_destroy(&silent);
  if (error != 0) Fail("cannot start {}: {}", program, std::strerror(error));
  int status = 0;
  rusage usage{};
  while (wait4(child, &status, 0, &usage) < 0) {
    if (errno != EINTR) Fail("lost the program that was started: {}", std::strerror(errno));
  }
  const double seconds = Seconds(start);
  if (status != 0) Fail("nibble generate {} failed", model);
  return {seconds, static_cast<double>(usage.ru_maxrss) * 1024};
}

}  // namespace

void RunStartup(const BenchArguments& a, const Common& common) {
  if (!a.shape.empty() && !std::filesystem::exists(a.model)) {
    WriteRandomCheckpoint(BenchConfig(a), BenchRecipe(a), 1, a.model);
  }
  const Network net = OpenNetwork(a.model);
  const double weights = StoredBytes(net);
  double peak = 0;
  const Timing time = Measure(
      a.repeats, [&] { peak = std::max(peak, GenerateOneToken(a.model, common).peak_bytes); });
  const char* order = net.tiles != nullptr ? "tiles mapped" : "reordered";
  if (common.json) {
    return PrintJson(Json::array({{{"name", "startup"},
                                   {"shape", fmt::format("{}, {}", a.model, order)},
                                   {"median_us", time.median * 1e6},
                                   {"min_us", time.min * 1e6},
                                   {"max_us", time.max * 1e6},
                                   {"peak_bytes", peak},
                                   {"weight_bytes", weights}}}));
  }
  fmt::print("{}",
             Table({{"bench", "weights", "median s", "min", "max", "peak memory", "of weights"},
                    {"startup", fmt::format("{}, {}", BytesText(weights), order),
                     fmt::format("{:.2f}", time.median), fmt::format("{:.2f}", time.min),
                     fmt::format("{:.2f}", time.max), BytesText(peak),
                     fmt::format("{:.2f}", peak / weights)}}));
}

}  // namespace nibble::cli
