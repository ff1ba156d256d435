// SPDX-License-Identifier: Apache-2.0
// A model as people have it: a directory in Hugging Face's layout, or a GGUF file. Both are seen as
// documents (config.json, tokenizer.json, ...) and named tensors, so that nothing behind this
// header reads GGUF. A GGUF file that does not fit these terms is refused.
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

// Throws if `model` is neither a directory nor a GGUF file; the message says what to do next.
void RequireModel(const std::string& model);
bool IsGguf(const std::string& model);
// The GGUF files of a directory in the order of their names; of a split model only the first file.
std::vector<std::string> GgufModelsIn(const std::string& directory);

// The text of a document, nullopt if the model has none of this name. A missing tokenizer.json or
// pooling.json is made from other files (tokenizer_files.h, pooling_document.h).
std::optional<std::string> FindDocument(const std::string& model, const std::string& name,
                                        uint64_t max_bytes = kMaxDocumentBytes);
std::string GetDocument(const std::string& model, const std::string& name,
                        uint64_t max_bytes = kMaxDocumentBytes);
// The document's name in messages: "dir/config.json", "model.gguf: config.json".
std::string DocumentPath(const std::string& model, const std::string& name);

// The weights under the names of their files; a GGUF file's stay in its blocks (tensor/blocks.h).
std::unique_ptr<TensorStore> OpenTensors(const std::string& model);

}  // namespace nibble
