// SPDX-License-Identifier: Apache-2.0
// Each route: what a good request gets, field by field, and what is refused before any route sees
// it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "serve/serve_testing.h"

namespace nibble::serve {
namespace {

struct RouteCase {
  const char* method;
  const char* path;
  const char* body;
  const char* shape;  // of the answer's JSON; null where it is none
};

constexpr RouteCase kRouteCases[] = {
    {"GET", "/", nullptr, nullptr},
    {"GET", "/metrics", nullptr, nullptr},
    {"GET", "/health", nullptr, R"({"status": "ok"})"},
    {"GET", "/api/hello", nullptr, R"({"status": "ok"})"},
    {"GET", "/props", nullptr,
     R"({"default_generation_settings": {"n_ctx": 1024, "params":
           {"temperature": 0.7, "top_p": 0.95, "top_k": 0, "min_p": 0.05}},
         "total_slots": 8, "model_path": "tiny", "chat_template": "<string>",
         "tool_calls": "hermes", "modalities": {"vision": false, "audio": false},
         "backend": "<string>"})"},
    {"GET", "/v1/models", nullptr,
     R"({"object": "list",
         "data": [{"id": "tiny", "object": "model", "created": "<integer>", "owned_by": "nibble",
                   "max_model_len": 1024, "type": "model", "display_name": "tiny",
                   "created_at": "<string>"}],
         "models": [],
         "has_more": false, "first_id": "tiny", "last_id": "tiny"})"},
    {"GET", "/v1/models/tiny", nullptr,
     R"({"id": "tiny", "object": "model", "created": "<integer>", "owned_by": "nibble",
         "max_model_len": 1024, "type": "model", "display_name": "tiny",
         "created_at": "<string>"})"},
    {"GET", "/tokenizer_info", nullptr,
     R"({"eos_token": "<|end_of_text|>", "bos_token": "<|begin_of_text|>", "pad_token": null,
         "chat_template": "<string>"})"},
    {"POST", "/tokenize", R"({"prompt": ""})",
     R"({"count": 1, "max_model_len": 1024, "tokens": [0]})"},
    {"POST", "/tokenize", R"({"content": "Hi", "with_pieces": true})",
     R"({"count": "<integer>", "max_model_len": 1024,
         "tokens": [{"id": "<integer>", "piece": "<string>"}, "..."]})"},
    {"POST", "/tokenize", R"({"messages": [{"role": "user", "content": "Hi"}]})",
     R"({"count": "<integer>", "max_model_len": 1024, "tokens": ["<integer>", "..."]})"},
    {"POST", "/detokenize", R"({"tokens": [0]})",
     R"({"prompt": "<|begin_of_text|>", "content": "<|begin_of_text|>"})"},
    {"POST", "/v1/completions", R"({"model": "tiny", "prompt": "Hi", "max_tokens": 2})",
     R"({"id": "<string>", "object": "text_completion", "created": "<integer>", "model": "tiny",
         "choices": [{"index": 0, "text": "<string>", "logprobs": null, "finish_reason": "length",
                      "stop_reason": null}],
         "usage": {"prompt_tokens": "<integer>", "completion_tokens": 2,
                   "total_tokens": "<integer>",
                   "prompt_tokens_details": {"cached_tokens": "<integer>"}}})"},
    {"POST", "/v1/chat/completions",
     R"({"messages": [{"role": "user", "content": "Hi"}], "guided_regex": "Hello"})",
     R"({"id": "<string>", "object": "chat.completion", "created": "<integer>", "model": "tiny",
         "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"},
                      "logprobs": null, "finish_reason": "stop"}],
         "usage": {"prompt_tokens": "<integer>", "completion_tokens": "<integer>",
                   "total_tokens": "<integer>",
                   "prompt_tokens_details": {"cached_tokens": "<integer>"},
                   "completion_tokens_details": {"reasoning_tokens": 0}}})"},
    {"POST", "/v1/responses", R"({"input": "Hi", "guided_regex": "Hello"})",
     R"({"id": "<string>", "object": "response", "created_at": "<integer>",
         "status": "completed", "model": "tiny",
         "output": [{"type": "message", "id": "<string>", "role": "assistant",
                     "status": "completed",
                     "content": [{"type": "output_text", "text": "Hello", "annotations": []}]}],
         "error": null, "incomplete_details": null, "tools": [], "tool_choice": "auto",
         "parallel_tool_calls": true,
         "usage": {"input_tokens": "<integer>",
                   "input_tokens_details": {"cached_tokens": "<integer>",
                                            "cache_write_tokens": 0},
                   "output_tokens": "<integer>", "output_tokens_details": {"reasoning_tokens": 0},
                   "total_tokens": "<integer>"}})"},
    {"POST", "/v1/messages",
     R"({"max_tokens": 30, "messages": [{"role": "user", "content": "Hi"}],
         "guided_regex": "Hello"})",
     R"({"id": "<string>", "type": "message", "role": "assistant", "model": "tiny",
         "content": [{"type": "text", "text": "Hello"}], "stop_reason": "end_turn",
         "stop_sequence": null,
         "usage": {"input_tokens": "<integer>", "output_tokens": "<integer>",
                   "cache_creation_input_tokens": 0,
                   "cache_read_input_tokens": "<integer>"}})"},
    {"POST", "/v1/messages/count_tokens", R"({"messages": [{"role": "user", "content": "Hi"}]})",
     R"({"input_tokens": "<integer>"})"},
    {"POST", "/v1/embeddings", R"({"input": "Hi"})",
     R"({"object": "list", "data": [{"object": "embedding", "index": 0,
                                     "embedding": ["<number>", "..."]}],
         "model": "tiny",
         "usage": {"prompt_tokens": "<integer>", "total_tokens": "<integer>"}})"},
    {"POST", "/v1/embeddings", R"({"input": ["Hi", [5, 6]], "encoding_format": "base64"})",
     R"({"object": "list", "data": [{"object": "embedding", "index": 0, "embedding": "<string>"},
                                    {"object": "embedding", "index": 1, "embedding": "<string>"}],
         "model": "tiny",
         "usage": {"prompt_tokens": "<integer>", "total_tokens": "<integer>"}})"},
};

std::string BodyOf(const RouteCase& route) {
  return route.body != nullptr ? route.body : "{}";
}

class RoutesTest : public ServeTest {
 protected:
  // The shape of an error in the dialect of the path.
  static Json ErrorShape(std::string_view path) {
    if (path.starts_with("/v1/messages")) {
      return {{"type", "error"}, {"error", {{"type", "<string>"}, {"message", "<string>"}}}};
    }
    return {{"error",
             {{"type", "<string>"},
              {"message", "<string>"},
              {"param", "<string|null>"},
              {"code", "<string|null>"}}}};
  }
  static Reply Refused(const std::string& request, int status, std::string_view path) {
    Reply reply = service().Send(request);
    EXPECT_EQ(reply.status(), status) << path << ": " << reply.http.body;
    EXPECT_EQ(Mismatch(reply.json, ErrorShape(path)), "") << path;
    return reply;
  }
};

TEST_F(RoutesTest, GoodRequestsGetTheWholeShape) {
  for (const RouteCase& route : kRouteCases) {
    const Reply reply =
        service().Send(TestService::Request(route.method, route.path, BodyOf(route)));
    EXPECT_EQ(reply.status(), 200) << route.path << " " << reply.http.body;
    if (route.shape == nullptr) continue;
    EXPECT_EQ(Mismatch(reply.json, Json::parse(route.shape)), "") << route.path;
  }
}

TEST_F(RoutesTest, HeadIsGetWithoutABody) {
  for (const RouteCase& route : kRouteCases) {
    const std::string request = TestService::Request("HEAD", route.path, "");
    const Reply head = service().Send(request);
    EXPECT_EQ(head.status(), std::string_view(route.method) == "GET" ? 200 : 405) << route.path;
    if (head.status() != 200) continue;
    const Reply get = service().Get(route.path);
    EXPECT_EQ(head.http.Field("content-type"), get.http.Field("content-type"));
  }
}

TEST_F(RoutesTest, OtherMethodsAreToldWhatIsAllowed) {
  for (const RouteCase& route : kRouteCases) {
    for (const std::string method : {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"}) {
      if (method == route.method) continue;
      const Reply reply = Refused(TestService::Request(method, route.path, "{}"), 405, route.path);
      const std::string allowed =
          route.method == std::string_view("GET") ? "GET, HEAD" : route.method;
      EXPECT_EQ(reply.http.Field("allow"), allowed) << method << " " << route.path;
    }
  }
}

TEST_F(RoutesTest, UnknownPathsAreNotFound) {
  for (const char* path : {"/v1", "/v1/completions/", "/V1/completions", "/v1/messages/batches",
                           "/%2e%2e/etc/passwd", "/v1//completions", "/health/x"}) {
    Refused(TestService::Request("GET", path, ""), 404, path);
    Refused(TestService::Request("POST", path, "{}"), 404, path);
  }
}

TEST_F(RoutesTest, BodiesMustBeJsonAndSayingSo) {
  for (const RouteCase& route : kRouteCases) {
    if (std::string_view(route.method) != "POST") continue;
    const auto send = [&](const char* type) {
      return TestService::Request("POST", route.path, route.body,
                                  fmt::format("Content-Type: {}\r\n", type));
    };
    for (const char* type : {"text/plain", "application/x-www-form-urlencoded", "",
                             "multipart/form-data; boundary=x", "application/jsonp"}) {
      Refused(send(type), 415, route.path);
    }
    for (const char* type : {"application/json", "application/json; charset=utf-8",
                             "Application/JSON", "application/json ;charset=utf-8"}) {
      EXPECT_EQ(service().Send(send(type)).status(), 200) << route.path << " " << type;
    }
    EXPECT_EQ(service().Send(TestService::Request("POST", route.path, route.body, "")).status(),
              200);
  }
}

TEST_F(RoutesTest, WhatIsNoObjectOfJsonIsRefused) {
  const std::string deep = "{\"a\": " + std::string(10000, '[') + std::string(10000, ']') + "}";
  const std::string bodies[] = {"",
                                "{",
                                "nothing",
                                "[]",
                                "5",
                                "null",
                                "\"text\"",
                                "{} {}",
                                R"({"a": 1, "a": 2})",
                                R"({"a": {"b": 1, "b": 2}})",
                                deep,
                                R"({"a": 1e999})",
                                R"({"a": NaN})",
                                "{\"a\": \"\xFF\"}",
                                "\xEF\xBB\xBF[]",
                                std::string("{}\0", 3),
                                R"({"a": "\ud800"})"};
  for (const RouteCase& route : kRouteCases) {
    if (std::string_view(route.method) != "POST") continue;
    for (const std::string& body : bodies) {
      Refused(TestService::Request("POST", route.path, body), 400, route.path);
    }
  }
}

TEST_F(RoutesTest, MissingFieldsAndModelsAreNamed) {
  for (const char* path : {"/v1/completions", "/v1/chat/completions", "/v1/responses",
                           "/v1/messages", "/v1/embeddings"}) {
    const Reply empty = Refused(TestService::Request("POST", path, "{}"), 400, path);
    EXPECT_THAT(empty.json.dump(), testing::ContainsRegex("prompt|messages|input")) << path;
    const Reply other =
        Refused(TestService::Request("POST", path, R"({"model": "gpt-5"})"), 404, path);
    EXPECT_THAT(other.json.dump(), testing::HasSubstr("this server has tiny")) << path;
    Refused(TestService::Request("POST", path, R"({"model": 5})"), 400, path);
  }
  EXPECT_EQ(service().Post("/v1/completions", {{"model", "x"}}).json["error"]["code"],
            "model_not_found");
}

TEST_F(RoutesTest, TextsOfTokensAndBack) {
  for (const std::string text :
       {"The river", "", "\xF0\x9F\x98\x80 \xC3\xA9\n", "<|end_of_text|>"}) {
    const Json ids = service().Ok("/tokenize", {{"content", text}}).json["tokens"];
    EXPECT_EQ(ids, Json(service().tokenizer().Encode(text, false)));
    EXPECT_EQ(service().Ok("/detokenize", {{"tokens", ids}}).json["prompt"], text);
  }
  for (const Json& bad : {Json(5), Json("x"), Json({4096}), Json({-1}), Json({1.5}), Json({"a"}),
                          Json({int64_t{1} << 40}), Json()}) {
    EXPECT_EQ(service().Post("/detokenize", {{"tokens", bad}}).status(), 400) << bad;
  }
  EXPECT_EQ(service().Post("/tokenize", {{"prompt", {5}}}).status(), 400);
}

TEST_F(RoutesTest, EmbeddingsAreOfLengthOneAndTheSameAlone) {
  const Json body = {{"input", {"The river", "A house", "The river"}}};
  const Json data = service().Ok("/v1/embeddings", body).json["data"];
  ASSERT_EQ(data.size(), 3u);
  EXPECT_EQ(data[0]["embedding"], data[2]["embedding"]);
  EXPECT_NE(data[0]["embedding"], data[1]["embedding"]);
  EXPECT_EQ(service().Ok("/v1/embeddings", {{"input", "A house"}}).json["data"][0]["embedding"],
            data[1]["embedding"]);
  double squares = 0;
  for (const Json& v : data[0]["embedding"]) squares += v.get<double>() * v.get<double>();
  EXPECT_NEAR(squares, 1, 1e-5);
  for (const Json& input : {Json(), Json(5), Json(Json::array()), Json({{"a", 1}}), Json({1, "a"}),
                            Json({5000}), Json({{1}, {-1}})}) {
    EXPECT_EQ(service().Post("/v1/embeddings", {{"input", input}}).status(), 400) << input;
  }
  EXPECT_EQ(service().Post("/v1/embeddings", {{"input", "x"}, {"encoding_format", "hex"}}).param(),
            "encoding_format");
}

TEST_F(RoutesTest, ThePageAllowsNothingFromElsewhere) {
  const Reply page = service().Get("/");
  EXPECT_THAT(page.http.Field("content-type"), testing::StartsWith("text/html"));
  EXPECT_THAT(page.http.Field("content-security-policy"), testing::HasSubstr("default-src 'none'"));
  EXPECT_EQ(page.http.Field("x-content-type-options"), "nosniff");
  EXPECT_THAT(page.http.body, testing::Not(testing::ContainsRegex("(src|href)=\"?https?://")));
  EXPECT_EQ(page.http.Field("access-control-allow-origin"), "");
}

TEST(Service, MetricsAreReadWhateverTheModelIsCalled) {
  TestSetup setup;
  setup.service.name = "a\"b\\c";
  TestService service(setup);
  EXPECT_THAT(
      service.Get("/metrics").http.body,
      testing::HasSubstr("num_requests_running{engine=\"0\",model_name=\"a\\\"b\\\\c\"} 0"));
}

TEST(Service, WithoutATemplateOnlyChatIsRefused) {
  TestService service({.chat_template = ""});
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  EXPECT_EQ(service.Post("/v1/chat/completions", chat).status(), 400);
  EXPECT_EQ(service.Post("/v1/responses", {{"input", "Hi"}}).status(), 400);
  EXPECT_EQ(service.Post("/v1/messages", With(chat, {{"max_tokens", 5}})).status(), 400);
  EXPECT_EQ(service.Post("/tokenize", chat).status(), 400);
  EXPECT_EQ(service.Get("/props").json["chat_template"], "");
  service.Ok("/v1/completions", {{"prompt", "Hi"}});
}

TEST(Service, WithATemplateThatIsWrongChatSaysWhy) {
  TestService service({.chat_template = "Hi\n{% for m in messages %}{% nonsense %}{% endfor %}"});
  const Json chat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};
  for (const Reply& reply : {service.Post("/v1/chat/completions", chat),
                             service.Post("/v1/responses", {{"input", "Hi"}}),
                             service.Post("/v1/messages", With(chat, {{"max_tokens", 5}})),
                             service.Post("/tokenize", chat)}) {
    EXPECT_EQ(reply.status(), 400);
    EXPECT_THAT(reply.http.body, testing::HasSubstr("chat_template.jinja: line 2: "));
    EXPECT_THAT(reply.http.body, testing::HasSubstr("nonsense"));
  }
  EXPECT_EQ(service.Get("/props").json["chat_template"], "");
  service.Ok("/v1/completions", {{"prompt", "Hi"}});
}

}  // namespace
}  // namespace nibble::serve
