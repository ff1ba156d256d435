// SPDX-License-Identifier: Apache-2.0
// One HTTP request on its way to its answer, and the routes.
#pragma once

#include <chrono>
#include <span>

#include "serve/service.h"

namespace nibble::serve {

struct Usage {
  int64_t prompt = 0, cached = 0, written = 0, reasoning = 0;  // tokens
};

struct Call : std::enable_shared_from_this<Call> {
  Call(Service& s, std::shared_ptr<http::Exchange> e) : service(s), exchange(std::move(e)) {}

  // Sends a whole answer and writes the request's line of the log.
  void Reply(int status, const Json& json);
  void ReplyText(int status, std::string_view type, std::string text, http::Headers extra = {});
  void ReplyError(const ApiError& error);
  // Writes the line of the log alone, for streams.
  void Log(int status, const Usage& usage = {});

  Service& service;
  const std::shared_ptr<http::Exchange> exchange;
  Dialect dialect = Dialect::kOpenAi;
  std::string client;  // whose requests take turns with others'
  size_t key = 0;      // of ServiceOptions::keys
  Json body;
  const std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
};

// An id such as "chatcmpl-4f...": `prefix` and 24 random digits.
std::string NewId(const char* prefix);
// The text of a token that stands alone; U+FFFD if the token is a piece of a character.
std::string TokenText(const Tokenizer& tokenizer, int32_t id);
// JSON for the wire: texts that are not UTF-8 cannot break it.
std::string Dump(const Json& json);
// Throws unless the model's name, where `body` has one, is this server's.
void RequireModel(const Call& call);
void RequireModelName(const Call& call, const std::string& name);

// Routes, each in the file of its name.
void Page(Call& call);
void Health(Call& call);
void Models(Call& call);
void OneModel(Call& call);
void Props(Call& call);
void Metrics(Call& call);
void TokenizerInfo(Call& call);
void Tokenize(Call& call);
void Detokenize(Call& call);
void Completions(Call& call);
void ChatCompletions(Call& call);
void Responses(Call& call);
void Messages(Call& call);
void CountTokens(Call& call);
void Embeddings(Call& call);

}  // namespace nibble::serve
