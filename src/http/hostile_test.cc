// SPDX-License-Identifier: Apache-2.0
// Tests of clients that are broken, slow or mean ill: what they see, and that the server outlives
// them.
#include "base/rng.h"
#include "http/http_testing.h"

namespace nibble::http {
namespace {

using Steady = std::chrono::steady_clock;

const std::string kChunked = "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";

TEST(HostileClient, MeetsTheHeaderLimitAcrossReads) {
  WatchedServer server;
  Client client(*server);
  client.Send("GET / HTTP/1.1\r\nHost: x\r\n");
  int sent = 0;
  for (; sent < 20'000 && client.buffer().empty() && client.Send("a: b\r\n"); ++sent) {
    if (sent % 10 == 0) client.Receive(milliseconds(1));
  }
  EXPECT_LT(sent, 20'000);
  EXPECT_EQ(client.Answer().value().status, 431);
}

TEST(HostileClient, GetsTheAnswerToABodyThatIsTooLong) {
  Options options;
  options.limits.body_bytes = 1000;
  options.limits.all_body_bytes = 1500;
  WatchedServer server(options);
  Client client(*server), chunks(*server);
  client.Send(Post("/long", std::string(200'000, 'x')));
  EXPECT_EQ(client.Answer().value().status, 413);
  chunks.Send("POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  while (chunks.buffer().empty()) {
    if (!chunks.Send("64\r\n" + std::string(100, 'x') + "\r\n")) break;
    chunks.Receive(milliseconds(1));
  }
  EXPECT_EQ(chunks.Answer().value().status, 413);
  // Bodies that are held at the same time share one limit.
  Client first(*server), second(*server);
  const std::string head = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n";
  first.Send(head + std::string(900, 'x'));
  std::this_thread::sleep_for(milliseconds(200));
  second.Send(head + std::string(900, 'x'));
  EXPECT_EQ(second.Answer().value().status, 503);
  first.Send(std::string(100, 'x'));
  EXPECT_EQ(first.Answer().value().status, 200);
}

TEST(HostileClient, IsTooSlow) {
  Options options;
  options.limits.header_time = milliseconds(150);
  options.limits.body_time = milliseconds(250);
  options.limits.idle_time = milliseconds(400);
  WatchedServer server(options);
  const auto trickle = [&](std::string_view head, std::string_view piece) {
    Client client(*server);
    client.Send(head);
    const auto start = Steady::now();
    while (client.buffer().empty() && client.Send(piece)) client.Receive(milliseconds(5));
    const auto took = Steady::now() - start;
    EXPECT_LT(took, milliseconds(5000));
    const auto answer = client.Answer();
    EXPECT_TRUE(answer) << head;
    return std::pair(answer ? answer->status : 0, took);
  };
  const auto header = trickle("GET / HTTP/1.1\r\nHost: x\r\nA: ", "a");
  EXPECT_EQ(header.first, 408);
  EXPECT_GE(header.second, milliseconds(100));
  const auto body = trickle("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n", "b");
  EXPECT_EQ(body.first, 408);
  EXPECT_GE(body.second, milliseconds(200));
  EXPECT_EQ(trickle(kChunked, "1\r\na\r\n").first, 408);
  EXPECT_EQ(trickle(kChunked + "0\r\nA: ", "a").first, 408);
  // A slow header behind a quick request, and one who says nothing.
  Client second(*server), idle(*server);
  second.Send(Get("/quick") + "GET");
  EXPECT_EQ(second.Answer().value().status, 200);
  EXPECT_EQ(second.Answer().value().status, 408);
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_FALSE(idle.timed_out());
  EXPECT_EQ(server.TakePaths(), std::vector<std::string>{"/quick"});
}

TEST(HostileClient, DoesNotSlowDownOthers) {
  Options options;
  options.limits.connections = 600;
  WatchedServer server(options);
  std::vector<std::unique_ptr<Client>> slow;
  for (int i = 0; i < 400; ++i) {
    slow.push_back(std::make_unique<Client>(*server));
    slow.back()->Send(i % 2 == 0 ? "GET / HTTP/1.1\r\nHost"
                                 : "PUT / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\na");
  }
  for (int i = 0; i < 50; ++i) {
    const auto start = Steady::now();
    Client client(*server);
    client.Send(Get("/"));
    EXPECT_EQ(client.Answer().value().status, 200);
    EXPECT_LT(Steady::now() - start, milliseconds(1000));
  }
}

TEST(HostileClient, LeavesAtEveryByteOfARequest) {
  WatchedServer server;
  const std::string request =
      "POST /x HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: "
      "b\r\n\r\n";
  for (size_t bytes = 0; bytes <= request.size(); ++bytes) {
    for (const bool reset : {false, true}) {
      Client client(*server);
      client.Send(request.substr(0, bytes));
      reset ? client.Reset() : client.Close();
    }
    Client half(*server);
    half.Send(request.substr(0, bytes));
    half.ShutdownWrite();
    half.ReadToEnd();
    EXPECT_FALSE(half.timed_out()) << bytes;
  }
  EXPECT_TRUE(Eventually([&] { return (*server)->connections() == 0; }));
}

// Streams without an end of their own, which count who left.
class StreamServer {
 public:
  explicit StreamServer(const Options& options = {}, std::string piece = "")
      : server_(
            [this, piece](const ExchangePtr& exchange) {
              exchange->OnGone([this, exchange] {
                EXPECT_TRUE(exchange->gone());
                ++gone;
              });
              exchange->BeginStream("text/plain");
              ++begun;
              for (int i = 0; i < 5000 && !piece.empty() && !exchange->gone(); ++i) {
                exchange->Write(piece);
                std::this_thread::sleep_for(milliseconds(1));
              }
            },
            options) {}
  std::atomic<int> begun = 0, gone = 0;
  TestServer& operator*() { return server_; }

 private:
  TestServer server_;
};

TEST(HostileClient, LeavesInTheMiddleOfAStream) {
  StreamServer server;
  for (int i = 0; i < 60; ++i) {
    Client client(*server);
    client.Send(Get("/") + (i % 2 == 0 ? Get("/next") : ""));
    ASSERT_TRUE(client.Receive());
    const auto start = Steady::now();
    i % 3 == 0 ? client.Reset() : i % 3 == 1 ? client.Close() : client.ShutdownWrite();
    ASSERT_TRUE(Eventually([&] { return server.gone == i + 1; }));
    EXPECT_LT(Steady::now() - start, milliseconds(1000));
  }
  EXPECT_EQ(server.begun, 60);
  EXPECT_TRUE(Eventually([&] { return (*server)->connections() == 0; }));
}

TEST(HostileClient, IsSeenLeavingBehindMoreThanTheServerBuffers) {
  StreamServer server;
  Client client(*server);
  client.Send(Get("/"));
  ASSERT_TRUE(client.Receive());
  client.Send(std::string(100'000, 'x'));  // the window has room for the rest
  client.ShutdownWrite();
  EXPECT_TRUE(Eventually([&] { return server.gone == 1; }));
}

TEST(HostileClient, StopsReading) {
  Options options;
  options.limits.queued_bytes = 100'000;
  options.limits.stall_time = milliseconds(60'000);
  {
    StreamServer server(options, std::string(50'000, 'x'));  // too much queues up
    Client client(*server, 4096);
    client.Send(Get("/"));
    EXPECT_TRUE(Eventually([&] { return server.gone == 1; }));
    client.ReadToEnd();
    EXPECT_TRUE(client.reset());  // and sees that this is not all
  }
  options.limits.queued_bytes = 1 << 30;
  options.limits.stall_time = milliseconds(200);
  {
    StreamServer server(options, std::string(50'000, 'x'));  // nothing is taken for too long
    Client client(*server, 4096);
    client.Send(Get("/"));
    EXPECT_TRUE(Eventually([&] { return server.gone == 1; }));
  }
}

TEST(HostileClient, ReadsAWholeAnswerSlowly) {
  Options options;
  options.limits.queued_bytes = 10 << 20;
  options.limits.stall_time = milliseconds(300);
  const auto big = [](const ExchangePtr& exchange) {
    exchange->Reply(200, "text/plain", std::string(20 << 20, 'x'));
  };
  TestServer patient(big), server(big, options);
  Client quick(patient);
  quick.Send(Get("/"));
  EXPECT_EQ(quick.Answer().value().body.size(), size_t{20} << 20);
  Client slow(server, 4096);
  slow.Send(Get("/"));
  const auto start = Steady::now();
  while (slow.Receive() && Steady::now() - start < milliseconds(8000)) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_TRUE(slow.reset());
}

// Every outcome of changed requests is a sequence of well-formed answers or the connection's end.
TEST(HostileClient, SendsRandomBytes) {
  constexpr int kThreads = 8, kInputs = 1250;
  Options options;
  options.limits.header_time = options.limits.body_time = options.limits.idle_time =
      milliseconds(30);
  WatchedServer server(options);
  const std::string valid =
      Post("/a", "body") + kChunked + ("3;e\r\nabc\r\n0\r\nA: b\r\n\r\n") + Get("/end");
  std::atomic<int> answers = 0, refusals = 0;
  const auto attack = [&](uint64_t stream) {
    Rng rng(7, stream);
    for (int n = 0; n < kInputs; ++n) {
      std::string bytes = valid;
      if (n % 8 == 0) bytes.assign(rng.Below(300), '\0');
      for (uint64_t i = 0; n % 8 == 0 && i < bytes.size(); ++i) {
        bytes[i] = static_cast<char>(rng.Below(n % 16 == 0 ? 256 : 128));
      }
      for (uint64_t changes = 1 + rng.Below(4); n % 8 != 0 && changes > 0; --changes) {
        const size_t at = rng.Below(bytes.size());
        const uint64_t kind = rng.Below(3);
        if (kind == 0) bytes.erase(at, 1 + rng.Below(5));
        if (kind == 1) bytes[at] = static_cast<char>(rng.Below(256));
        if (kind == 2) bytes.insert(at, bytes.substr(rng.Below(bytes.size()), rng.Below(30)));
      }
      Client client(*server);
      client.Send(bytes);
      if (n % 5 == 0) client.ShutdownWrite();
      while (const auto answer = client.Answer()) {
        answer->status < 300 ? ++answers : ++refusals;
      }
      EXPECT_TRUE(!client.malformed() || client.reset()) << bytes;
      EXPECT_FALSE(client.timed_out()) << bytes;
    }
  };
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < kThreads; ++i) threads.emplace_back(attack, i);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(answers, kThreads * kInputs / 4);
  EXPECT_GT(refusals, kThreads * kInputs / 4);
  EXPECT_TRUE(Eventually([&] { return (*server)->connections() == 0; }));
}

}  // namespace
}  // namespace nibble::http
