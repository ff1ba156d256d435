// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/cli.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "base/file.h"
#include "base/progress.h"
#include "quantize/run/round_network.h"
#include "source/hub_cache.h"

namespace nibble::cli {

CLI::App* AddVerb(CLI::App& app, Common& common, const std::string& name,
                  const std::string& description, const std::string& example) {
  CLI::App* verb = app.add_subcommand(name, description);
  verb->add_option("--threads", common.threads, "Threads; 0 = all cores")
      ->check(CLI::Range(0, 1024));
  verb->add_option("--device", common.device, "cpu or cuda:N")->capture_default_str();
  verb->add_flag("--json", common.json, "One JSON object on standard output");
  verb->footer("Example:\n  " + example);
  return verb;
}

CLI::Validator ModelName() {
  const auto resolve = [](std::string& name) -> std::string {
    name = ResolveModel(name);
    return "";
  };
  return {resolve, ""};
}

CLI::Option* AddModel(CLI::App& verb, std::string& model, const std::string& kind) {
  return verb.add_option("model", model, kind + "; or org/name from Hugging Face's cache")
      ->transform(ModelName());
}

void AddLoadBits(CLI::App& verb, int& bits) {
  verb.add_option("--load-bits", bits,
                  "Of a float model: round its weights to 4 or 8 bits while loading, with "
                  "8-bit activations; 16: bf16; 32: as they are, in fp32. Codes of GPTQ, AWQ, "
                  "compressed-tensors and MXFP4 are kept at any of them")
      ->check(CLI::IsMember({4, 8, 16, 32}))
      ->capture_default_str();
}

void AddLoading(CLI::App& verb, Loading& loading) {
  AddLoadBits(verb, loading.bits);
  verb.add_flag_callback(
      "--no-keep", [&loading] { loading.keep = false; },
      "Neither keep weights of 4 or 8 bits for the next start, in nibble/rounded of the "
      "user's cache, nor take kept ones");
}

namespace {

Network Rounded(const Network& source, const Loading& loading) {
  const auto start = std::chrono::steady_clock::now();
  const std::string& stored = source.stored_codes;
  const Recipe recipe = LoadingRecipe(loading.bits, !stored.empty());
  // A start in bf16 takes as long as reading the source does, so nothing is kept.
  KeptNetwork result = loading.keep && loading.bits < 16
                           ? RoundOrFind(source, recipe)
                           : KeptNetwork{.network = RoundNetwork(source, recipe)};
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  if (result.found) {
    Note("nibble: weights as an earlier start rounded them to {} bits (--load-bits; {})\n",
         loading.bits, result.path);
    return std::move(result.network);
  }
  std::string kept;
  if (!result.not_kept.empty()) kept = fmt::format(", not kept: {}", result.not_kept);
  if (result.not_kept.empty() && !result.path.empty()) {
    kept = fmt::format(", kept for the next start in {}", result.path);
  }
  Note("nibble: {} rounded to {} bits in {:.1f} s (--load-bits){}\n",
       stored.empty() ? "weights" : fmt::format("{}'s codes kept, the rest", stored), loading.bits,
       seconds.count(), kept);
  return std::move(result.network);
}

}  // namespace

std::unique_ptr<Model> Load(Network network, const Common& common, bool decoded,
                            const Loading& loading) {
  if (!network.tiles_refused.empty()) {
    Note("nibble: {}; it is not used, `nibble repack {}` makes a new one\n", network.tiles_refused,
         network.directory);
  }
  if (!network.packed && loading.bits < 32) network = Rounded(network, loading);
  return std::make_unique<Model>(std::move(network), MakeBackend(common.device, decoded));
}

CLI::Validator NumberBetween(double min, double max) {
  const auto check = [=](const std::string& text) -> std::string {
    double value = 0;
    if (CLI::detail::lexical_cast(text, value) && value >= min && value <= max) return "";
    return fmt::format("Value {} not in range [{} - {}]", text, min, max);
  };
  return CLI::Validator(check, fmt::format("in [{} - {}]", min, max));
}

void FlushOutput() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    Fail("standard output cannot be written ({})", SystemErrorText(errno));
  }
}

void PrintJson(const Json& json) {
  fmt::print("{}\n", json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

std::string ReadText(const std::string& path) {
  constexpr uint64_t kMaxBytes = uint64_t{1} << 30;
  if (path != "-") return ReadFile(path, kMaxBytes);
  std::string text;
  for (std::string part(1 << 16, '\0');;) {
    std::cin.read(part.data(), static_cast<std::streamsize>(part.size()));
    text.append(part, 0, static_cast<size_t>(std::cin.gcount()));
    if (text.size() > kMaxBytes) Fail("standard input: over {} bytes", kMaxBytes);
    if (!std::cin) return text;
  }
}

void ForEachLine(const std::string& path,
                 const std::function<void(const Json& line, const std::string& where)>& use) {
  std::istringstream lines(ReadText(path));
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    const std::string where = fmt::format("{}:{}", path, ++number);
    if (line.find_first_not_of(" \t\r") == line.npos) continue;
    use(ParseJson(line, where), where);
  }
}

std::string Table(std::vector<std::vector<std::string>> rows) {
  for (auto& row : rows) {
    for (std::string& cell : row) cell = Printable(cell);
  }
  std::vector<size_t> widths(rows.at(0).size());
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const bool number = &row != &rows[0] && !row[i].empty() &&
                          row[i].find_first_not_of("0123456789.+-eE %x") == std::string::npos;
      line += number ? fmt::format("{:>{}}  ", row[i], widths[i])
                     : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace nibble::cli
