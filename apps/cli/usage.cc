// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/usage.h"

#include <algorithm>
#include <numeric>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace nibble::cli {
namespace {

// Other programs' words for verbs.
constexpr std::pair<std::string_view, const char*> kOtherWords[] = {
    {"run", "chat"},          {"talk", "chat"},    {"ask", "generate"},
    {"complete", "generate"}, {"server", "serve"}, {"api", "serve"},
    {"show", "inspect"},      {"info", "inspect"}, {"convert", "quantize"},
    {"compress", "quantize"}, {"ppl", "eval ppl"}, {"perplexity", "eval ppl"}};

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

std::string Nearest(const std::string& word, const std::vector<std::string>& words) {
  return *std::ranges::min_element(words, {},
                                   [&](const std::string& one) { return Edits(word, one); });
}

std::string NearestVerb(const std::string& word, const std::vector<const CLI::App*>& verbs) {
  const auto* other =
      std::ranges::find(kOtherWords, word, [](const auto& pair) { return pair.first; });
  if (other != std::end(kOtherWords)) return other->second;
  std::vector<std::string> names;
  for (const CLI::App* verb : verbs) names.push_back(verb->get_name());
  return Nearest(word, names);
}

// The verb that was called, and its name as one types it.
const CLI::App& Called(const CLI::App& app, std::string* name) {
  const CLI::App* at = &app;
  *name = app.get_name();
  while (!at->get_subcommands().empty()) {
    at = at->get_subcommands()[0];
    *name += " " + at->get_name();
  }
  return *at;
}

}  // namespace

CommandLine ReadCommandLine(int argc, char** argv) {
  CommandLine line = {.words = {argv + std::min(argc, 1), argv + argc}};
  std::vector<std::string>& words = line.words;
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    if (words.size() == 1) line.topic = words[0];
    words.emplace_back("--help");
  }
  for (std::string& word : words) {
    if (word != "--help-all") continue;
    line.all = true;
    word = "--help";
  }
  return line;
}

void RefuseUnknownVerb(const CLI::App& app, const std::vector<std::string>& arguments) {
  const CLI::App* at = &app;
  for (const std::string& word : arguments) {
    const auto verbs = at->get_subcommands([](const CLI::App*) { return true; });
    if (verbs.empty() || word.starts_with('-')) return;
    const auto known = std::ranges::find(verbs, word, &CLI::App::get_name);
    if (known == verbs.end()) {
      FailUsage("there is no verb \"{}\"; did you mean {}? --help lists all", Printable(word),
                NearestVerb(word, verbs));
    }
    at = *known;
  }
}

void RefuseArguments(const CLI::App& app, const CLI::ParseError& error) {
  std::string name;
  const CLI::App& verb = Called(app, &name);
  const std::vector<std::string> extra = verb.remaining();
  if (extra.empty()) FailUsage("{}; {} --help says more", error.what(), name);
  const std::string word = extra[0].substr(0, extra[0].find('='));
  if (!word.starts_with('-')) {
    FailUsage("\"{}\" is more than {} takes; {} --help lists what it takes", Printable(word), name,
              name);
  }
  std::vector<std::string> options;
  for (const CLI::Option* option : verb.get_options()) {
    for (const std::string& one : option->get_lnames()) options.push_back("--" + one);
    for (const std::string& one : option->get_snames()) options.push_back("-" + one);
  }
  FailUsage("{} has no option {}; did you mean {}? {} --help lists all", name, Printable(word),
            Nearest(word, options), name);
}

}  // namespace nibble::cli
