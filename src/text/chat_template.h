// SPDX-License-Identifier: Apache-2.0
// A model's chat template: turns messages into the prompt the model was trained on. Templates are
// Jinja programs, from anyone; this is a bounded interpreter of the subset they use (jinja_*.h),
// checked byte for byte against Python's jinja2 as transformers sets it up
// (tests/golden/chat_templates.py). A parsed template is immutable, and several threads may Render.
//
// A template that cannot be parsed or fails throws nibble::Error "{where}: line N: ..."; where it
// calls raise_exception, its own message alone.
#pragma once

#include <ctime>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"

namespace nibble {

namespace jinja {
struct Node;
}

struct ChatMessage {
  std::string role, content;
};

class ChatTemplate {
 public:
  static ChatTemplate Parse(std::string source, const std::string& where);
  // The template of a model directory: chat_template.jinja, else tokenizer_config.json's
  // chat_template (a string, or a list of {name, template}, of which "default"), else that of
  // chat_template.json. nullopt if none. With tools the one named "tool_use" is rendered, from that
  // list or additional_chat_templates. bos_token, eos_token, ... of tokenizer_config.json, or else
  // of special_tokens_map.json, become variables.
  static std::optional<ChatTemplate> Load(const std::string& model_dir);
  // Stands for a template that Load refused with `problem`: Render throws that message, and
  // source() is empty.
  static ChatTemplate Unusable(std::string problem);

  // `extra` adds variables: tools, documents (none if absent), enable_thinking, bos_token, ...
  std::string Render(const Json& messages, bool add_generation_prompt,
                     const Json& extra = Json::object()) const;
  std::string Render(const std::vector<ChatMessage>& messages, bool add_generation_prompt,
                     const Json& extra = Json::object()) const;

  const std::string& source() const { return source_; }
  const std::string& tool_source() const { return tool_source_; }  // empty: it is source()
  // bos_token, ..., as far as the model's files name them.
  const Json& special_tokens() const { return special_tokens_; }

  // Sets the time that strftime_now formats; without it, that is the local time of each Render.
  void SetTime(const std::tm& time) { time_ = time; }

 private:
  ChatTemplate() = default;
  std::string where_, source_, tool_source_, problem_;
  std::shared_ptr<const jinja::Node> root_, tool_root_;
  Json special_tokens_ = Json::object();
  std::optional<std::tm> time_;
};

}  // namespace nibble
