// SPDX-License-Identifier: Apache-2.0
// Errors for command lines that cannot be understood.
#pragma once

#include <string>
#include <vector>

#include "apps/cli/cli.h"

namespace nibble::cli {

// What was asked for: the arguments, with `help [VERB...]` as `[VERB...] --help`.
struct CommandLine {
  std::vector<std::string> words;
  bool all = false;   // --help-all, which is --help with rare options
  std::string topic;  // of `help WORD`, if that is one word
};
CommandLine ReadCommandLine(int argc, char** argv);

// Throws an Error for a word that stands where a verb should; it names the verb that does it, or
// the nearest.
void RefuseUnknownVerb(const CLI::App& app, const std::vector<std::string>& arguments);

// Throws `error` as an Error of one line that says what to do; for unknown options it names the
// nearest one.
[[noreturn]] void RefuseArguments(const CLI::App& app, const CLI::ParseError& error);

}  // namespace nibble::cli
