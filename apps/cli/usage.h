// SPDX-License-Identifier: Apache-2.0
// What a command line that cannot be understood is answered with.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/cli.h"

namespace nibble::cli {

// The program's arguments, with `help [VERB...]` as `[VERB...] --help`.
std::vector<std::string> Arguments(int argc, char** argv);

// A word where a verb should stand is an Error that names the one that does it, or the nearest.
void RefuseUnknownVerb(const CLI::App& app, const std::vector<std::string>& arguments);

// `error` as an Error of one line that says what to do; unknown options with the nearest one.
[[noreturn]] void RefuseArguments(const CLI::App& app, const CLI::ParseError& error);

}  // namespace nibble::cli
