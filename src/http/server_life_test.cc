// SPDX-License-Identifier: Apache-2.0
// Listening, many connections, limits of their number, and the end.
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/error_testing.h"
#include "http/http_testing.h"

namespace nibble::http {
namespace {

using testing::HasSubstr;

TEST(ServerLife, ListensOnAUnixSocket) {
  const std::string path = testing::TempDir() + "nibble_http_test.socket";
  Options options;
  options.unix_socket = path;
  {
    TestServer server([](const ExchangePtr& e) { e->Reply(200, "text/plain", e->request().peer); },
                      options);
    struct stat status {};
    ASSERT_EQ(stat(path.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
    Client client(path);
    client.Send(Get("/"));
    EXPECT_EQ(client.Answer().value().body, "unix");
    EXPECT_THAT(ErrorOf([&] { Server(options, Echo); }), HasSubstr("listens there already"));
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  // A socket is left by a process that has ended without removing it.
  const int left = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(bind(left, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  close(left);
  {
    TestServer server(Echo, options);
    Client client(path);
    client.Send(Get("/"));
    EXPECT_EQ(client.Answer().value().status, 200);
  }
  options.unix_socket = testing::TempDir();
  EXPECT_THAT(ErrorOf([&] { Server(options, Echo); }), HasSubstr("is no socket"));
  options.unix_socket = "/" + std::string(200, 'x');
  EXPECT_THAT(ErrorOf([&] { Server(options, Echo); }), HasSubstr("at most 107 bytes"));
}

TEST(ServerLife, SaysWhyItCannotListen) {
  TestServer server(Echo);
  Options options;
  options.port = server->port();
  EXPECT_THAT(ErrorOf([&] { Server(options, Echo); }), HasSubstr("is in use"));
  options.host = "no such host";
  EXPECT_THAT(ErrorOf([&] { Server(options, Echo); }), HasSubstr("no address of this machine"));
  options.host = "192.0.2.1";  // of documentation, nobody's
  EXPECT_THAT(ErrorOf([&] { Server(options, Echo); }), HasSubstr("cannot listen"));
}

TEST(ServerLife, LetsAnswersEndWhenItStops) {
  std::atomic<bool> go_on = false;
  std::atomic<int> begun = 0;
  TestServer server([&](const ExchangePtr& exchange) {
    ++begun;
    exchange->BeginStream("text/plain");
    while (!go_on) std::this_thread::sleep_for(milliseconds(1));
    exchange->Write("whole");
    exchange->End();
  });
  Client busy(server), idle(server), half(server);
  busy.Send(Get("/"));
  half.Send("GET / HT");
  ASSERT_TRUE(Eventually([&] { return begun == 1 && server->connections() == 3; }));
  std::this_thread::sleep_for(milliseconds(50));  // what `half` sent is read
  server->Stop(milliseconds(10'000));
  EXPECT_EQ(idle.ReadToEnd(), "");
  EXPECT_EQ(half.Answer().value().status, 503);
  half.Close();
  EXPECT_TRUE(Eventually([&] { return !Client(server).connected(); }));
  go_on = true;
  EXPECT_EQ(busy.Answer().value().body, "whole");
  EXPECT_EQ(busy.ReadToEnd(), "");
  busy.Close();
  server.Join();
  EXPECT_EQ(server->connections(), 0);
}

TEST(ServerLife, CutsAnswersThatDoNotEndInTime) {
  std::atomic<int> gone = 0;
  std::vector<ExchangePtr> held;
  std::mutex mutex;
  TestServer server([&](const ExchangePtr& exchange) {
    exchange->BeginStream("text/plain");
    exchange->OnGone([&] { ++gone; });
    const std::lock_guard lock(mutex);
    held.push_back(exchange);
  });
  Client client(server), other(server);
  client.Send(Get("/"));
  other.Send(Get("/"));
  ASSERT_TRUE(Eventually([&] {
    const std::lock_guard lock(mutex);
    return held.size() == 2;
  }));
  const auto start = std::chrono::steady_clock::now();
  server->Stop(milliseconds(60'000));
  server.Stop(milliseconds(50));  // the earlier end counts
  EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(5000));
  EXPECT_EQ(gone, 2);
  EXPECT_TRUE(held[0]->gone());
  held[0]->Write("nobody");  // after the server's end, and below after its destruction
}

TEST(ServerLife, OutlivedByAnExchange) {
  ExchangePtr held;
  std::atomic<bool> ready = false;
  {
    TestServer server([&](const ExchangePtr& exchange) {
      held = exchange;
      ready = true;
    });
    Client client(server);
    client.Send(Get("/"));
    ASSERT_TRUE(Eventually([&] { return ready.load(); }));
  }
  EXPECT_TRUE(held->gone());
  held->Reply(200, "text/plain", "nobody");
  held->OnGone([] {});
}

TEST(ServerLife, StopsBeforeItRuns) {
  Options options;
  options.port = 0;
  Server server(options, Echo);
  server.Stop(milliseconds(0));
  server.Run();
}

TEST(ServerLife, RefusesConnectionsAndRequestsBeyondItsLimits) {
  std::atomic<bool> go_on = false;
  std::atomic<int> begun = 0;
  Options options;
  options.workers = 1;
  options.limits.connections = 3;
  options.limits.waiting_requests = 1;
  TestServer server(
      [&](const ExchangePtr& exchange) {
        ++begun;
        while (!go_on) std::this_thread::sleep_for(milliseconds(1));
        Echo(exchange);
      },
      options);
  Client first(server), second(server), third(server);
  first.Send(Get("/1"));
  ASSERT_TRUE(Eventually([&] { return begun == 1; }));
  second.Send(Get("/2"));
  std::this_thread::sleep_for(milliseconds(200));
  third.Send(Get("/3"));
  const auto full = third.Answer();
  ASSERT_TRUE(full);
  EXPECT_EQ(full->status, 503);
  EXPECT_EQ(full->Field("retry-after"), "1");
  Client fourth(server);
  const auto over = fourth.Answer();
  ASSERT_TRUE(over);
  EXPECT_EQ(over->status, 503);
  EXPECT_EQ(over->Field("retry-after"), "1");
  EXPECT_EQ(fourth.ReadToEnd(), "");
  go_on = true;
  EXPECT_EQ(first.Answer().value().body, "GET /1?\n");
  EXPECT_EQ(second.Answer().value().body, "GET /2?\n");
  third.Send(Get("/4"));  // that connection goes on
  EXPECT_EQ(third.Answer().value().body, "GET /4?\n");
}

TEST(ServerLife, ServesManyConnectionsAtOnce) {
  TestServer server([](const ExchangePtr& exchange) {
    exchange->BeginStream("text/plain");
    exchange->Write(exchange->request().path);
    for (int i = 0; i < 20; ++i) exchange->Write(exchange->request().path);
    exchange->End();
  });
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 200; ++i) clients.push_back(std::make_unique<Client>(server));
  for (int round = 0; round < 5; ++round) {
    for (size_t i = 0; i < clients.size(); ++i) clients[i]->Send(Get("/" + std::to_string(i)));
    for (size_t i = 0; i < clients.size(); ++i) {
      const auto answer = clients[i]->Answer();
      ASSERT_TRUE(answer) << i;
      std::string expected;
      for (int n = 0; n <= 20; ++n) expected += "/" + std::to_string(i);
      EXPECT_EQ(answer->body, expected);
    }
  }
}

TEST(ServerLife, HoldsAThousandIdleConnections) {
  rlimit files{};
  getrlimit(RLIMIT_NOFILE, &files);
  files.rlim_cur = std::min<rlim_t>(files.rlim_max, 8192);
  setrlimit(RLIMIT_NOFILE, &files);
  if (files.rlim_cur < 2200) GTEST_SKIP() << "too few descriptors";
  TestServer server(Echo);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 1000; ++i) clients.push_back(std::make_unique<Client>(server));
  ASSERT_TRUE(Eventually([&] { return server->connections() == 1000; }));
  for (size_t i = 0; i < clients.size(); i += 100) {
    clients[i]->Send(Get("/idle"));
    EXPECT_EQ(clients[i]->Answer().value().body, "GET /idle?\n");
  }
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return server->connections() == 0; }));
}

}  // namespace
}  // namespace nibble::http
