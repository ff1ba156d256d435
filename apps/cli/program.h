// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "apps/cli/cli.h"

namespace nibble::cli {

// A program of verbs: `nibble`, and `nibble-bench` for those that measure.
struct Program {
  std::string name, description, footer;
  std::function<void(CLI::App& app, Common& common, Run& run)> add;
};

// Parses the command line, runs the verb and returns the exit status; errors become one line on
// standard error.
int RunProgram(int argc, char** argv, const Program& program);

}  // namespace nibble::cli
