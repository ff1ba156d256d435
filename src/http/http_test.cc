// SPDX-License-Identifier: Apache-2.0
// Tests of what a well-meaning client sees.
#include <future>
#include <set>

#include "base/json.h"
#include "http/http_testing.h"

namespace nibble::http {
namespace {

using testing::HasSubstr;

TEST(HttpServer, AnswersAndKeepsTheConnection) {
  TestServer server(Echo);
  Client client(server);
  for (int i = 0; i < 3; ++i) {
    client.Send(Post("/a%20b/%C3%A9?q=%41&r", "body " + std::to_string(i)));
    const auto answer = client.Answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
    EXPECT_EQ(answer->body, "POST /a b/\u00e9?q=%41&r\nbody " + std::to_string(i));
    EXPECT_EQ(answer->Field("content-type"), "text/plain");
    EXPECT_EQ(answer->Field("x-request-id").size(), 32u);
    EXPECT_EQ(answer->Field("connection"), "");
  }
  EXPECT_EQ(server->connections(), 1);
  client.Send(Get("/end", "Connection: close\r\n"));
  EXPECT_EQ(client.Answer().value().Field("connection"), "close");
  EXPECT_EQ(client.ReadToEnd(), "");
  EXPECT_FALSE(client.reset());
  client.Close();
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

TEST(HttpServer, HandsOverTheRequest) {
  std::promise<Request> promise;
  TestServer server([&](const ExchangePtr& exchange) {
    promise.set_value(exchange->request());
    exchange->Reply(204, "", "ignored");
  });
  Client client(server);
  client.Send(
      "PATCH / HTTP/1.1\r\nHost:x\r\nAuthorization:  Bearer a b \t\r\nX-Request-Id: my.id_1-2\r\n"
      "AUTHORIZATION: second\r\n\r\n");
  const auto answer = client.Answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 204);
  EXPECT_EQ(answer->Field("x-request-id"), "my.id_1-2");
  EXPECT_EQ(answer->fields.count("content-length"), 0u);
  const Request seen = promise.get_future().get();
  EXPECT_EQ(seen.method, "PATCH");
  EXPECT_EQ(seen.peer, "127.0.0.1");
  EXPECT_EQ(seen.id, "my.id_1-2");
  EXPECT_EQ(seen.Header("authorization"), "Bearer a b");
  EXPECT_EQ(seen.Header("cookie"), std::nullopt);
}

TEST(HttpServer, TakesTargetsInAbsoluteForm) {
  TestServer server([](const ExchangePtr& exchange) {
    exchange->Reply(200, "text/plain", exchange->request().path + "|" + exchange->request().query);
  });
  Client client(server);
  for (const auto& [target, seen] : {std::pair("http://x:1/a?b=c", "/a|b=c"),
                                     {"HTTPS://X:1/a", "/a|"},
                                     {"http://x:1", "/|"},
                                     {"http://x:1?b", "/|b"}}) {
    client.Send(fmt::format("GET {} HTTP/1.1\r\nHost: x:1\r\n\r\n", target));
    const auto answer = client.Answer();
    ASSERT_TRUE(answer) << target;
    EXPECT_EQ(answer->status, 200) << target;
    EXPECT_EQ(answer->body, seen) << target;
  }
  // A target for another host than Host names is refused.
  client.Send("GET http://y/a HTTP/1.1\r\nHost: x\r\n\r\n");
  const auto answer = client.Answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 400);
}

TEST(HttpServer, MakesAnIdWhereTheGivenOneMayNotStand) {
  TestServer server(Echo);
  std::set<std::string> ids;
  for (const std::string& given : {std::string("a b"), std::string(129, 'a'), std::string("\xFF"),
                                   std::string("\"<>"), std::string()}) {
    Client client(server);
    client.Send(Get("/", "X-Request-Id: " + given + "\r\n"));
    const auto answer = client.Answer();
    ASSERT_TRUE(answer) << given;
    const std::string id = answer->Field("x-request-id");
    EXPECT_EQ(id.find_first_not_of("0123456789abcdef"), id.npos) << id;
    ids.insert(id);
  }
  EXPECT_EQ(ids.size(), 5u);
}

TEST(HttpServer, AnswersPipelinedRequestsInOrder) {
  TestServer server([](const ExchangePtr& exchange) {
    if (exchange->request().path == "/0") std::this_thread::sleep_for(milliseconds(50));
    Echo(exchange);
  });
  Client client(server);
  std::string requests;
  for (int i = 0; i < 100; ++i) {
    const std::string path = "/" + std::to_string(i);
    requests += i % 2 == 0 ? Get(path) : Post(path, std::string(static_cast<size_t>(i), 'b'));
  }
  client.Send(requests);
  for (int i = 0; i < 100; ++i) {
    const auto answer = client.Answer();
    ASSERT_TRUE(answer) << i;
    EXPECT_THAT(answer->body, HasSubstr(" /" + std::to_string(i) + "?"));
  }
}

TEST(HttpServer, PipelinesMoreThanItBuffers) {
  TestServer server(Echo);
  Client client(server);
  constexpr int kRequests = 30;
  std::thread sender([&] {
    for (int i = 0; i < kRequests; ++i) client.Send(Post("/big", std::string(50'000, 'x')));
  });
  for (int i = 0; i < kRequests; ++i) {
    const auto answer = client.Answer();
    ASSERT_TRUE(answer) << i;
    EXPECT_EQ(answer->body.size(), std::string("POST /big?\n").size() + 50'000);
  }
  sender.join();
}

TEST(HttpServer, AnswersHeadWithoutBodyAndPassesOptionsOn) {
  TestServer server(Echo);
  Client client(server);
  client.Send("HEAD /x HTTP/1.1\r\nHost: x\r\n\r\n" + Get("/x"));
  const auto head = client.Answer(true), get = client.Answer();
  ASSERT_TRUE(head && get);
  EXPECT_EQ(head->Field("content-length"), get->Field("content-length"));
  EXPECT_EQ(get->body, "GET /x?\n");
  client.Send("OPTIONS /x HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(client.Answer().value().body, "OPTIONS /x?\n");
}

TEST(HttpServer, SpeaksTheOldVersion) {
  TestServer server(Echo);
  Client client(server);
  client.Send("GET /1 HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n");
  const auto kept = client.Answer();
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->Field("connection"), "keep-alive");
  client.Send("GET /2 HTTP/1.0\r\nHost: x\r\n\r\nGET /3 HTTP/1.0\r\n\r\n");
  EXPECT_EQ(client.Answer().value().body, "GET /2?\n");
  EXPECT_EQ(client.ReadToEnd(), "");
}

TEST(HttpServer, ReadsChunkedBodiesAndForgetsTrailers) {
  std::promise<Request> promise;
  TestServer server([&](const ExchangePtr& exchange) {
    if (exchange->request().path == "/c") promise.set_value(exchange->request());
    Echo(exchange);
  });
  Client client(server);
  client.Send(
      "POST /c HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\n\r\n"
      "3;a=b\r\nabc\r\n00A;q=\"x;y\"\r\n0123456789\r\n0\r\nAuthorization: stolen\r\n"
      "Host: other\r\nContent-Length: 5\r\nX-Request-Id: t\r\nConnection: close\r\n\r\n" +
      Get("/next"));
  EXPECT_EQ(client.Answer().value().body, "POST /c?\nabc0123456789");
  EXPECT_EQ(promise.get_future().get().Header("authorization"), std::nullopt);
  EXPECT_EQ(client.Answer().value().body, "GET /next?\n");
}

TEST(HttpServer, InvitesABodyThatWaits) {
  TestServer server(Echo);
  Client client(server);
  client.Send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  EXPECT_EQ(client.Answer().value().status, 100);
  client.Send("ok");
  EXPECT_EQ(client.Answer().value().body, "POST /?\nok");
  // One that has come already, and one of a client that knows no 100.
  client.Send("POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\nok");
  EXPECT_EQ(client.Answer().value().status, 200);
  client.Send("POST / HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  client.Send("ok");
  EXPECT_EQ(client.Answer().value().status, 200);
}

TEST(HttpServer, SendsStreamsInChunks) {
  TestServer server([](const ExchangePtr& exchange) {
    exchange->BeginStream("text/event-stream", [] { return ": \n\n"; },
                          {{"Cache-Control", "no-cache"}});
    for (int i = 0; i < 100; ++i) exchange->Write("data: " + std::to_string(i) + "\n\n");
    exchange->End();
    exchange->Write("late");
    exchange->Reply(500, "text/plain", "late");
  });
  std::string expected;
  for (int i = 0; i < 100; ++i) expected += "data: " + std::to_string(i) + "\n\n";
  Client client(server);
  for (int i = 0; i < 2; ++i) {  // the connection goes on
    client.Send(Get("/"));
    const auto answer = client.Answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->body, expected);
    EXPECT_EQ(answer->Field("cache-control"), "no-cache");
    EXPECT_LT(answer->chunks.size(), 100u);  // what queues up goes out together
  }
  Client old(server);
  old.Send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  const auto answer = old.Answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->body, expected);
  EXPECT_EQ(answer->Field("transfer-encoding"), "");
  EXPECT_EQ(answer->Field("connection"), "close");
}

TEST(HttpServer, SendsEveryPieceAtOnceAndKeepsQuietStreamsAlive) {
  ExchangePtr stream;
  std::mutex mutex;
  const auto held = [&] {
    const std::lock_guard lock(mutex);
    return stream;
  };
  Options options;
  options.limits.keep_alive = milliseconds(30);
  TestServer server(
      [&](const ExchangePtr& exchange) {
        exchange->BeginStream("text/event-stream", [] { return ": \n\n"; });
        const std::lock_guard lock(mutex);
        stream = exchange;
      },
      options);
  Client client(server);
  client.Send(Get("/"));
  while (client.buffer().find("4\r\n: \n\n\r\n4\r\n: \n\n\r\n") == std::string::npos) {
    ASSERT_TRUE(client.Receive());
  }
  ASSERT_TRUE(Eventually([&] { return held() != nullptr; }));
  held()->Write("first");
  while (client.buffer().find("5\r\nfirst\r\n") == std::string::npos) {
    ASSERT_TRUE(client.Receive());
  }
  std::atomic<bool> ran = false, late = false;
  held()->Post([&, exchange = held()] {
    exchange->End();
    ran = true;
  });
  const auto answer = client.Answer();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->body.ends_with("first"));
  EXPECT_TRUE(ran);
  held()->OnGone([&] { late = true; });  // its end was before
  client.Close();
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
  EXPECT_FALSE(late);
  EXPECT_FALSE(held()->gone());
}

TEST(HttpServer, TurnsExceptionsIntoErrorsWithoutTheirText) {
  TestServer server([](const ExchangePtr& exchange) {
    const std::string path = exchange->request().path;
    if (path == "/throw") throw std::runtime_error("secret");
    if (path == "/throw_int") throw 1;
    if (path == "/throw_later") exchange->Post([] { throw std::runtime_error("secret"); });
    if (path == "/break") {
      exchange->BeginStream("text/plain");
      exchange->Write("some");
      throw std::runtime_error("secret");
    }
  });
  Client client(server);
  for (const char* path : {"/throw", "/throw_int", "/throw_later", "/forgotten"}) {
    client.Send(Get(path));
    const auto answer = client.Answer();
    ASSERT_TRUE(answer) << path;
    EXPECT_EQ(answer->status, 500);
    EXPECT_EQ(answer->body.find("secret"), std::string::npos);
    EXPECT_TRUE(ParseJson(answer->body, path).contains("error"));
  }
  client.Send(Get("/break"));
  EXPECT_FALSE(client.Answer());
}

TEST(HttpServer, LeavesOutOfHeadersWhatWouldBreakThem) {
  TestServer server([](const ExchangePtr& exchange) {
    exchange->Reply(999, "text/plain\r\nX-Bad: 1", "",
                    {{"X-Echo", std::string("a\r\nX-Bad: 1\0b", 13)},
                     {"X-Bad: 1\r\nX", "v"},
                     {"Content-Length", "7"},
                     {"transfer-encoding", "chunked"}});
  });
  Client client(server);
  client.Send(Get("/"));
  const auto answer = client.Answer();
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 500);
  EXPECT_EQ(answer->fields.count("x-bad"), 0u);
  EXPECT_EQ(answer->Field("x-echo"), "aX-Bad: 1b");
  EXPECT_EQ(answer->Field("content-length"), "0");
  EXPECT_EQ(answer->Field("transfer-encoding"), "");
}

TEST(HttpServer, UsesTheGivenErrorBody) {
  TestServer server(Echo, {}, [](int status, std::string_view) {
    if (status == 501) throw std::runtime_error("none");
    return "[" + std::to_string(status) + "]";
  });
  Client bad(server), method(server);
  bad.Send("GET x HTTP/1.1\r\n\r\n");
  EXPECT_EQ(bad.Answer().value().body, "[400]");
  method.Send("BREW /pot HTTP/1.1\r\nHost: x\r\n\r\n");
  EXPECT_EQ(ParseJson(method.Answer().value().body, "default")["error"]["code"], 501);
}

}  // namespace
}  // namespace nibble::http
