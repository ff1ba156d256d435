// SPDX-License-Identifier: Apache-2.0
#include "serve/call.h"

#include <fmt/chrono.h>

#include <atomic>
#include <random>

#include "base/utf8.h"

namespace nibble::serve {

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void Call::Reply(int status, const Json& json) {
  ReplyText(status, "application/json", Dump(json));
}

void Call::ReplyText(int status, std::string_view type, std::string text, http::Headers extra) {
  Log(status);
  exchange->Reply(status, type, std::move(text), std::move(extra));
}

void Call::ReplyError(const ApiError& error) {
  http::Headers extra;
  int status = error.status;
  if (status == 401) extra.emplace_back("WWW-Authenticate", "Basic realm=\"nibble\"");
  if (status == 429 || status == 503) {
    extra.emplace_back("Retry-After", std::to_string(error.retry_seconds));
  }
  if (status == 503 && dialect == Dialect::kAnthropic) status = 529;
  ReplyText(status, "application/json",
            Dump(ErrorJson(dialect, error.status, error.what(), error.param, error.code)),
            std::move(extra));
}

void Call::Log(int status, const Usage& usage) {
  if (!service.options().log) return;
  const auto now = std::chrono::system_clock::now();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  const http::Request& request = exchange->request();
  Json line = {
      {"time", fmt::format("{:%FT%TZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(now)))},
      {"id", request.id},
      {"peer", request.peer},
      {"method", request.method},
      {"path", request.path},
      {"status", status},
      {"seconds", std::round(took.count() * 1e4) / 1e4}};
  if (usage.prompt > 0) {
    line["prompt_tokens"] = usage.prompt;
    line["cached_tokens"] = usage.cached;
    line["completion_tokens"] = usage.written;
  }
  Note("{}\n", Dump(line));
}

std::string NewId(const char* prefix) {
  static const uint64_t seed = std::random_device()() * 0x100000001ull ^ std::random_device()();
  static std::atomic<uint64_t> count = 0;
  Rng rng(seed, ++count);
  return fmt::format("{}{:016x}{:08x}", prefix, rng.Next(), rng.Next() >> 32);
}

std::string TokenText(const Tokenizer& tokenizer, int32_t id) {
  const std::string bytes = tokenizer.TokenBytes(id);
  if (bytes.empty()) return tokenizer.TokenText(id);
  return IsValidUtf8(bytes) ? bytes : "\uFFFD";
}

void RequireModel(const Call& call) {
  const auto name = call.body.find("model");
  if (name == call.body.end() || name->is_null()) return;
  if (!name->is_string()) BadField("model", "model must be a string");
  RequireModelName(call, name->get<std::string>());
}

void RequireModelName(const Call& call, const std::string& name) {
  const std::string& ours = call.service.options().name;
  if (name == ours) return;
  throw ApiError(404,
                 fmt::format("there is no model {}; this server has {}", Printable(name), ours),
                 "model", "model_not_found");
}

}  // namespace nibble::serve
