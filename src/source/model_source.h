// SPDX-License-Identifier: Apache-2.0
// A model as people have it: a directory in Hugging Face's layout, or a GGUF file. Both are seen as
// documents (config.json, tokenizer.json, ...) and named tensors, so that nothing behind this
// header reads GGUF. What a GGUF file cannot say in those terms is refused.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "io/safetensors.h"

namespace nibble {

// No larger document is read: tokenizer.json of the largest known model has 35 MB.
inline constexpr uint64_t kMaxDocumentBytes = 64 << 20;

// Throws with what to do next if `model` is neither a directory nor a GGUF file.
void RequireModel(const std::string& model);
bool IsGguf(const std::string& model);
// The GGUF files of a directory by name; of a split model, the first.
std::vector<std::string> GgufModelsIn(const std::string& directory);

// The text of a document, nullopt if the model has none of this name. Of a tokenizer.json or a
// pooling.json that is not there, what stands for it (tokenizer_files.h, pooling_document.h).
std::optional<std::string> FindDocument(const std::string& model, const std::string& name,
                                        uint64_t max_bytes = kMaxDocumentBytes);
std::string GetDocument(const std::string& model, const std::string& name,
                        uint64_t max_bytes = kMaxDocumentBytes);
// What messages call it: "dir/config.json", "model.gguf: config.json".
std::string DocumentPath(const std::string& model, const std::string& name);

// The weights under the names of their files; a GGUF file's stay in its blocks (tensor/blocks.h).
std::unique_ptr<TensorStore> OpenTensors(const std::string& model);

}  // namespace nibble
