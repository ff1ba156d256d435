// SPDX-License-Identifier: Apache-2.0
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <memory>

#include "apps/cli/cli.h"
#include "apps/cli/text_output.h"
#include "base/interrupt.h"
#include "engine/generation_config.h"
#include "text/chat_template.h"

namespace nibble::cli {
namespace {

struct Arguments {
  std::string model, system;
  bool no_template = false;
  int load_bits = 8;
  GenerateOptions options;
};

// The conversation so far and the cache that holds a prefix of it.
class Conversation {
 public:
  Conversation(Model& model, const Tokenizer& tokenizer, std::optional<ChatTemplate> chat_template)
      : model_(model), tokenizer_(tokenizer), template_(std::move(chat_template)) {}

  void Add(const std::string& role, const std::string& content) {
    messages_.push_back({{"role", role}, {"content", content}});
  }

  // Writes the assistant's turn and returns what was generated.
  Generation Answer(const GenerateOptions& options, TextOutput& output, int64_t& prompt_tokens) {
    const std::vector<int32_t> ids = PromptIds();
    // Most templates only append; what is cached already is not computed again.
    const bool extends = session_ && cached_.size() < ids.size() &&
                         std::equal(cached_.begin(), cached_.end(), ids.begin());
    if (!extends) {
      session_ = std::make_unique<Session>(model_);
      cached_.clear();
    }
    const auto fresh = std::span(ids).subspan(cached_.size());
    prompt_tokens = static_cast<int64_t>(fresh.size());
    Generation g = Generate(*session_, fresh, options, [&](int32_t id) { output.Push(id); });
    output.Finish();
    cached_ = ids;
    // The last token written was sampled but never fed back.
    cached_.insert(cached_.end(), g.ids.begin(), g.ids.end());
    cached_.resize(static_cast<size_t>(session_->tokens()));
    Add("assistant", output.text());
    return g;
  }

 private:
  std::vector<int32_t> PromptIds() const {
    if (template_) return tokenizer_.Encode(template_->Render(messages_, true), false);
    std::string text;
    for (const Json& message : messages_) text += message["content"].get<std::string>() + "\n";
    return tokenizer_.Encode(text);
  }

  Model& model_;
  const Tokenizer& tokenizer_;
  std::optional<ChatTemplate> template_;
  Json messages_ = Json::array();
  std::unique_ptr<Session> session_;
  std::vector<int32_t> cached_;  // ids in the session's cache
};

std::optional<ChatTemplate> Template(const Arguments& a) {
  if (a.no_template) return std::nullopt;
  auto chat_template = ChatTemplate::Load(a.model);
  if (!chat_template) {
    FailUsage("{} has no chat template; pass --no-template to continue plain text", a.model);
  }
  return chat_template;
}

void RunChat(Arguments& a, const Common& common) {
  CheckSampling(a.options.sampling);
  const Tokenizer tokenizer = Tokenizer::Load(a.model);
  auto chat_template = Template(a);
  const auto model = Load(a.model, common, false, a.load_bits);
  a.options.stop_ids = LoadGenerationConfig(a.model, model->network().config_json).stop_ids;
  Conversation conversation(*model, tokenizer, std::move(chat_template));
  if (!a.system.empty()) conversation.Add("system", a.system);
  const bool terminal = isatty(STDIN_FILENO) != 0;
  if (terminal) Note("An empty line or Ctrl-D ends the conversation.\n");
  std::string line;
  while (!Interrupted()) {
    if (terminal) Note("> ");
    if (!std::getline(std::cin, line) || line.empty()) break;
    conversation.Add("user", line);
    TextOutput output(&tokenizer, !common.json);
    int64_t prompt_tokens = 0;
    const Generation g = conversation.Answer(a.options, output, prompt_tokens);
    if (common.json) {
      PrintJson({{"text", output.text()},
                 {"token_ids", g.ids},
                 {"prompt_tokens", prompt_tokens},
                 {"completion_tokens", g.ids.size()}});
    } else {
      PrintSpeed(prompt_tokens, g);
    }
  }
}

}  // namespace

void AddChat(CLI::App& app, Common& common, Run& run) {
  const auto a = std::make_shared<Arguments>();
  CLI::App* verb = AddVerb(app, common, "chat", "Talk to a model, one line a turn",
                           "nibble chat llama-w4a4kv4 --system \"Answer briefly.\"");
  AddModel(*verb, a->model)->required();
  verb->add_option("--system", a->system, "System message");
  verb->add_flag("--no-template", a->no_template,
                 "Plain text instead of the model's chat template");
  AddLoadBits(*verb, a->load_bits);
  AddSampling(*verb, a->options);
  verb->callback([a, &common, &run] { run = [a, &common] { RunChat(*a, common); }; });
}

}  // namespace nibble::cli
