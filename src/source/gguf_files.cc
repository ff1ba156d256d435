// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "source/gguf_source.h"

namespace nibble {
namespace {

constexpr int64_t kMaxSplits = 1 << 10;

}  // namespace

std::vector<GgufFile> OpenGgufFiles(const std::string& path) {
  std::vector<GgufFile> files;
  files.emplace_back(path);
  const int64_t splits = files[0].FindInteger("split.count").value_or(1);
  if (splits <= 1) return files;
  const std::string first = fmt::format("-00001-of-{:05}.gguf", splits);
  if (splits > kMaxSplits || !path.ends_with(first)) {
    Fail("{}: one of {} files; name the first, which ends with {}", path, splits, first);
  }
  for (int64_t i = 2; i <= splits; ++i) {
    files.emplace_back(path.substr(0, path.size() - first.size()) +
                       fmt::format("-{:05}-of-{:05}.gguf", i, splits));
    if (files.back().FindInteger("split.no").value_or(-1) != i - 1) {
      Fail("{}: split.no is not {}", files.back().path(), i - 1);
    }
  }
  return files;
}

const Tensor* FindGgufTensor(const std::vector<GgufFile>& files, const std::string& name) {
  for (const GgufFile& file : files) {
    const auto it = file.tensors().find(name);
    if (it != file.tensors().end()) return &it->second;
  }
  return nullptr;
}

std::map<std::string, Tensor> GgufTensors(const std::vector<GgufFile>& files) {
  std::map<std::string, Tensor> tensors;
  for (const GgufFile& file : files) {
    for (const auto& [name, tensor] : file.tensors()) {
      if (tensors.emplace(name, tensor).second) continue;
      Fail("{}: tensor {} stands in two files", file.path(), name);
    }
  }
  return tensors;
}

}  // namespace nibble
