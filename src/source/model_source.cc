// SPDX-License-Identifier: Apache-2.0
#include "source/model_source.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/file.h"
#include "source/gguf_source.h"
#include "source/hub_cache.h"
#include "source/pooling_document.h"
#include "source/tokenizer_files.h"

namespace nibble {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kTokenizer = "tokenizer.json";
// transformers keeps templates with a name in a folder; checkpoints of Nibble are flat.
constexpr std::string_view kToolTemplate = "tool_use.jinja",
                           kToolFolder = "additional_chat_templates/";

// PyTorch's files may run code when they are read.
bool IsPickle(const fs::path& path) {
  const std::string extension = path.extension();
  return extension == ".bin" || extension == ".pt" || extension == ".pth";
}

[[noreturn]] void FailPickle(const fs::path& file, const std::string& model) {
  Fail(
      "{}: a PyTorch pickle, which is not read; in Python, transformers' "
      "AutoModelForCausalLM.from_pretrained(\"{}\").save_pretrained(\"OUT\") writes safetensors",
      file.string(), model);
}

std::optional<std::string> TextOf(const std::optional<Json>& json) {
  return json ? std::optional(json->dump(2) + "\n") : std::nullopt;
}

void RequireWeights(const std::string& model) {
  std::optional<fs::path> pickle;
  for (const auto& entry : fs::directory_iterator(model)) {
    if (entry.path().extension() == ".safetensors") return;
    if (IsPickle(entry.path())) pickle = entry.path();
  }
  if (pickle) FailPickle(*pickle, model);
}

// Refuses names by which other programs fetch models.
void RefuseOtherNames(const std::string& model) {
  if (const size_t scheme = model.find("://"); scheme != model.npos) {
    constexpr std::string_view kHub = "huggingface.co/";
    const size_t hub = model.find(kHub);
    std::string name = hub == model.npos ? "OWNER/NAME" : model.substr(hub + kHub.size());
    const size_t owner = name.find('/');
    if (owner != name.npos) name = name.substr(0, name.find('/', owner + 1));
    Fail("{}: models are not fetched; `hf download {}` gets one of Hugging Face's, then name it so",
         model, name);
  }
  if (model.find(':') != model.npos && model.find('/') == model.npos) {
    Fail(
        "{}: no such file, and Ollama's names are not known; name a directory, a GGUF file or a "
        "model of Hugging Face's (OWNER/NAME)",
        model);
  }
}

}  // namespace

bool IsGguf(const std::string& model) {
  return fs::path(model).extension() == ".gguf" && !fs::is_directory(model);
}

std::vector<std::string> GgufModelsIn(const std::string& directory) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename();
    const size_t split = name.find("-of-");
    const bool later = split != name.npos && !name.substr(0, split).ends_with("-00001");
    if (entry.path().extension() == ".gguf" && !later) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

void RequireModel(const std::string& model) {
  if (fs::is_directory(model)) {
    const std::vector<std::string> files = GgufModelsIn(model);
    if (fs::exists(fs::path(model) / "config.json")) {
      RequireWeights(model);
    } else if (!files.empty()) {
      Fail("{}: name one of its files: {}", model, fmt::join(files, ", "));
    } else {
      Fail("{}: no model: neither config.json nor a GGUF file is in this directory", model);
    }
  } else if (!fs::exists(model)) {
    RefuseOtherNames(model);
    if (IsGguf(model) || !IsHubName(model)) Fail("{}: no such model directory or GGUF file", model);
    Fail("{}: no such path, nor a model in {}; `hf download {}` gets it", model, HubCache(), model);
  } else if (IsPickle(model)) {
    FailPickle(model, fs::path(model).parent_path());
  } else if (!IsGguf(model)) {
    Fail("{}: not a GGUF file; of a Hugging Face checkpoint, name the directory", model);
  }
}

std::string DocumentPath(const std::string& model, const std::string& name) {
  if (IsGguf(model)) return model + ": " + name;
  const std::string path = model + "/" + name;
  if (fs::exists(path)) return path;
  if (name == kToolTemplate) return fmt::format("{}/{}{}", model, kToolFolder, name);
  return name == kTokenizer ? FindTokenizerFile(model).value_or(path) : path;
}

std::optional<std::string> FindDocument(const std::string& model, const std::string& name,
                                        uint64_t max_bytes) {
  if (!IsGguf(model)) {
    const bool stands_for =
        name == kTokenizer && !fs::exists(fs::path(model) / std::string(kTokenizer));
    const auto file = stands_for ? FindTokenizerFile(model) : std::nullopt;
    if (file) return TokenizerFileDocument(model, *file);
    const std::string path = DocumentPath(model, name);
    if (fs::exists(path)) return ReadFile(path, max_bytes);
    return name == kPoolingName ? TextOf(FindPooling(model)) : std::nullopt;
  }
  const std::vector<GgufFile> files = OpenGgufFiles(model);
  if (name == "config.json") return GgufConfig(files).dump(2) + "\n";
  if (name == "generation_config.json") return GgufGenerationConfig(files[0]).dump(2) + "\n";
  if (name == "tokenizer_config.json") return GgufTokenizerConfig(files[0]).dump(2) + "\n";
  if (name == kTokenizer) return GgufTokenizer(files[0]);
  if (name == kPoolingName) return TextOf(FindGgufPooling(files[0]));
  return std::nullopt;
}

std::string GetDocument(const std::string& model, const std::string& name, uint64_t max_bytes) {
  auto text = FindDocument(model, name, max_bytes);
  if (!text) {
    RequireModel(model);  // it says more about a path that is no model
    Fail("{}: no such file", DocumentPath(model, name));
  }
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
