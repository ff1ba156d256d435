// SPDX-License-Identifier: Apache-2.0
#include "apps/cli/conversation.h"

#include <algorithm>

#include "chat/render_messages.h"

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

std::vector<int32_t> Conversation::PromptIds(const Json& messages) const {
  if (template_) {
    const std::string text = RenderMessages(*template_, messages, true, Json::object());
    return tokenizer_.Encode(text, false);
  }
  std::string text;
  for (const Json& message : messages) text += message["content"].get<std::string>() + "\n";
  return tokenizer_.Encode(text);
}

namespace {

bool IsUsers(const Json& message) {
  return message["role"] == "user";
}

// The messages in front of the first user's message, and those of the last `turns` turns: each is a
// user's message and what follows up to the next one.
Json LastTurns(const Json& messages, int64_t turns) {
  auto from = messages.end();
  while (from != messages.begin() && turns > 0) turns -= IsUsers(*--from) ? 1 : 0;
  Json result = Json::array();
  for (auto it = messages.begin(); it != messages.end() && !IsUsers(*it); ++it) {
    result.push_back(*it);
  }
  for (auto it = from; it != messages.end(); ++it) result.push_back(*it);
  return result;
}

// The last turns that have so many bytes together, one at least.
int64_t TurnsOfBytes(const Json& messages, size_t bytes) {
  int64_t turns = 0;
  size_t sum = 0;
  for (auto it = messages.end(); it != messages.begin();) {
    sum += (*--it)["content"].get_ref<const std::string&>().size();
    if (sum > bytes) break;
    turns += IsUsers(*it) ? 1 : 0;
  }
  return std::max<int64_t>(turns, 1);
}

}  // namespace

// Makes some prompts of about the context's length, however long the history is: a token has a few
// bytes, and with more turns a prompt only grows.
std::vector<int32_t> Conversation::FittingPrompt(int64_t room) {
  constexpr size_t kBytesPerToken = 16;
  const int64_t context = session_.context(), all = std::ranges::count_if(messages_, IsUsers);
  int64_t kept = TurnsOfBytes(messages_, kBytesPerToken * static_cast<size_t>(context));
  std::vector<int32_t> ids = PromptIds(LastTurns(messages_, kept));
  const auto fits = [&] { return static_cast<int64_t>(ids.size()) + room <= context; };
  if (kept > 1 && !fits()) {
    int64_t low = 1, high = kept;  // low turns are kept if no more fit
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      ids = PromptIds(LastTurns(messages_, middle));
      (fits() ? low : high) = middle;
    }
    kept = low;
    ids = PromptIds(LastTurns(messages_, kept));
  }
  if (static_cast<int64_t>(ids.size()) >= context) {
    Fail("the message comes to {} tokens, the model's context is {}; shorten it", ids.size(),
         context);
  }
  if (ids.empty()) Fail("the template makes nothing of this message");
  if (kept < all) {
    messages_ = LastTurns(messages_, kept);
    Note("nibble: the oldest {} turns no longer fit and are forgotten\n", all - kept);
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
  // Text is tokenized anew. Tokens that are the same as in the cache are not computed again, except
  // the last one, whose logits are needed.
  const auto same = std::mismatch(cached_.begin(), cached_.end(), ids.begin(), ids.end() - 1);
  session_.Truncate(same.first - cached_.begin());
  const auto kept = static_cast<size_t>(session_.tokens());
  Answer answer;
  answer.prompt_tokens = static_cast<int64_t>(ids.size() - kept);
  answer.generation = Generate(session_, std::span(ids).subspan(kept), options,
                               [&](int32_t id) { return output.Push(id); });
  output.Finish();
  cached_ = std::move(ids);
  // The last token written was sampled but never fed back, so the cache lacks it.
  const std::vector<int32_t>& written = answer.generation.ids;
  cached_.insert(cached_.end(), written.begin(), written.end());
  cached_.resize(static_cast<size_t>(session_.tokens()));
  messages_.push_back({{"role", "assistant"}, {"content", output.text()}});
  return answer;
}

}  // namespace nibble::cli
