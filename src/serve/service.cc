// SPDX-License-Identifier: Apache-2.0
#include "serve/service.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <ctime>

#include "base/utf8.h"
#include "io/base64.h"
#include "serve/call.h"

namespace nibble::serve {
namespace {

struct Route {
  const char* method;
  const char* path;
  void (*run)(Call& call);
  Dialect dialect = Dialect::kOpenAi;
};
constexpr Route kRoutes[] = {
    {"GET", "/", Page},
    {"GET", "/health", Health},
    {"GET", "/api/hello", Health},  // Claude Code's way to warm up a connection
    {"GET", "/metrics", Metrics},
    {"GET", "/props", Props},
    {"GET", "/v1/models", Models},
    {"GET", "/v1/models/", OneModel},
    {"GET", "/tokenizer_info", TokenizerInfo},
    {"POST", "/tokenize", Tokenize},
    {"POST", "/detokenize", Detokenize},
    {"POST", "/v1/completions", Completions},
    {"POST", "/v1/chat/completions", ChatCompletions},
    {"POST", "/v1/responses", Responses},
    {"POST", "/v1/messages", Messages, Dialect::kAnthropic},
    {"POST", "/v1/messages/count_tokens", CountTokens, Dialect::kAnthropic},
    {"POST", "/v1/embeddings", Embeddings},
};

// A route that ends with "/" takes any path that begins with it: names of models may have slashes.
bool Takes(const Route& route, std::string_view path) {
  const std::string_view own = route.path;
  return own == path || (own.size() > 1 && own.ends_with('/') && path.starts_with(own));
}

std::optional<ChatTemplate> LoadTemplate(const std::string& directory) {
  try {
    return ChatTemplate::Load(directory);
  } catch (const Error& error) {
    Note("nibble: {}; the chat routes are off\n", error.what());
    return ChatTemplate::Unusable(error.what());  // the chat routes say why
  }
}

AnswerFormat FormatOf(const std::optional<ChatTemplate>& chat_template,
                      const Tokenizer& tokenizer) {
  if (!chat_template) return {};
  return DetectAnswerFormat(
      chat_template->source() + chat_template->tool_source(),
      [&](std::string_view text) { return tokenizer.TokenId(text).has_value(); });
}

GenerationConfig GenerationOf(const std::string& directory, const Model& model,
                              const AnswerFormat& format, const Tokenizer& tokenizer) {
  GenerationConfig config = LoadGenerationConfig(directory, model.network().config_json);
  for (const std::string& end : format.ends) {
    const std::optional<int32_t> id = tokenizer.TokenId(end);
    if (id && std::ranges::count(config.stop_ids, *id) == 0) config.stop_ids.push_back(*id);
  }
  return config;
}

// Compares in a time that does not depend on where the keys differ.
bool SameKey(std::string_view given, std::string_view key) {
  return given.size() == key.size() && CRYPTO_memcmp(given.data(), key.data(), key.size()) == 0;
}

// The key from `Authorization: Bearer KEY`, from `x-api-key`, or from a browser's Basic
// authorization, with any user name.
std::string GivenKey(const http::Request& request) {
  if (const auto key = request.Header("x-api-key")) return *key;
  const std::string given = request.Header("authorization").value_or("");
  const auto after = [&](std::string_view scheme) -> std::optional<std::string> {
    if (given.size() < scheme.size()) return std::nullopt;
    const auto same = [](char a, char b) { return std::tolower(a) == b; };
    if (!std::equal(scheme.begin(), scheme.end(), given.begin(),
                    [&](char b, char a) { return same(a, b); })) {
      return std::nullopt;
    }
    return given.substr(scheme.size());
  };
  if (const auto key = after("bearer ")) return *key;
  if (const auto basic = after("basic ")) {
    const std::string pair = DecodeBase64(*basic).value_or("");
    return pair.substr(std::min(pair.size(), pair.find(':') + 1));
  }
  return "";
}

bool IsLocalName(std::string host) {
  const bool bracket = host.starts_with('[');
  const size_t end = bracket ? host.find(']') + 1 : host.find(':');
  host.resize(std::min(host.size(), end));
  return host == "localhost" || host == "127.0.0.1" || host == "[::1]" || host.empty();
}

// Returns whether the type is "application/json", with parameters or without.
bool IsJsonType(std::string type) {
  type.resize(std::min(type.size(), type.find(';')));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.pop_back();
  std::ranges::transform(type, type.begin(), [](unsigned char c) { return std::tolower(c); });
  return type == "application/json";
}

}  // namespace

Service::Service(Model& model, const std::string& directory, const SchedulerOptions& scheduling,
                 ServiceOptions options)
    : model_(model),
      directory_(directory),
      options_(std::move(options)),
      tokenizer_(Tokenizer::Load(directory)),
      template_(LoadTemplate(directory)),
      answer_format_(FormatOf(template_, tokenizer_)),
      generation_config_(GenerationOf(directory, model, answer_format_, tokenizer_)),
      pooling_(LoadPooling(directory)),
      vocabulary_(tokenizer_, model.config().vocab_size),
      created_(std::time(nullptr)),
      budget_(std::max<size_t>(1, options_.keys.size()), options_.key_tokens),
      scheduler_(model, tokenizer_, &vocabulary_, scheduling) {}

std::string Service::ErrorBody(int status, std::string_view message) {
  return Dump(ErrorJson(Dialect::kOpenAi, status, std::string(message)));
}

void Service::Identify(Call& call) const {
  const http::Request& request = call.exchange->request();
  call.client = request.peer;
  if (options_.keys.empty()) {
    if (options_.local && !IsLocalName(request.Header("host").value_or(""))) {
      throw ApiError(403,
                     "this server answers for localhost; start it with --api-key-file for others");
    }
    return;
  }
  const std::string given = GivenKey(request);
  std::optional<size_t> found;
  for (size_t i = 0; i < options_.keys.size(); ++i) {
    if (SameKey(given, options_.keys[i])) found = i;
  }
  if (!found) throw ApiError(401, "a valid API key is needed", "", "invalid_api_key");
  call.key = *found;
  if (options_.keys.size() > 1) call.client = fmt::format("key {}", *found);
}

void Service::Handle(const std::shared_ptr<http::Exchange>& exchange) {
  const auto call = std::make_shared<Call>(*this, exchange);
  if (exchange->request().path.starts_with("/v1/messages")) call->dialect = Dialect::kAnthropic;
  try {
    Identify(*call);
    Answer(*call);
  } catch (const ApiError& error) {
    call->ReplyError(error);
  } catch (const Error& error) {
    call->ReplyError(ApiError(400, error.what()));  // later errors come in a Delta
  } catch (const std::bad_alloc&) {
    call->ReplyError(ApiError(503, "there is no memory left for this request"));
  }
}

void Service::Answer(Call& call) {
  const http::Request& request = call.exchange->request();
  std::string allowed;
  for (const Route& route : kRoutes) {
    if (!Takes(route, request.path)) continue;
    if (request.method != route.method) {
      allowed = std::string_view(route.method) == "GET" ? "GET, HEAD" : route.method;
      continue;
    }
    if (request.method == "POST") {
      // Other types come from forms, which pages of other sites may send.
      if (!IsJsonType(request.Header("content-type").value_or("application/json"))) {
        throw ApiError(415, "the body must be JSON: send Content-Type: application/json");
      }
      try {
        call.body = ParseJson(request.body, "body");
      } catch (const Error& error) {
        throw ApiError(400, error.what());
      }
      if (!call.body.is_object()) throw ApiError(400, "the body must be a JSON object");
    }
    return route.run(call);
  }
  if (allowed.empty()) throw ApiError(404, "there is no " + Printable(request.path));
  const ApiError error(405, Printable(request.path) + " takes " + allowed);
  call.ReplyText(405, "application/json", Dump(ErrorJson(call.dialect, 405, error.what())),
                 {{"Allow", allowed}});
}

}  // namespace nibble::serve
