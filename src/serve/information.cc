// SPDX-License-Identifier: Apache-2.0
// GET /health, /v1/models, /props: the server's state and its model. Fields beyond OpenAI's are
// vLLM's and llama-server's.
#include <fmt/chrono.h>

#include <cstring>

#include "serve/call.h"

namespace nibble::serve {

void Health(Call& call) {
  call.Reply(200, {{"status", "ok"}});
}

namespace {

// The model's description with the fields of OpenAI and of Anthropic, whose clients ask the same
// route.
Json ModelJson(const Call& call) {
  const std::string& name = call.service.options().name;
  return {{"id", name},
          {"object", "model"},
          {"created", call.service.created()},
          {"owned_by", "nibble"},
          {"max_model_len", call.service.scheduler().context()},
          {"type", "model"},
          {"display_name", name},
          {"created_at", fmt::format("{:%FT%TZ}", fmt::gmtime(call.service.created()))}};
}

}  // namespace

// GET /v1/models/NAME.
void OneModel(Call& call) {
  RequireModelName(call, call.exchange->request().path.substr(std::strlen("/v1/models/")));
  call.Reply(200, ModelJson(call));
}

void Models(Call& call) {
  const Json model = ModelJson(call);
  // Codex looks for `models` of its own kind, with all of its instructions, and takes its own where
  // there are none; any others are an error to it.
  call.Reply(200, {{"object", "list"},
                   {"data", {model}},
                   {"models", Json::array()},
                   {"has_more", false},
                   {"first_id", model["id"]},
                   {"last_id", model["id"]}});
}

void Props(Call& call) {
  Service& service = call.service;
  const Sampling s = service.generation_config().ForAnswers();
  const Json parameters = {
      {"temperature", s.temperature}, {"top_p", s.top_p}, {"top_k", s.top_k}, {"min_p", s.min_p}};
  const auto& chat_template = service.chat_template();
  call.Reply(200, {{"default_generation_settings",
                    {{"n_ctx", service.scheduler().context()}, {"params", parameters}}},
                   {"total_slots", service.scheduler().options().max_batch},
                   {"model_path", service.options().name},
                   {"chat_template", chat_template ? Json(chat_template->source()) : Json("")},
                   {"tool_calls", CallFormatName(service.answer_format().calls)},
                   {"modalities", {{"vision", false}, {"audio", false}}},
                   {"backend", service.model().backend().Name()}});
}

}  // namespace nibble::serve
