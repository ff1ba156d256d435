// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "apps/cli/cli.h"
#include "apps/cli/program.h"
#include "apps/cli/reference.h"
#include "base/error.h"

namespace nibble::cli {
namespace {

// Becomes the program nibble-bench beside this one for `nibble bench ...` and `nibble doctor`;
// returns for all other words. So nothing that only measures is linked here.
void ForwardBench(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  const bool help = !words.empty() && words[0] == "help";
  if (help) words.erase(words.begin());
  const bool doctor = !words.empty() && words[0] == "doctor";
  if (!doctor && (words.empty() || words[0] != "bench")) return;
  if (doctor) words.insert(words.begin(), "");
  words[0] = "nibble-bench";
  if (help) words.insert(words.begin() + 1, "help");
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").replace_filename("nibble-bench");
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(program.c_str(), arguments.data());
  Fail("{}: {}; the benchmarks are a program of their own, which belongs beside nibble", program,
       std::strerror(errno));
}

Program Nibble(int argc, char** argv) {
  return {.name = "nibble",
          .description =
              "nibble runs large language models in 4 bits: weights, activations and KV cache",
          .footer =
              "Example:\n"
              "  nibble chat MODEL\n"
              "  nibble quantize MODEL -o OUT --calib text.txt\n"
              "  nibble eval ppl OUT --text test.txt\n"
              "  nibble generate OUT --prompt \"Once upon a time\"\n"
              "More: nibble help VERB, nibble help topics.",
          .add = [=](CLI::App& app, Common& common, Run& run) {
            ForwardBench(argc, argv);
            AddQuantize(app, common, run);
            AddEval(app, common, run);
            AddGenerate(app, common, run);
            AddChat(app, common, run);
            AddServe(app, common, run);
            AddTokenize(app, common, run);
            AddInspect(app, common, run);
            AddRepack(app, common, run);
            AddReport(app, common, run);
            app.add_subcommand("doctor", "What this machine offers, and what to change");
            app.add_subcommand("bench", "Measure speed and quality");
            AddCompletion(app, common, run);
          }};
}

}  // namespace
}  // namespace nibble::cli

int main(int argc, char** argv) {
  return nibble::cli::RunProgram(argc, argv, nibble::cli::Nibble(argc, argv));
}
