// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/cli/text_output.h"
#include "engine/session.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace nibble::cli {

// The messages of a conversation, and a cache that holds a prefix of their tokens.
class Conversation {
 public:
  // Without a template, messages are lines of plain text.
  Conversation(Model& model, const Tokenizer& tokenizer, std::optional<ChatTemplate> chat_template);

  const Json& messages() const { return messages_; }  // [{"role": ..., "content": ...}]
  void SetMessages(Json messages) { messages_ = std::move(messages); }
  void SetSystem(const std::string& content);  // "" for none
  void Reset();                                // keeps the system message

  // Writes the assistant's turn. Where the history leaves no room for an answer, the oldest turns
  // are forgotten, which a line says. If the message alone does not fit or the template refuses it,
  // a line says so, the message is not added and nothing is returned.
  struct Answer {
    Generation generation;
    int64_t prompt_tokens = 0;  // tokens that were not cached
  };
  std::optional<Answer> Ask(const std::string& message, const GenerateOptions& options,
                            TextOutput& output);

  const Tokenizer& tokenizer() const { return tokenizer_; }
  int64_t tokens() const { return session_.tokens(); }  // in the cache
  const KvCache& cache() const { return session_.cache(); }

 private:
  std::vector<int32_t> PromptIds(const Json& messages) const;
  // PromptIds of messages_ after as few forgotten turns as leave `room` tokens; throws if the last
  // turn alone does not fit.
  std::vector<int32_t> FittingPrompt(int64_t room);

  const Tokenizer& tokenizer_;
  std::optional<ChatTemplate> template_;
  Json messages_ = Json::array();
  Session session_;
  std::vector<int32_t> cached_;  // ids in the session's cache
};

}  // namespace nibble::cli
