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

std::vector<int32_t> Conversation::FittingPrompt(int64_t room) {
  const int64_t context = session_.context();
  std::vector<int32_t> ids = PromptIds();
  const auto tokens = [&] { return static_cast<int64_t>(ids.size()); };
  int64_t forgotten = 0;
  while (tokens() + room > context && ForgetOldestTurn()) {
    ++forgotten;
    ids = PromptIds();
  }
  if (tokens() >= context) {
    Fail("the message comes to {} tokens, the model's context is {}; shorten it", tokens(),
         context);
  }
  if (ids.empty()) Fail("the template makes nothing of this message");
  if (forgotten > 0) {
    Note("nibble: the oldest {} turns no longer fit and are forgotten\n", forgotten);
  }
  return ids;
}

std::optional<Conversation::Answer> Conversation::Ask(const std::string& message,
                                                      const GenerateOptions& options,
                                                      TextOutput& output) {
  Json before = messages_;
  messages_.push_back({{"role", "user"}, {"content", message}});
  std::vector<int32_t> ids;
  try {
    ids = FittingPrompt(std::min(options.max_tokens, session_.context() / 8));
  } catch (const Error& error) {
    Note("nibble: {}\n", error.what());
    messages_ = std::move(before);
    return std::nullopt;
  }
  // Text is tokenized anew: what is the same as in the cache is not computed again, but for the
  // last token, whose logits are needed.
  const auto same = std::mismatch(cached_.begin(), cached_.end(), ids.begin(), ids.end() - 1);
  session_.Truncate(same.first - cached_.begin());
  const auto kept = static_cast<size_t>(session_.tokens());
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
