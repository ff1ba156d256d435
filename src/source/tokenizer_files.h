// SPDX-License-Identifier: Apache-2.0
// Tokenizers of model directories without tokenizer.json: a SentencePiece model (tokenizer.model),
// a file of ranks as tiktoken has them (tokenizer.model, NAME.tiktoken), or GPT-2's vocab.json and
// merges.txt. The tokens around a text and the special tokens come from tokenizer_config.json,
// where it has them.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "source/tokenizer_config.h"
#include "source/tokenizer_document.h"

namespace nibble {

// The tokenizer's file in a directory; nothing if there is none.
std::optional<std::string> FindTokenizerFile(const std::string& directory);
// The tokenizer.json that stands for the file `path` of `directory`.
std::string TokenizerFileDocument(const std::string& directory, const std::string& path);

// Makes the document from the bytes of a file, which `where` names in errors.
std::string SentencePieceFileDocument(std::string_view bytes, const std::string& where,
                                      const TokenizerConfig& config);
// `family`: model_type of config.json.
std::string RankFileDocument(std::string_view text, const std::string& where,
                             const std::string& family, const TokenizerConfig& config);
bool IsRankFile(std::string_view bytes);
// `where`: vocab.json, beside which merges.txt lies.
std::string MergesFileDocument(const std::string& vocabulary, const std::string& where,
                               const std::string& family, const TokenizerConfig& config);

}  // namespace nibble
