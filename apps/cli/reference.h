// SPDX-License-Identifier: Apache-2.0
// The options as the parser knows them, for people and shells: short help, topics, a manual page
// and words to complete.
#pragma once

#include <string>
#include <string_view>

#include "apps/cli/cli.h"

namespace nibble::cli {

// Fields of recipes that many change.
inline constexpr const char* kCommonGroup = "Changes of the recipe (16 bits = not quantized)";
// The group of options that --help leaves out. --help-all, topics, pages and shells have them.
inline constexpr const char* kRareGroup = "More changes of the recipe (16 bits = not quantized)";

// Takes options of kRareGroup out of every verb's help, whose footer then says where they are.
void HideRareOptions(CLI::App& app);

// The text of `nibble help TOPIC`; empty for a word that is no topic. "topics" lists them.
std::string TopicText(const CLI::App& app, std::string_view topic);

// The manual page nibble(1), in troff's man macros.
std::string ManualPage(const CLI::App& app);

// A script for "bash", "zsh" or "fish" that completes verbs, options and their values.
std::string CompletionScript(const CLI::App& app, std::string_view shell);

void AddCompletion(CLI::App& app, Common& common, Run& run);

}  // namespace nibble::cli
