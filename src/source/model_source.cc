// SPDX-License-Identifier: Apache-2.0
#include "source/model_source.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "source/gguf_source.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

// "a.gguf, b.gguf" of a directory that has no model of its own.
std::string GgufFilesIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace

bool IsGguf(const std::string& model) {
  return fs::path(model).extension() == ".gguf" && !fs::is_directory(model);
}

void RequireModel(const std::string& model) {
  if (IsGguf(model)) {
    if (!fs::exists(model)) Fail("{}: no such file", model);
    return;
  }
  if (!fs::is_directory(model)) Fail("{}: no such model directory or GGUF file", model);
  if (fs::exists(fs::path(model) / "config.json")) return;
  const std::string files = GgufFilesIn(model);
  if (!files.empty()) Fail("{}: name one of its files: {}", model, files);
}

std::string DocumentPath(const std::string& model, const std::string& name) {
  return IsGguf(model) ? model + ": " + name : model + "/" + name;
}

std::optional<std::string> FindDocument(const std::string& model, const std::string& name,
                                        uint64_t max_bytes) {
  if (!IsGguf(model)) {
    const std::string path = DocumentPath(model, name);
    if (!fs::exists(path)) return std::nullopt;
    return ReadFile(path, max_bytes);
  }
  const std::vector<GgufFile> files = OpenGgufFiles(model);
  if (name == "config.json") return GgufConfig(files).dump(2) + "\n";
  if (name == "generation_config.json") return GgufGenerationConfig(files[0]).dump(2) + "\n";
  if (name == "tokenizer_config.json") return GgufTokenizerConfig(files[0]).dump(2) + "\n";
  if (name == "tokenizer.json") return GgufTokenizer(files[0]);
  return std::nullopt;
}

std::string GetDocument(const std::string& model, const std::string& name, uint64_t max_bytes) {
  auto text = FindDocument(model, name, max_bytes);
  if (!text) Fail("{}: no such file", DocumentPath(model, name));
  return std::move(*text);
}

std::unique_ptr<TensorStore> OpenTensors(const std::string& model) {
  if (!IsGguf(model)) return std::make_unique<TensorStore>(model);
  const std::vector<GgufFile> files = OpenGgufFiles(model);
  std::vector<std::shared_ptr<const MappedFile>> mapped;
  for (const GgufFile& file : files) mapped.push_back(file.file());
  return std::make_unique<TensorStore>(model, std::move(mapped), GgufTensors(files));
}

}  // namespace nibble
