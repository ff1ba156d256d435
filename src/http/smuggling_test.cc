// SPDX-License-Identifier: Apache-2.0
// Requests whose end is in doubt, or that are none: refused, and nothing behind them is read.
#include "http/http_testing.h"

namespace nibble::http {
namespace {

struct Case {
  int status;
  std::string bytes;
};

// A request with these fields besides Host.
std::string With(std::string_view fields, std::string_view body = "") {
  return "POST /case HTTP/1.1\r\nHost: x\r\n" + std::string(fields) + "\r\n" + std::string(body);
}
std::string Chunked(std::string_view body) {
  return With("Transfer-Encoding: chunked\r\n", body);
}

std::vector<Case> FramingCases() {
  return {
      // Transfer-Encoding
      {400, With("Transfer-Encoding: gzip\r\n", "5\r\nhello\r\n0\r\n\r\n")},
      {400, With("Transfer-Encoding: chunked, chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: chunked, identity\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: identity\r\n")},
      {400, With("Transfer-Encoding: xchunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: chunked\r\nTransfer-Encoding: gzip\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding:\r\n")},
      {400, With("Transfer-Encoding: ,chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: \"chunked\"\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: chunked;q=1\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: \x0B"
                 "chunked\r\n",
                 "0\r\n\r\n")},
      {400, With("Transfer-Encoding\r\n : chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding : chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: chunked\r\nContent-Length: 5\r\n", "0\r\n\r\n")},
      {400, With("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")},
      {400, With("Transfer-Encoding: gzip\r\nContent-Length: 5\r\n", "hello")},
      {400, With("Content-Length: 5\r\nTransfer-Encoding: gzip\r\n", "hello")},
      {400, "POST /case HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"},
      {400, "POST /case HTTP/1.0\r\nTransfer-Encoding: gzip\r\n\r\n"},
      // Content-Length
      {400, With("Content-Length: 0\r\nContent-Length: 0\r\n")},
      {400, With("Content-Length: 5\r\nContent-Length: 6\r\n", "hello")},
      {400, With("Content-Length: 5, 5\r\n", "hello")},
      {400, With("Content-Length: +5\r\n", "hello")},
      {400, With("Content-Length: -1\r\n")},
      {400, With("Content-Length: 0x5\r\n", "hello")},
      {400, With("Content-Length: 5.0\r\n", "hello")},
      {400, With("Content-Length: 1e308\r\n")},
      {400, With("Content-Length: NaN\r\n")},
      {400, With("Content-Length: \"5\"\r\n", "hello")},
      {400, With("Content-Length: null\r\n")},
      {400, With("Content-Length: 5 5\r\n", "hello")},
      {400, With("Content-Length:\r\n")},
      {400, With("Content-Length: 5,\r\n", "hello")},
      {400, With("Content-Length : 5\r\n", "hello")},
      {400, With("Content-Length: 5\r\n\t1\r\n", "hello")},
      {400, With("Content-Length: 99999999999999999999\r\n")},
      {413, With("Content-Length: 8388609\r\n")},
      {413, With("Content-Length: 2147483648\r\n")},
      {413, With("Content-Length: 9223372036854775808\r\n")},
      // Chunks
      {400, Chunked("g\r\n")},
      {400, Chunked("\r\n")},
      {400, Chunked("0x1\r\na\r\n0\r\n\r\n")},
      {400, Chunked("+1\r\na\r\n0\r\n\r\n")},
      {400, Chunked("-1\r\na\r\n0\r\n\r\n")},
      {400, Chunked("1 \r\na\r\n0\r\n\r\n")},
      {400, Chunked(" 1\r\na\r\n0\r\n\r\n")},
      {400, Chunked("1\na\n0\n\n")},
      {400, Chunked("1\r\nab\r\n0\r\n\r\n")},
      {400, Chunked("1\r\na0\r\n\r\n")},
      {400, Chunked("1\r\na\n0\r\n\r\n")},
      {400, Chunked("1;a=\"\n\"\r\na\r\n0\r\n\r\n")},
      {400, Chunked("1;a=\"\r\n\"\r\na\r\n0\r\n\r\n")},
      {400, Chunked("1;\ra\r\na\r\n0\r\n\r\n")},
      {400, Chunked("00000000000000001\r\na\r\n0\r\n\r\n")},
      {400, Chunked("10000000000000001\r\na\r\n0\r\n\r\n")},
      {413, Chunked("ffffffffffffffff\r\na")},
      {413, Chunked("800001\r\na")},
      {400, Chunked("0\r\nno field\r\n\r\n")},
      {400, Chunked("0\r\nA : b\r\n\r\n")},
      {400, Chunked("0\r\nA: b\r\n c\r\n\r\n")},
      {400, Chunked("0\r\nA: b\n\r\n")},
      // Host
      {400, "GET /case HTTP/1.1\r\n\r\n"},
      {400, "GET /case HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n"},
      {400, "GET /case HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n"},
      {400, "GET /case HTTP/1.1\r\nHost: a, b\r\n\r\n"},
      {400, "GET /case HTTP/1.1\r\nHost: a@b\r\n\r\n"},
      {400, "GET /case HTTP/1.1\r\nHost : a\r\n\r\n"},
      // Lines
      {400, With("A: b\r\n c\r\n")},
      {400, With("A: b\r\n\tc\r\n")},
      {400, "GET /case HTTP/1.1\r\n Host: x\r\n\r\n"},
      {400, "GET /case HTTP/1.1\nHost: x\n\n"},
      {400, "GET /case HTTP/1.1\r\nHost: x\r\nA: b\nC: d\r\n\r\n"},
      {400, "GET /case HTTP/1.1\r\nHost: x\r\nA: b\rC: d\r\n\r\n"},
      {400, With(std::string("A: b\0c\r\n", 8))},
      {400, With("A: b\x01\r\n")},
      {400, With("A: b\x7F\r\n")},
      {400, With("no field\r\n")},
      {400, With(": no name\r\n")},
      {400, With("a b: c\r\n")},
      {400, With("a\xC3\xA9: c\r\n")},
      {400, "\r\n\r\n"},
      {400, " GET /case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "\x16\x03\x01\x02"},  // TLS
      // Request lines
      {501, "BREW /case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {501, "get /case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {501, "TRACE /case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {501, "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "G@T /case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET http://y/case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET http://x@y/case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET ftp://x/case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET  /case HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /ca\xC3\xA9 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /ca\tse HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /case#part HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%zz HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%4 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%00 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%0d%0a HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%FF HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /%C0%AF HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /?q=%ED%A0%80 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /?q=%+1 HTTP/1.1\r\nHost: x\r\n\r\n"},
      {400, "GET /case\r\nHost: x\r\n\r\n"},
      {505, "GET /case HTTP/1.2\r\nHost: x\r\n\r\n"},
      {505, "GET /case HTTP/2.0\r\nHost: x\r\n\r\n"},
      {505, "GET /case HTTP/0.9\r\nHost: x\r\n\r\n"},
      {505, "GET /case http/1.1\r\nHost: x\r\n\r\n"},
      {505, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"},
      {505, "GET /case HTTP/1.1 \r\nHost: x\r\n\r\n"},
      {417, With("Expect: a-miracle\r\nContent-Length: 1\r\n")},
      {417, With("Expect: 100-continue, more\r\nContent-Length: 1\r\n")},
      // Sizes
      {431, With("A: " + std::string(16 << 10, 'a') + "\r\n")},
      {431, "GET /" + std::string(16 << 10, 'a') + " HTTP/1.1\r\nHost: x\r\n\r\n"},
      {431, std::string(17 << 10, 'A')},
      {400, Chunked("1;" + std::string(2 << 10, 'e'))},
  };
}

TEST(Smuggler, IsRefusedAndNothingBehindIsRead) {
  WatchedServer server;
  const auto cases = FramingCases();
  ASSERT_GE(cases.size(), 100u);
  for (const Case& one : cases) {
    SCOPED_TRACE(one.bytes.substr(0, 200));
    Client client(*server);
    const auto start = std::chrono::steady_clock::now();
    client.Send(one.bytes + Get("/smuggled") + Get("/smuggled"));
    const auto answer = client.Answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, one.status);
    EXPECT_LT(std::chrono::steady_clock::now() - start, milliseconds(2000));
    EXPECT_EQ(answer->Field("connection"), "close");
    EXPECT_EQ(answer->Field("content-type"), "application/json");
    EXPECT_EQ(answer->Field("x-request-id").size(), 32u);
    EXPECT_EQ(client.ReadToEnd(), "");
    EXPECT_FALSE(client.reset());
    EXPECT_EQ(server.TakePaths(), std::vector<std::string>());
  }
}

// Each request is refused byte by byte, too, when one read of a parser is not one header.
TEST(Smuggler, IsRefusedInSmallPieces) {
  WatchedServer server;
  for (const Case& one : FramingCases()) {
    if (one.bytes.size() > 200) continue;
    SCOPED_TRACE(one.bytes);
    Client client(*server);
    for (const char c : one.bytes) client.Send({&c, 1});
    client.Send(Get("/smuggled"));
    const auto answer = client.Answer();
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, one.status);
    EXPECT_EQ(client.ReadToEnd(), "");
    EXPECT_EQ(server.TakePaths(), std::vector<std::string>());
  }
}

}  // namespace
}  // namespace nibble::http
