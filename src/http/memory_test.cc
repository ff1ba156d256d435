// SPDX-License-Identifier: Apache-2.0
// Memory that runs out at any one allocation of a request ends that request at most.
#include <cstdlib>
#include <map>
#include <new>

#include "http/http_testing.h"

namespace {

std::atomic<int64_t> left_until_failure = -1;  // allocations of threads of servers; < 0: no end
std::atomic<int> failures = 0;
thread_local bool is_client = true;

void* Allocate(size_t bytes) {
  if (!is_client && left_until_failure >= 0 && left_until_failure.fetch_sub(1) == 0) {
    ++failures;
    throw std::bad_alloc();
  }
  void* const memory = std::malloc(bytes > 0 ? bytes : 1);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void* operator new(size_t bytes) {
  return Allocate(bytes);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}

namespace nibble::http {
namespace {

void AnswerSome(const ExchangePtr& exchange) {
  is_client = false;
  if (exchange->request().path != "/stream") return Echo(exchange);
  exchange->OnGone([] {});
  exchange->BeginStream("text/plain", [] { return ": \n"; });
  for (int i = 0; i < 5; ++i) exchange->Write("data");
  exchange->Post([exchange] {
    is_client = false;  // the thread of all connections, from now on
    exchange->End();
  });
}

TEST(Memory, ThatRunsOutEndsOneRequestAtMost) {
  TestServer server(AnswerSome);
  const std::string requests[] = {Get("/stream"), Post("/post", std::string(3000, 'x')),
                                  "POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: "
                                  "chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nBAD\r\n"};
  Client first(server);
  first.Send(Get("/stream"));
  ASSERT_TRUE(first.Answer());
  std::map<int, int> statuses;
  for (const std::string& request : requests) {
    for (int64_t allocations = 0; allocations < 150; ++allocations) {
      left_until_failure = allocations;
      {
        Client client(server);
        client.Send(request);
        const auto answer = client.Answer();
        ++statuses[answer ? answer->status : 0];
        EXPECT_FALSE(client.timed_out()) << allocations << " " << request;
      }
      left_until_failure = -1;
      Client client(server);
      client.Send(Get("/next"));
      ASSERT_EQ(client.Answer().value().body, "GET /next?\n") << allocations << " " << request;
    }
  }
  EXPECT_GT(failures, 50);
  EXPECT_GT(statuses[0], 20);
  EXPECT_GT(statuses[200], 150);
  EXPECT_EQ(statuses[0] + statuses[200] + statuses[400] + statuses[500], 450);
}

}  // namespace
}  // namespace nibble::http
