// SPDX-License-Identifier: Apache-2.0
// A GGUF model's files and, in Hugging Face's terms, its documents. Keys: ggml's docs/gguf.md.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/gguf.h"
#include "source/unread_keys.h"

namespace nibble {

// A file and its siblings, if it is the first of a split model (NAME-00001-of-00003.gguf).
std::vector<GgufFile> OpenGgufFiles(const std::string& path);

// The files as config.json, generation_config.json and tokenizer_config.json.
Json GgufConfig(const std::vector<GgufFile>& files);
Json GgufGenerationConfig(const GgufFile& file);
Json GgufTokenizerConfig(const GgufFile& file);
// The text of tokenizer.json.
std::string GgufTokenizer(const GgufFile& file);
// Finds keys that none of the functions above reads.
void FindUnreadGgufKeys(const std::vector<GgufFile>& files, UnreadKeys& found);

// The tensors of all files; no name may occur twice.
std::map<std::string, Tensor> GgufTensors(const std::vector<GgufFile>& files);
// The named tensor of any file; nullptr if absent.
const Tensor* FindGgufTensor(const std::vector<GgufFile>& files, const std::string& name);

}  // namespace nibble
