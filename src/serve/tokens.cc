// SPDX-License-Identifier: Apache-2.0
// POST /tokenize and /detokenize, GET /tokenizer_info, with the fields of vLLM and of llama-server.
#include "chat/messages.h"
#include "serve/chat_turn.h"

namespace nibble::serve {

void Tokenize(Call& call) {
  const Service& service = call.service;
  const Tokenizer& tokenizer = service.tokenizer();
  const Json& body = call.body;
  std::vector<int32_t> ids;
  if (const auto messages = JsonFind<Json>(body, "messages", "body")) {
    ChatInput input;
    input.messages = TemplateMessages(*messages);
    input.add_generation_prompt =
        JsonFind<bool>(body, "add_generation_prompt", "body").value_or(true);
    ids = tokenizer.Encode(RenderChat(service, input), false);
  } else {
    const bool llama = body.contains("content");  // llama-server's name, without special tokens
    const char* field = llama ? "content" : "prompt";
    const bool special =
        JsonFind<bool>(body, llama ? "add_special" : "add_special_tokens", "body").value_or(!llama);
    ids = tokenizer.Encode(JsonGet<std::string>(body, field, "body"), special);
  }
  Json answer = {{"count", ids.size()},
                 {"max_model_len", call.service.scheduler().context()},
                 {"tokens", ids}};
  if (JsonFind<bool>(body, "with_pieces", "body").value_or(false)) {
    answer["tokens"] = Json::array();
    for (const int32_t id : ids) {
      answer["tokens"].push_back({{"id", id}, {"piece", TokenText(tokenizer, id)}});
    }
  }
  call.Reply(200, answer);
}

void Detokenize(Call& call) {
  const auto ids = JsonGet<std::vector<int32_t>>(call.body, "tokens", "body");
  for (const int32_t id : ids) {
    if (id < 0 || id >= call.service.model().config().vocab_size) {
      BadField("tokens", "there is no token {}", id);
    }
  }
  const std::string text = call.service.tokenizer().Decode(ids, false);
  call.Reply(200, {{"prompt", text}, {"content", text}});
}

void TokenizerInfo(Call& call) {
  const Service& service = call.service;
  const Tokenizer& tokenizer = service.tokenizer();
  const auto& chat_template = service.chat_template();
  const auto token = [&](const std::string& name) -> Json {
    return chat_template ? chat_template->special_tokens().value(name, Json()) : Json();
  };
  Json eos = token("eos_token");
  const auto& stop_ids = service.generation_config().stop_ids;
  if (eos.is_null() && !stop_ids.empty()) eos = tokenizer.TokenText(stop_ids[0]);
  call.Reply(200, {{"eos_token", eos},
                   {"bos_token", token("bos_token")},
                   {"pad_token", token("pad_token")},
                   {"chat_template", chat_template ? Json(chat_template->source()) : Json()}});
}

}  // namespace nibble::serve
