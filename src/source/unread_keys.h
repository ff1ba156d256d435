// SPDX-License-Identifier: Apache-2.0
// Keys of a model's files that nothing reads. Tables say of each known key whether answers depend
// on it, and with which values they do not. Keys in no table are told by name, so that nobody has
// to guess which ones were left alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace nibble {

// The effect of going on without a key.
enum class Effect {
  kNone,     // no effect on the text that a model writes
  kAnswers,  // answers may differ; one line says so
  kRefused   // the network would be another one
};

struct KeyRule {
  std::string_view keys;  // separated by spaces; "name*" is any that begins so
  Effect effect = Effect::kNone;
  // Words for values with which the key does nothing: "false", "1"; of a list, its only entry.
  std::string_view neutral = {};
};

// Keys found, in the form "config.json: clip_qkv = 8".
struct UnreadKeys {
  std::vector<std::string> refused, answers, unknown;
};

// Returns whether `word` is one of `words`, which spaces separate.
bool HasWord(std::string_view words, std::string_view word);

// Adds a key to the list that the first rule with its name demands, or to the unknown ones. Null,
// an empty list and an empty object are skipped.
void JudgeKey(std::string_view key, const Json& value, std::span<const KeyRule> rules,
              const std::string& document, UnreadKeys& found);

// Finds unread keys of generation_config.json and tokenizer_config.json, or of a GGUF file.
void FindUnreadDocumentKeys(const std::string& model, UnreadKeys& found);

}  // namespace nibble
