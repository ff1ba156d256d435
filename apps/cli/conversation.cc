// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/conversation.h"

#include <algorithm>

namespace nibble::cli {

Conversation::Conversation(Model& model, const Tokenizer& tokenizer,
                           std::optional<ChatTemplate> chat_template)
    : tokenizer_(tokenizer), template_(std::move(chat_template)), session_(model) {}

void Conversation::SetSystem(const std::string& content) {
  if (!messages_.empty() && messages_[0]["role"] == "system") messages_.erase(0);
  if (content.empty()) return;
  messages_.insert(messages_.begin(), Json{{"role", "system"}, {"content", content}});
}

void Conversation::Reset() {
  while (!messages_.empty() && messages_.back()["role"] != "system") {
    messages_.erase(messages_.size() - 1);
  }
}

std::vector<int32_t> Conversation::PromptIds() const {
  if (template_) return tokenizer_.Encode(template_->Render(messages_, true), false);
  std::string text;
  for (const Json& message : messages_) text += message["content"].get<std::string>() + "\n";
  return tokenizer_.Encode(text);
}

// A user's message and what follows up to the next one; the last one stays.
bool Conversation::ForgetOldestTurn() {
  const auto user = [](const Json& message) { return message["role"] == "user"; };
  const auto first = std::find_if(messages_.begin(), messages_.end(), user);
  if (first == messages_.end()) return false;
  const auto next = std::find_if(first + 1, messages_.end(), user);
  if (next == messages_.end()) return false;
  messages_.erase(first, next);
  return true;
}

std::optional<Conversation::Answer> Conversation::Ask(const std::string& message,
                                                      const GenerateOptions& options,
                                                      TextOutput& output) {
  const Json before = messages_;
  messages_.push_back({{"role", "user"}, {"content", message}});
  const int64_t context = session_.context();
  const int64_t room = std::min(options.max_tokens, context / 8);  // for the answer
  std::vector<int32_t> ids = PromptIds();
  int64_t forgotten = 0;
  while (static_cast<int64_t>(ids.size()) + room > context && ForgetOldestTurn()) {
    ++forgotten;
    ids = PromptIds();
  }
  if (static_cast<int64_t>(ids.size()) >= context || ids.empty()) {
    Note("nibble: the message comes to {} tokens, the model's context is {}; shorten it\n",
         ids.size(), context);
    messages_ = before;
    return std::nullopt;
  }
  if (forgotten > 0)
    Note("nibble: the oldest {} turns no longer fit and are forgotten\n", forgotten);
  // Text is tokenized anew: what is the same as in the cache is not computed again, but for the
  // last token, whose logits are needed.
  const auto same = std::mismatch(cached_.begin(), cached_.end(), ids.begin(), ids.end() - 1);
  const auto kept = static_cast<size_t>(same.first - cached_.begin());
  session_.Truncate(static_cast<int64_t>(kept));
  Answer answer;
  answer.prompt_tokens = static_cast<int64_t>(ids.size() - kept);
  answer.generation = Generate(session_, std::span(ids).subspan(kept), options,
                               [&](int32_t id) { return output.Push(id); });
  output.Finish();
  cached_ = std::move(ids);
  // The last token written was sampled but never fed back.
  const std::vector<int32_t>& written = answer.generation.ids;
  cached_.insert(cached_.end(), written.begin(), written.end());
  cached_.resize(static_cast<size_t>(session_.tokens()));
  messages_.push_back({{"role", "assistant"}, {"content", output.text()}});
  return answer;
}

}  // namespace nibble::cli
