// SPDX-License-Identifier: Apache-2.0
// Keys of a model's files that nothing reads. Tables say of each known one whether answers depend
// on it, and with which values they do not; what no table has is told by name, so that nobody has
// to guess what was left alone.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace nibble {

// What it would mean to go on without a key.
enum class Effect {
  kNone,     // nothing for the text that a model writes
  kAnswers,  // answers may be others; one line says so
  kRefused   // another network
};

struct KeyRule {
  std::string_view keys;  // separated by spaces; "name*" is any that begins so
  Effect effect = Effect::kNone;
  // Words for values with which the key does nothing: "false", "1"; of a list, its only entry.
  std::string_view neutral = {};
};

// As "config.json: clip_qkv = 8".
struct UnreadKeys {
  std::vector<std::string> refused, answers, unknown;
};

// Whether `words`, separated by spaces, have this one.
bool HasWord(std::string_view words, std::string_view word);

// Puts a key where the first rule that has it wants it, or with the unknown ones. Null, an empty
// list and an empty object say nothing.
void JudgeKey(std::string_view key, const Json& value, std::span<const KeyRule> rules,
              const std::string& document, UnreadKeys& found);

// Of generation_config.json and tokenizer_config.json, or of a GGUF file.
void FindUnreadDocumentKeys(const std::string& model, UnreadKeys& found);

}  // namespace nibble
